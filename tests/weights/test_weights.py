"""Checkpoints in and out: nothing lost, nothing executed, every error in words."""

import dataclasses
import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.helpers.random_models import same_bits
from tests.helpers.tiny_models import TINY, model_with_random_head
from vitkit import load_model
from vitkit.config import to_json
from vitkit.data.config import Augmentation, Preprocessing, Splits
from vitkit.errors import VitkitError
from vitkit.models.measure import count_parameters
from vitkit.weights.create import create_model
from vitkit.weights.files.checksum import write_hashed
from vitkit.weights.files.safetensors import read_safetensors, safetensors_chunks
from vitkit.weights.format_names import Format
from vitkit.weights.model_card import Assumption, ModelCard, Task, TrainingData, card_of
from vitkit.weights.saving import save_model

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_our_own_layout_keeps_weights_card_and_configuration(dtype: torch.dtype, tmp_path: Path) -> None:
    """Types and pixel statistics too, which are no weights: bytes mean the same after loading."""
    model = model_with_random_head(TINY).to(dtype)
    model.card = WHOLE_CARD
    save_model(model, tmp_path / "model")
    pixels = torch.randint(0, 256, (2, 3, 12, 16), dtype=torch.uint8)
    for path in (tmp_path / "model", tmp_path / "model" / "model.safetensors"):
        again = load_model(path)
        assert again.config == model.config and again.card == model.card and same_bits(again, model)
        assert all(parameter.requires_grad for parameter in again.parameters())
        with torch.inference_mode():
            assert torch.equal(again(pixels), model(pixels))


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


def test_another_number_of_classes_starts_a_zero_head_and_the_card_follows(tmp_path: Path) -> None:
    model = model_with_random_head(TINY)
    model.card = WHOLE_CARD
    save_model(model, tmp_path)
    other = load_model(tmp_path, num_classes=3)
    head = other.get_parameter("head.weight")
    assert head.shape == (3, 24) and not head.any()
    # Classes, task and data are those of the head that is gone.
    assert card_of(other) == dataclasses.replace(WHOLE_CARD, class_names=(), task=None, data=None)
    same = load_model(tmp_path, num_classes=5)
    assert torch.equal(same.get_parameter("head.weight"), model.get_parameter("head.weight"))
    assert card_of(same) == WHOLE_CARD


def test_a_description_that_is_damaged_or_of_other_weights_is_explained(tmp_path: Path) -> None:
    save_model(model_with_random_head(TINY), tmp_path / "model")
    weights, description = (tmp_path / "model" / f"model.{kind}" for kind in ("safetensors", "json"))
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


def test_files_are_written_on_any_path_and_an_official_one_is_not_taken_for_ours(
    tmp_path: Path,
) -> None:
    model = model_with_random_head(TINY)
    formats: tuple[Format, ...] = ("vitkit", "official", "timm")
    for format in formats:  # folders on the way are made
        path = save_model(model, tmp_path / "a" / format / "b", format)
        assert load_model(path, image_size=(12, 16)).config.width == TINY.width
    save_model(model, tmp_path)
    path = save_model(model, tmp_path / "w.npz", "official")
    assert card_of(load_model(path, image_size=(12, 16))).origin["dialect"] == "official"
    with pytest.raises(VitkitError, match=r"'onnx'\. Known: vitkit, "):
        save_model(model, "x", format="onnx")  # type: ignore[arg-type]
    model.card = ModelCard(class_names=("a", "b"))
    with pytest.raises(VitkitError, match="2 class names for a model of 5 classes"):
        save_model(model, tmp_path / "m", "huggingface")
    assert not (tmp_path / "m").exists()


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
    short = state["blocks.0.mlp.fc1.weight"][:-8]
    replace_on_purpose(tmp_path, state | {"blocks.0.mlp.fc1.weight": short})
    for size in (None, (24, 16), (12, 16)):
        with pytest.raises(VitkitError, match=r"fc1\.weight: expected \(40, 24\), found \(32, 24\)"):
            load_model(tmp_path, image_size=size)
    for shape in ((2, 13, 24), (1, 13, 23), (13, 24)):
        replace_on_purpose(tmp_path, state | {"positions.0.embedding": torch.zeros(shape)})
        with pytest.raises(VitkitError, match=r"positions\.0\.embedding: expected \(1, 13, 24\), found"):
            load_model(tmp_path, image_size=(24, 16))


def test_another_image_size_says_so_even_where_a_rectangle_has_as_many_patches(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = model_with_random_head(TINY)
    model.card = WHOLE_CARD
    with caplog.at_level(logging.WARNING, "vitkit"):
        other = load_model(save_model(model, tmp_path / "model"), image_size=(24, 16))
        assert "from a grid of 3x4 to 6x4" in caplog.text
        assert other(torch.zeros(1, 3, 24, 16)).shape == (1, 5)
        resized = Preprocessing((24, 16), "crop")
        assert card_of(other) == dataclasses.replace(WHOLE_CARD, preprocessing=resized)
        square = model_with_random_head(dataclasses.replace(TINY, image_size=(16, 16)))
        other = load_model(save_model(square, tmp_path / "w.npz", "official"), image_size=(8, 32))
    assert other.config.grid == (2, 8) and "from a grid of 4x4 to 2x8" in caplog.text
    before, after = (m.state_dict()["positions.0.embedding"] for m in (square, other))
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
    model = create_model("ViT-512x8x8/16")
    torch.nn.init.normal_(model.get_parameter("head.weight"))
    weights = 4 * count_parameters(model)
    path = save_model(model, tmp_path / "model", format)
    command = [sys.executable, "-c", CHILD, str(path)]
    memory, compiler = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert weights > 100e6  # enough to be told from what else a process does
    assert int(memory) < 1.6 * weights
    assert compiler == "False"
