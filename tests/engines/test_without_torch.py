"""An exported folder is read and asked where there is no PyTorch, and answers as where there is."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitkit
from tests.engines.models import fake_engines, small
from tests.helpers.without_torch import run_without_torch

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


def test_predictions_are_the_same(exported: Path, tmp_path: Path) -> None:
    """From the image file to the line of JSON, by `vitkit predict`."""
    image = tmp_path / "image.png"
    arguments = ("-m", "vitkit", "predict", str(exported), str(image), "--json")
    predicted = run_without_torch(tmp_path, *arguments, packages=tmp_path / "packages")
    guesses = vitkit.Predictor(exported)(image)
    expected = [{"class": guess.name, "probability": round(guess.probability, 6)} for guess in guesses]
    assert json.loads(predicted)["predictions"] == expected
    assert len({guess.probability for guess in guesses}) == 5


def test_arrays_and_opened_images_are_predicted_and_a_checkpoint_needs_torch(
    exported: Path, tmp_path: Path
) -> None:
    code = (
        "import sys, numpy, vitkit; from PIL import Image\n"
        "p = vitkit.Predictor(sys.argv[1]); image = Image.open(sys.argv[2])\n"
        "print([g.name for g in p(image)] == [g.name for g in p(numpy.asarray(image))])\n"
        "try: vitkit.Predictor(sys.argv[3])\nexcept ImportError as error: print(error)"
    )
    given = [str(path) for path in (exported, tmp_path / "image.png", tmp_path / "model")]
    printed = run_without_torch(tmp_path, "-c", code, *given, packages=tmp_path / "packages")
    assert printed.splitlines() == ["True", "no torch here"]
