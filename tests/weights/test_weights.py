"""Checkpoints in and out: nothing lost, nothing executed, every error in words."""

import dataclasses
import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.helpers.tiny_models import TINY, model_with_random_head
from vitkit import load_model
from vitkit.config import to_json
from vitkit.data.config import Augmentation, Preprocessing, Splits
from vitkit.errors import VitkitError
from vitkit.models.measure import count_parameters
from vitkit.weights.create import create_model
from vitkit.weights.files.safetensors import read_safetensors, safetensors_chunks, write_hashed
from vitkit.weights.format_names import Format
from vitkit.weights.loading import save_model
from vitkit.weights.model_card import Assumption, ModelCard, Task, TrainingData, card_of

WHOLE_CARD = ModelCard(
    "ViT-x",
    ("a", "b", "c", "d", "<é>"),
    Task(loss="sigmoid"),
    Preprocessing((12, 16), "crop"),
    Augmentation(flip=False),
    TrainingData("photos", "photos", Splits(0.2, 0.0, 3), "af54"),
    {"run": "r"},
    (Assumption("resizing", "stretched, as most do"),),
)


def test_our_own_layout_keeps_weights_card_and_configuration(tmp_path: Path) -> None:
    model = model_with_random_head(TINY)
    model.card = WHOLE_CARD
    save_model(model, tmp_path / "model")
    for path in (tmp_path / "model", tmp_path / "model" / "model.safetensors"):
        again = load_model(path)
        assert again.config == model.config and again.card == model.card
        assert all(torch.equal(value, again.state_dict()[key]) for key, value in model.state_dict().items())
        assert all(parameter.requires_grad for parameter in again.parameters())


def test_bytes_mean_the_same_after_loading(tmp_path: Path) -> None:
    """The pixel statistics are no weights: they must be there after the weights were taken over."""
    model = model_with_random_head(TINY)
    save_model(model, tmp_path)
    pixels = torch.randint(0, 256, (2, 3, 12, 16), dtype=torch.uint8)
    with torch.inference_mode():
        assert torch.equal(load_model(tmp_path)(pixels), model(pixels))


def test_our_files_are_safetensors_to_the_library_too(tmp_path: Path) -> None:
    tensors = {
        "a": torch.randn(3, 4),
        "empty": torch.zeros(0, 2),
        "half": torch.randn(5).bfloat16(),
        "turned": torch.randn(4, 3).T,
        "scalar": torch.tensor(7.0),
    }
    path = tmp_path / "t.safetensors"
    path.write_bytes(b"".join(bytes(chunk) for chunk in safetensors_chunks(tensors)))
    for loaded in (load_file(path), read_safetensors(path)):
        assert loaded.keys() == tensors.keys()
        assert all(torch.equal(loaded[key], value) for key, value in tensors.items())


def test_another_number_of_classes_starts_a_zero_head(tmp_path: Path) -> None:
    model = model_with_random_head(TINY)
    model.card = ModelCard(class_names=("a", "b", "c", "d", "e"))
    save_model(model, tmp_path)
    other = load_model(tmp_path, num_classes=3)
    head = other.get_parameter("head.weight")
    assert head.shape == (3, 24) and not head.any()
    assert other.card.class_names == ()
    same = load_model(tmp_path, num_classes=5)
    assert torch.equal(same.get_parameter("head.weight"), model.get_parameter("head.weight"))
    assert same.card.class_names


def test_another_image_size_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_model(model_with_random_head(TINY), tmp_path)
    with caplog.at_level(logging.WARNING, "vitkit"):
        model = load_model(tmp_path, image_size=(24, 16))
    assert "from a grid of 3x4 to 6x4" in caplog.text
    assert model(torch.zeros(1, 3, 24, 16)).shape == (1, 5)


def test_nothing_in_a_file_is_executed(tmp_path: Path) -> None:
    canary = tmp_path / "canary"

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (canary,))

    path = tmp_path / "evil.npz"
    np.savez(path, cls=np.array([Evil()], dtype=object))
    with pytest.raises(VitkitError, match="cannot be read"):
        load_model(path)
    assert not canary.exists()


