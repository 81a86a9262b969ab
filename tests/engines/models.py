"""Small models for tests of engines, with a head that is not all zeros; and an engine that is PyTorch."""

import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn

import vitkit
from vitkit.engines.folder import FILES, shape_of
from vitkit.evaluation.run_model import output_function
from vitkit.models.build import build_model
from vitkit.models.image_model import ImageModel
from vitkit.models.novelty import Novelty
from vitkit.models.zoo import ModelConfig, model_config
from vitkit.weights.model_card import ModelCard

needs_onnxruntime = pytest.mark.skipif(
    not all(map(find_spec, ("onnxruntime", "onnx", "onnxscript"))), reason="needs the extra onnxruntime"
)
SMALL = "ViT-32x2x4/8"
NAMES = ("ant", "bee", "cow", "dog", "eel")


def small(name: str = SMALL, size: tuple[int, int] = (16, 24), channels: int = 3) -> ImageModel:
    """Make a model whose images are rectangles, with pixel statistics that are not 0.5."""
    config = replace(
        model_config(name, len(NAMES), size),
        in_channels=channels,
        image_mean=tuple(0.3 + 0.1 * i for i in range(channels)),
        image_std=tuple(0.2 + 0.05 * i for i in range(channels)),
    )
    return drawn(config)


def drawn(config: ModelConfig) -> ImageModel:
    """Build a model whose weights are the same at every call."""
    generator = torch.Generator().manual_seed(3)
    model = build_model(config, generator).eval()
    assert isinstance(model.head, nn.Linear)
    for parameter in model.parameters():  # a part at its first value, such as 1, would not be missed
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)
    nn.init.normal_(model.head.weight, std=0.5, generator=generator)
    model.card = ModelCard(class_names=NAMES)
    return model


def novelty(offset: float = 0.0) -> Novelty:
    """Make statistics of the features of a small model, drawn around an offset."""
    rows = offset + torch.randn(5, 32, generator=torch.Generator().manual_seed(0))
    return Novelty(rows.mean(0), torch.eye(32), rows - rows.mean(0), torch.ones(2))


Logits = NDArray[np.float32]


class FakeRunner:
    """Stands for a compiled graph: PyTorch computes the model, and `change` what is not its logits."""

    def __init__(self, model: ImageModel, change: Callable[[Logits], Logits] = np.asarray) -> None:
        self.model, self.change = model, change
        self.batches: list[int] = []

    def shape(self) -> str:
        return shape_of(self.model.config, self.model.card)

    def __call__(self, images: NDArray[np.uint8]) -> Logits:
        self.batches.append(len(images))
        with output_function(self.model, torch.device("cpu"), "float32", novelty=True) as compute:
            return self.change(compute(torch.from_numpy(images))())


def fake_engines(
    monkeypatch: pytest.MonkeyPatch, model: ImageModel, change: Callable[[Logits], Logits] = np.asarray
) -> FakeRunner:
    """Have exports made and read by PyTorch, whether engines are installed or not."""
    runner = FakeRunner(model, change)

    def make_runner(
        model: object, engine: Any, numbers: object, threads: int, folder: Path, *others: object
    ) -> FakeRunner:
        for name in FILES[engine]:
            (folder / name).write_bytes(f"{name} of {engine}".encode())
        return runner

    def nothing(*arguments: object, **named: object) -> None:
        """Let everything pass, or stand for a graph that was read."""

    monkeypatch.setattr("vitkit.engines.graph.make_runner", make_runner)
    monkeypatch.setattr("vitkit.jobs.export.refuse_precision", nothing)
    for place in ("engines.folder", "jobs.engines"):
        monkeypatch.setattr(f"vitkit.{place}.version", lambda name: "1.0")
    monkeypatch.setattr("vitkit.jobs.engines.refuse_precision", nothing)
    monkeypatch.setattr("vitkit.engines.libraries.require_engine", nothing)
    monkeypatch.setattr("vitkit.engines.libraries.refuse_precision", nothing)
    monkeypatch.setattr("vitkit.engines.folder.OpenVINORunner", lambda *arguments: runner)
    monkeypatch.setattr("vitkit.engines.folder.OnnxRunner", lambda *arguments: runner)
    return runner


# Stands for ONNX Runtime, which tests without extras lack: its logits are sums over parts of the image.
RUNTIME = """
from types import SimpleNamespace as Value
import numpy as np

class SessionOptions:
    intra_op_num_threads = 0

class InferenceSession:
    def __init__(self, path, options, providers):
        pass

    def get_inputs(self):
        return [Value(type="tensor(uint8)", shape=["batch", 3, 16, 24])]

    def get_outputs(self):
        return [Value(shape=["batch", 5])]

    def run(self, names, inputs):
        rows = inputs["images"].reshape(len(inputs["images"]), -1)[:, :1150].reshape(-1, 5, 230)
        return [rows.mean(2, dtype=np.float64).astype(np.float32)]
"""


@pytest.fixture
def exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    model = small()
    with monkeypatch.context() as patch:
        fake_engines(patch, model)
        vitkit.export(vitkit.save_model(model, tmp_path / "model"), tmp_path / "out", format="onnx")
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "onnxruntime.py").write_text(RUNTIME)
    for name in ("onnx", "onnxscript"):
        (packages / f"{name}.py").write_text("")
    monkeypatch.syspath_prepend(packages)
    for name in ("onnxruntime", "onnx", "onnxscript"):
        # Set before it is deleted: for a name that is not there, `delitem` alone undoes nothing, and the
        # stand-in that is imported would stay for the tests after this one.
        monkeypatch.setitem(sys.modules, name, sys)
        monkeypatch.delitem(sys.modules, name)
    pixels = np.random.default_rng(1).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    return tmp_path / "out"
