"""vitkit's own folder: weights, card and checksum come back, and others in their place are refused."""

import dataclasses
import hashlib
import json
import logging
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import xxhash
from safetensors.torch import load_file

from tests.helpers.random_models import TINY, model_with_random_head, same_bits
from tests.helpers.refusals import refused
from vitkit import create_model, load_model
from vitkit.cli.main import run
from vitkit.config import to_json
from vitkit.data.config import Augmentation, DecodeRule, Preprocessing, Splits
from vitkit.models.config import Task
from vitkit.weights.files.checksum import write_hashed
from vitkit.weights.files.source import read_safetensors, safetensors_chunks
from vitkit.weights.format_names import Format
from vitkit.weights.formats import native
from vitkit.weights.loading import identify, load, save_model
from vitkit.weights.model_card import Assumption, ModelCard, TrainingData, card_of, describe, read_description

RULE = Preprocessing(
    (12, 16),
    "shortest",
    0.9,
    decode=DecodeRule(apply_exif=False, background=(0, 1, 2)),
    interpolation="bicubic",
    crop_offset="down",
)
CARD = ModelCard(
    "ViT-64x4x4/4",
    ("a", "b", "c", "d", "<é>"),
    Task("classification", "sigmoid"),
    RULE,
    Augmentation((0.8, 1.0), (0.8, 1.25), flip=False, rotate=12.0),
    TrainingData("digits", "digits", Splits(0.05, 0.2, 0), "aac9e6f6"),
    {"recipe": "digits", "weights": "Polyak average of the last step, 20", "vitkit": "0.1.0"},
    (Assumption("resizing", "stretched, as most do"),),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_model(model_with_random_head(TINY), tmp_path / "model")


def described(folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / "model.json").read_text())
    return record


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_our_own_layout_keeps_weights_card_and_configuration(dtype: torch.dtype, tmp_path: Path) -> None:
    """Types and pixel statistics too, which are no weights: bytes mean the same after loading."""
    model = model_with_random_head(TINY).to(dtype)
    assert card_of(model) == ModelCard() == card_of(load_model(save_model(model, tmp_path / "plain")))
    model.card = CARD
    assert read_description(json.loads(json.dumps(describe(model))), Path("x/model.json"))[1] == CARD
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
    model.card = CARD
    save_model(model, tmp_path)
    other = load_model(tmp_path, num_classes=3)
    head = other.get_parameter("head.weight")
    assert head.shape == (3, 24) and not head.any()
    # Classes, task and data are those of the head that is gone.
    assert card_of(other) == dataclasses.replace(CARD, class_names=(), task=None, data=None)
    same = load_model(tmp_path, num_classes=5)
    assert torch.equal(same.get_parameter("head.weight"), model.get_parameter("head.weight"))
    assert card_of(same) == CARD


def test_a_history_is_the_origin_with_the_loss_and_the_data() -> None:
    splits = {"val_fraction": 0.05, "test_fraction": 0.2, "seed": 0}
    data = {"spec": "digits", "name": "digits", "splits": splits, "fingerprint": "aac9e6f6"}
    assert CARD.history() == {"loss": "sigmoid", "data": data, **CARD.origin}


