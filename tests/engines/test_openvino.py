"""int8 by OpenVINO and NNCF: the nearer way of quantising is taken, and convolutional stems stay in float."""

from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from tests.engines.models import drawn, novelty
from vitkit.engines import graph as graphs
from vitkit.engines.folder import OpenVINORunner
from vitkit.engines.libraries import EnginePrecision
from vitkit.evaluation.run_model import output_function
from vitkit.models.config import ViTConfig

pytestmark = pytest.mark.skipif(
    not (find_spec("openvino") and find_spec("nncf")), reason="needs the extra openvino"
)
CONFIG = ViTConfig((16, 16), (4, 4), width=32, depth=2, num_heads=2, mlp_dim=64, num_classes=5)


def images(count: int) -> list[NDArray[np.uint8]]:
    return list(np.random.default_rng(0).integers(0, 256, (count, 1, 3, 16, 16), dtype=np.uint8))


@pytest.mark.parametrize("better", [False, True])
def test_the_way_whose_logits_are_nearer_is_taken(better: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, other = drawn(CONFIG), drawn(CONFIG)
    assert isinstance(other.head, nn.Linear)
    with torch.no_grad():
        other.head.weight.mul_(1.5)
    graph, same, far = (graphs.convert(network, "int8") for network in (model, drawn(CONFIG), other))
    made = {better: same, not better: far}  # by whether it is smoothed

    def quantize_once(model: object, graph: object, images: object, smooth: bool) -> object:
        return made[smooth]

    monkeypatch.setattr(graphs, "quantize_once", quantize_once)
    assert graphs.quantize(model, graph, images(3)) is same


@pytest.mark.parametrize("channels", [(), (8, 16)])
def test_convolutions_of_a_stem_stay_float(channels: tuple[int, ...]) -> None:
    model = drawn(replace(CONFIG, stem_channels=channels))
    graph = graphs.convert(model, "int8")
    made = graphs.quantize_once(model, graph, images(8), smooth=False)
    quantised: dict[str, list[bool]] = {}

    def is_quantised(node: Any) -> bool:
        sources = [port.get_source_output().get_node().get_type_name() for port in node.inputs()]
        return "FakeQuantize" in sources

    for node in made.get_ordered_ops():
        quantised.setdefault(node.get_type_name(), []).append(is_quantised(node))
    assert bool(channels) == ("Convolution" in quantised) and not any(quantised.get("Convolution", ()))
    assert sum(quantised["MatMul"]) >= 4 * CONFIG.depth


def test_distances_stay_float() -> None:
    """They are differences of large squares: in int8 nothing of them would be left."""
    model = drawn(CONFIG)
    model.novelty = novelty(4.0)
    pixels = images(8)
    made = graphs.quantize_once(model, graphs.convert(model, "int8"), pixels, smooth=False)
    with output_function(model, torch.device("cpu"), "float32", novelty=True) as compute:
        expected = np.concatenate([compute(torch.from_numpy(image))() for image in pixels])
    cases: list[tuple[Any, EnginePrecision, float]] = [(made, "int8", 0.03)]
    cases.append((graphs.convert(model, "float32"), "float32", 1e-5))
    for graph, precision, allowed in cases:
        runner = OpenVINORunner(graph, precision, 1)
        scores = np.concatenate([runner(image) for image in pixels])[:, -1]
        np.testing.assert_allclose(scores, expected[:, -1], rtol=allowed)
