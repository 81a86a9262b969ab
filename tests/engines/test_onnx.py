"""The graph for ONNX Runtime keeps the zeros around BiT's max-pooling, and is used without vitkit."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitkit
from tests.engines.models import drawn, needs_onnxruntime, small
from vitkit.data.config import Preprocessing
from vitkit.engines.graph import UnmergedMaxPool, write_onnx
from vitkit.models.config import ResNetConfig
from vitkit.models.resnet import ZeroPaddedMaxPool
from vitkit.weights.model_card import card_of


@pytest.mark.parametrize("size", [(8, 8), (7, 7), (7, 8), (1, 2)])
def test_zeros_are_kept_to_the_bit(size: tuple[int, int]) -> None:
    x = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1)) - 1
    expected = ZeroPaddedMaxPool()(x)
    assert torch.equal(UnmergedMaxPool(size)(x), expected)
    assert not torch.equal(torch.nn.functional.max_pool2d(x, 3, 2, padding=1), expected)


@needs_onnxruntime
def test_the_graph_of_a_bit_has_no_padding_before_the_pooling(tmp_path: Path) -> None:
    """Later versions of ONNX Runtime merge it no more, so that the logits of bundles alone would not tell."""
    onnx = pytest.importorskip("onnx")
    model = drawn(ResNetConfig((27, 32), (1, 1), 5, width_factor=0.5))
    write_onnx(model, tmp_path)
    nodes = onnx.load(tmp_path / "graph.onnx", load_external_data=False).graph.node
    made_by = {output: node.op_type for node in nodes for output in node.output}
    pooled = [made_by[node.input[0]] for node in nodes if node.op_type == "MaxPool"]
    assert pooled == ["Conv"]


@needs_onnxruntime
def test_the_example_of_the_page_on_graphs_predicts_without_vitkit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "howto" / "graph-without-vitkit.md").read_text(
        encoding="utf-8"
    )
    (example,) = re.findall(r"```python\n(import json\n.*?import onnxruntime.*?)```", page, flags=re.S)
    assert "import vitkit" not in example
    model = small()
    model.card = replace(card_of(model), preprocessing=Preprocessing((16, 24)))
    vitkit.export(vitkit.save_model(model, tmp_path / "model"), tmp_path / "mine-onnx", format="onnx")
    pixels = np.random.default_rng(1).integers(0, 256, (30, 50, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "new_photo.jpg", quality=95)
    monkeypatch.chdir(tmp_path)
    exec(example, {})
    expected = vitkit.Predictor(tmp_path / "mine-onnx")(tmp_path / "new_photo.jpg")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [name for _, name in lines] == [guess.name for guess in expected]
    # Bytes of a JPEG differ by 1 or 2 between decoders.
    assert all(abs(float(p) - g.probability) < 0.01 for (p, _), g in zip(lines, expected, strict=True))