def test_a_description_that_is_damaged_or_of_other_weights_is_explained(folder: Path) -> None:
    weights, description = (folder / f"model.{kind}" for kind in ("safetensors", "json"))
    record = described(folder)
    changes: list[tuple[dict[str, Any], str]] = [
        ({"format": "other"}, "not a description"),
        ({"format_version": 99}, "in another format"),
        ({"architecture": {**record["architecture"], "width": 48}}, "expected .*48.*found .*24"),
        ({"architecture": {**record["architecture"], "widht": 48}}, "unknown key 'widht'.*'width'"),
        ({"class_names": ["one"]}, "1 class names for a model of 5 classes"),
        ({"origin": []}, "origin: expected an object"),
        ({"weights": []}, "weights: expected an object"),
        ({"weights": None}, "weights: expected an object"),
        ({"weights": {}}, "weights: the key 'bytes' of Checksum is missing"),
        ({"weights": {"bytes": 3}}, "the key 'xxh3_128' of Checksum is missing"),
        ({"weights": {"bytes": "3", "xxh3_128": "", "sha256": ""}}, "bytes: expected int, found '3'"),
    ]
    losses: list[Any] = ["hinge", None, ["sigmoid"], {}]
    for loss in losses:
        task = {"name": "classification", "loss": loss}
        changes.append(({"task": task}, r"model\.json: task: loss: expected one of 'softmax'"))
    rules: list[tuple[dict[str, Any], str]] = [
        ({"resize": "squish"}, "resize: expected one of 'stretch', .* found 'squish'"),
        ({"crop_fraction": "0.9"}, "crop_fraction: expected float, found '0.9'"),
        ({"interpolation": 3}, "interpolation: expected one of 'nearest', .* found 3"),
        ({"crop_pct": 0.9}, "unknown key 'crop_pct'"),
        ({"border": [0, 0]}, "border: expected"),
        ({"crop_fraction": 0.0}, "crop_fraction must be"),  # of the right type
    ]
    for rule, message in rules:
        changes.append(
            ({"preprocessing": {"image_size": [12, 16], **rule}}, rf"model\.json: preprocessing: {message}")
        )
    for change, message in changes:
        description.write_text(json.dumps({**record, **change}))
        refused(message, load_model, weights)
    for key in ("family", "architecture", "format_version", "weights"):
        description.write_text(json.dumps({name: value for name, value in record.items() if name != key}))
        refused(r"model\.json", load_model, weights)
    description.write_text("{")
    refused(r"model\.json is damaged: it is no JSON", load_model, weights)
    description.unlink()
    refused(r"No model\.json beside", load_model, weights)


def test_files_are_written_on_any_path_and_an_official_one_is_not_ours(tmp_path: Path) -> None:
    model = model_with_random_head(TINY)
    formats: tuple[Format, ...] = ("vitkit", "official", "timm")
    for format in formats:  # folders on the way are made
        path = save_model(model, tmp_path / "a" / format / "b", format)
        assert load_model(path, image_size=(12, 16)).config.width == TINY.width
    save_model(model, tmp_path)
    path = save_model(model, tmp_path / "w.npz", "official")
    assert card_of(load_model(path, image_size=(12, 16))).origin["dialect"] == "official"
    refused(r"'onnx'\. Known: vitkit, ", save_model, model, "x", format="onnx")
    model.card = ModelCard(class_names=("a", "b"))
    refused("2 class names for a model of 5 classes", save_model, model, tmp_path / "m", "huggingface")
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
        refused(r"fc1\.weight: expected \(40, 24\), found \(32, 24\)", load_model, tmp_path, image_size=size)
    for shape in ((2, 13, 24), (1, 13, 23), (13, 24)):
        replace_on_purpose(tmp_path, state | {"positions.0.embedding": torch.zeros(shape)})
        said = r"positions\.0\.embedding: expected \(1, 13, 24\), found"
        refused(said, load_model, tmp_path, image_size=(24, 16))