def test_damaged_and_absent_files_are_explained(tmp_path: Path) -> None:
    save_model(model_with_random_head(TINY), tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    description = tmp_path / "model" / "model.json"

    with pytest.raises(VitkitError, match="No checkpoint at"):
        load_model(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(VitkitError, match=r"No weights in .*found nothing"):
        load_model(tmp_path / "empty")
    (tmp_path / "model.pth").write_bytes(b"x")
    with pytest.raises(VitkitError, match="holds no weights: it is a text"):
        load_model(tmp_path / "model.pth")
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(VitkitError, match=r"cannot be read as an \.npz"):
        load_model(tmp_path / "cut.npz")

    whole = weights.read_bytes()
    weights.write_bytes(whole[:-10])
    with pytest.raises(VitkitError, match="no whole safetensors file"):
        load_model(weights)
    weights.write_bytes(whole)

    record = json.loads(description.read_text())
    for change, message in (
        ({"format": "other"}, "not a description"),
        ({"format_version": 99}, "in another format"),
        ({"architecture": {**record["architecture"], "width": 48}}, "expected .*48.*found .*24"),
        ({"architecture": {**record["architecture"], "widht": 48}}, "unknown key 'widht'.*'width'"),
        ({"class_names": ["one"]}, "1 class names for a model of 5 classes"),
        ({"origin": []}, "origin: expected an object"),
    ):
        description.write_text(json.dumps({**record, **change}))
        with pytest.raises(VitkitError, match=message):
            load_model(weights)
    description.write_text("{")
    with pytest.raises(VitkitError, match=r"model\.json is damaged: it is no JSON"):
        load_model(weights)
    description.unlink()
    with pytest.raises(VitkitError, match=r"No model\.json beside"):
        load_model(weights)


@pytest.mark.parametrize("format", ["vitkit", "official", "timm"])
def test_folders_on_the_way_are_made(format: Format, tmp_path: Path) -> None:
    path = save_model(model_with_random_head(TINY), tmp_path / "a" / "b", format)
    assert load_model(path, image_size=(12, 16)).config.width == TINY.width


def test_formats_are_named() -> None:
    with pytest.raises(VitkitError, match=r"'onnx'\. Known: vitkit, "):
        save_model(model_with_random_head(TINY), "x", format="onnx")  # type: ignore[arg-type]


def replace_on_purpose(folder: Path, state: dict[str, torch.Tensor]) -> None:
    """Put other weights into a model's folder, and their checksum into its description."""
    weights = write_hashed(folder / "model.safetensors", safetensors_chunks(state))
    record = {**json.loads((folder / "model.json").read_text()), "weights": to_json(weights)}
    (folder / "model.json").write_text(json.dumps(record))


def test_weights_of_another_shape_are_refused_at_any_image_size(tmp_path: Path) -> None:
    """Only what knows places is resized; nothing else is ever made to fit."""
    model = model_with_random_head(TINY)
    save_model(model, tmp_path)
    state = model.state_dict()
    state["blocks.0.mlp.fc1.weight"] = state["blocks.0.mlp.fc1.weight"][:-8]
    replace_on_purpose(tmp_path, state)
    for size in (None, (24, 16), (12, 16)):
        with pytest.raises(VitkitError, match=r"fc1\.weight: expected \(40, 24\), found \(32, 24\)"):
            load_model(tmp_path, image_size=size)


@pytest.mark.parametrize("shape", [(2, 13, 24), (1, 13, 23), (13, 24)])
def test_positions_of_another_shape_are_not_resized(shape: tuple[int, ...], tmp_path: Path) -> None:
    model = model_with_random_head(TINY)
    save_model(model, tmp_path)
    state = model.state_dict() | {"positions.0.embedding": torch.zeros(shape)}
    replace_on_purpose(tmp_path, state)
    with pytest.raises(VitkitError, match=r"positions\.0\.embedding: expected \(1, 13, 24\), found"):
        load_model(tmp_path, image_size=(24, 16))


def test_what_the_card_says_follows_the_model(tmp_path: Path) -> None:
    model = model_with_random_head(TINY)
    model.card = WHOLE_CARD
    save_model(model, tmp_path)
    other = load_model(tmp_path, image_size=(24, 16))
    resized = Preprocessing((24, 16), "crop")
    assert card_of(other) == dataclasses.replace(WHOLE_CARD, preprocessing=resized)
    # Classes, task and data are those of the head that is gone.
    headless = dataclasses.replace(WHOLE_CARD, class_names=(), task=None, data=None)
    assert card_of(load_model(tmp_path, num_classes=3)) == headless


def test_a_model_in_bfloat16_computes_in_it_after_loading(tmp_path: Path) -> None:
    model = model_with_random_head(TINY).bfloat16()
    save_model(model, tmp_path)
    pixels = torch.randint(0, 256, (2, 3, 12, 16), dtype=torch.uint8)
    with torch.inference_mode():
        assert torch.equal(load_model(tmp_path)(pixels), model(pixels))


def test_an_official_file_beside_our_own_is_not_taken_for_ours(tmp_path: Path) -> None:
    model = model_with_random_head(TINY)
    save_model(model, tmp_path)
    path = save_model(model, tmp_path / "w.npz", "official")
    assert card_of(load_model(path, image_size=(12, 16))).origin["dialect"] == "official"


def test_class_names_of_another_number_are_not_written(tmp_path: Path) -> None:
    model = model_with_random_head(TINY)
    model.card = ModelCard(class_names=("a", "b"))
    with pytest.raises(VitkitError, match="2 class names for a model of 5 classes"):
        save_model(model, tmp_path / "m", "huggingface")
    assert not (tmp_path / "m").exists()


def test_a_square_is_resized_to_a_rectangle_of_as_many_patches(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    square = model_with_random_head(dataclasses.replace(TINY, image_size=(16, 16)))
    path = save_model(square, tmp_path / "w.npz", "official")
    with caplog.at_level(logging.WARNING, "vitkit"):
        model = load_model(path, image_size=(8, 32))
    assert model.config.grid == (2, 8) and "from a grid of 4x4 to 2x8" in caplog.text
    before, after = (m.state_dict()["positions.0.embedding"] for m in (square, model))
    assert torch.equal(before[:, 0], after[:, 0]) and not torch.equal(before, after)


CHILD = """
import sys
import torch
from vitkit import load_model

def highest():  # bytes that were ever resident
    return 1024 * next(int(line.split()[1]) for line in open("/proc/self/status") if "VmHWM" in line)

before = highest()
model = load_model(sys.argv[1])
sum(float(parameter.sum()) for parameter in model.parameters())  # what is mapped is really read
print(highest() - before, "torch._dynamo" in sys.modules)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("format", ["vitkit", "official"])
def test_loading_holds_the_weights_once_and_imports_no_compiler(format: Format, tmp_path: Path) -> None:
    model = create_model("ViT-512x12x8/16")
    torch.nn.init.normal_(model.get_parameter("head.weight"))
    weights = 4 * count_parameters(model)
    path = save_model(model, tmp_path / "model", format)
    command = [sys.executable, "-c", CHILD, str(path)]
    memory, compiler = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert weights > 150e6  # enough to be told from what else a process does
    assert int(memory) < 1.6 * weights
    assert compiler == "False"