def test_another_image_size_says_so_as_does_a_shape(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = model_with_random_head(TINY)
    model.card = CARD
    with caplog.at_level(logging.WARNING, "vitkit"):
        other = load_model(save_model(model, tmp_path / "model"), image_size=(24, 16))
        assert "from a grid of 3x4 to 6x4" in caplog.text
        assert other(torch.zeros(1, 3, 24, 16)).shape == (1, 5)
        resized = dataclasses.replace(RULE, image_size=(24, 16))
        assert card_of(other) == dataclasses.replace(CARD, preprocessing=resized)
        square = model_with_random_head(dataclasses.replace(TINY, image_size=(16, 16)))
        other = load_model(save_model(square, tmp_path / "w.npz", "official"), image_size=(8, 32))
    assert other.config.grid == (2, 8) and "from a grid of 4x4 to 2x8" in caplog.text
    before, after = (m.state_dict()["positions.0.embedding"] for m in (square, other))
    assert torch.equal(before[:, 0], after[:, 0]) and not torch.equal(before, after)


# The checksum


def flip(path: Path, place: int, bit: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= bit
    path.write_bytes(data)


def test_the_card_shows_the_record_of_the_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = (folder / "model.safetensors").read_bytes()
    hashes = {"xxh3_128": xxhash.xxh3_128_hexdigest(data), "sha256": hashlib.sha256(data).hexdigest()}
    assert described(folder)["weights"] == {"bytes": len(data), **hashes}
    assert not [note for note in load(folder).notes if "checked" in note]
    assert run(["card", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["weights"]["sha256"] == hashes["sha256"]


def test_a_flipped_bit_is_noticed(folder: Path) -> None:
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    message = r"is not the file .*expected XXH3 \w{32}, found XXH3 \w{32}"
    for share in (0.0, 0.02, 0.3, 0.5, 0.999):
        flip(weights, 8 + length + int(share * (len(whole) - 8 - length)))
        for opening in (load_model, identify, load):
            refused(message, opening, folder)
        weights.write_bytes(whole)
    other = save_model(model_with_random_head(TINY).bfloat16(), folder.parent / "other")
    weights.write_bytes((other / "model.safetensors").read_bytes())
    refused(r"expected [\d,]+ bytes, found [\d,]+ bytes.*damaged or replaced", load_model, folder)


def test_a_stop_between_the_two_files_is_noticed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = model_with_random_head(TINY, seed=1)
    with monkeypatch.context() as patch:
        patch.setattr(native, "write", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            save_model(new, folder)
    refused(r"stopped between writing the two.*same vitkit train command", load_model, folder)
    save_model(new, folder)
    assert same_bits(load_model(folder), new)


def test_a_renamed_file_is_checked_and_one_of_another_kind_is_said_not_to_be(folder: Path) -> None:
    weights = (folder / "model.safetensors").rename(folder / "best.safetensors")
    assert not [note for note in load(weights).notes if "checked" in note]
    torch.save(load_model(weights).state_dict(), folder / "best.pth")
    assert any("not of this one: not checked" in note for note in load(folder / "best.pth").notes)
    flip(weights, weights.stat().st_size - 1)
    refused("is not the file", load, weights)


def test_a_replacement_that_was_cut_is_read_as_the_old_model_or_the_new_one(tmp_path: Path) -> None:
    old, new = (create_model("ViT-16x1x2/4", classes, 8) for classes in (2, 3))
    for model, names in ((old, ("a", "b")), (new, ("a", "b", "c"))):
        model.card = ModelCard("small", names)
        save_model(model, tmp_path / str(len(names)))
    description = json.loads((tmp_path / "2" / "model.json").read_text())
    following = json.loads((tmp_path / "3" / "model.json").read_text())
    record, weights = tmp_path / "2" / "model.json", tmp_path / "2" / "model.safetensors"
    record.write_text(json.dumps({**description, "next": following}))
    assert load(tmp_path / "2").model.config.num_classes == 2
    former = weights.read_bytes()
    shutil.copy(tmp_path / "3" / "model.safetensors", weights)
    assert load(tmp_path / "2").model.card.class_names == ("a", "b", "c")
    native.settle(tmp_path / "2")
    assert json.loads(record.read_text()) == following
    # What waits beside the old weights is removed.
    weights.write_bytes(former)
    record.write_text(json.dumps({**description, "next": following}))
    native.waiting(weights).write_bytes(b"half of them")
    native.settle(tmp_path / "2")
    assert json.loads(record.read_text()) == description
    assert sorted(path.name for path in (tmp_path / "2").iterdir()) == ["model.json", "model.safetensors"]


@pytest.mark.parametrize("following", [None, 3, [], {}, {"weights": 1}, {"weights": {"bytes": -1}}])
def test_a_next_description_that_is_none_is_not_followed(following: object, tmp_path: Path) -> None:
    model = create_model("ViT-16x1x2/4", 2, 8)
    save_model(model, tmp_path)
    record = tmp_path / "model.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "next": following}))
    assert load(tmp_path).model.config.num_classes == 2
    (tmp_path / "model.safetensors").write_bytes(b"neither")
    for call in (load, native.settle) if following is not None else (load,):
        refused(".", call, tmp_path)
