"""Checkpoints in and out: nothing lost, nothing executed, every error in words."""

import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.fixture_files import load_fixture, write_npz
from tests.models.test_vit import TINY, model_with_random_head
from vitkit.errors import VitkitError
from vitkit.models.card import ModelCard
from vitkit.models.weights import load_model, save_model
from vitkit.models.weights.native import read_safetensors, safetensors_chunks
from vitkit.models.weights.official import LINEN, RELEASED, name_table, official_config, to_official, to_ours

FIXTURES = [
    "a_vit_token",
    "b_vit_token_rep",
    "c_vit_gap",
    "f_vit_gap_nonsquare_patch",
    "f_vit_token_nonsquare",
]


@pytest.mark.parametrize("name", FIXTURES)
def test_official_weights_survive_the_way_there_and_back(name: str) -> None:
    description, parameters, _ = load_fixture(name)
    config = official_config(parameters, tuple(description["image"]))
    back = to_official(to_ours(parameters, config), config)
    renamed = {
        ours: theirs
        for row, other in zip(name_table(config, RELEASED), name_table(config, LINEN), strict=True)
        for ours, theirs in zip(row.theirs, other.theirs, strict=True)
    }
    for key, array in back.items():
        np.testing.assert_array_equal(array, parameters.get(key, parameters.get(renamed[key])))
    assert len(back) == len(parameters)


def test_saving_as_official_and_loading_gives_the_same_logits(tmp_path: Path) -> None:
    model = model_with_random_head(TINY)
    path = save_model(model, tmp_path / "ours", format="official")
    assert path.name == "ours.npz"
    again = load_model(path, image_size=(12, 16))
    images = torch.randn(2, 3, 12, 16)
    with torch.inference_mode():
        assert torch.equal(again(images), model(images))


def test_what_the_official_format_cannot_say_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = model_with_random_head(dataclasses.replace(TINY, gelu="erf"))
    with caplog.at_level(logging.WARNING, "vitkit"):
        save_model(model, tmp_path / "erf.npz", format="official")
    assert "GELU" in caplog.text


def test_a_grid_that_is_not_square_is_asked_for(tmp_path: Path) -> None:
    path = save_model(model_with_random_head(TINY), tmp_path / "ours", format="official")
    with pytest.raises(VitkitError, match=r"no square grid.*image_size"):
        load_model(path)


def test_our_own_layout_keeps_weights_card_and_configuration(tmp_path: Path) -> None:
    model = model_with_random_head(TINY)
    model.card = ModelCard("ViT-x", ("a", "b", "c", "d", "<é>"), {"resize": "crop"}, {}, {"run": "r"})
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
    assert other.head.weight.shape == (3, 24) and not other.head.weight.any()
    assert other.card.class_names == ()
    same = load_model(tmp_path, num_classes=5)
    assert torch.equal(same.head.weight, model.head.weight) and same.card.class_names


def test_another_image_size_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save_model(model_with_random_head(TINY), tmp_path)
    with caplog.at_level(logging.WARNING, "vitkit"):
        model = load_model(tmp_path, image_size=(24, 16))
    assert "from a grid of 3x4 to 6x4" in caplog.text
    assert model(torch.zeros(1, 3, 24, 16)).shape == (1, 5)


def _without(parameters: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if name != key}


def test_official_files_that_are_not_whole_are_explained(tmp_path: Path) -> None:
    _, parameters, _ = load_fixture("a_vit_token")
    cases = {
        "cls is missing": (_without(parameters, "cls"), "no square grid"),
        "a bias is missing": (
            _without(parameters, "Transformer/encoder_norm/bias"),
            "Missing: Transformer/encoder_norm/bias",
        ),
        "one too many": ({**parameters, "extra/kernel": np.zeros(2)}, "Unexpected: extra/kernel"),
        "no head": (_without(parameters, "head/kernel"), "head/kernel is not among"),
        "something else": ({"weights": np.zeros(3)}, "Expected the arrays of a Vision Transformer"),
        "a hybrid": ({**parameters, "conv_root/kernel": np.zeros(2)}, "hybrid"),
        "wrong shape": ({**parameters, "head/bias": np.zeros(11, np.float32)}, "head.weight: expected"),
    }
    for name, (arrays, words) in cases.items():
        path = write_npz(tmp_path / "weights.npz", arrays)
        with pytest.raises(VitkitError, match=words):
            load_model(path)
            pytest.fail(f"not noticed: {name}")


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
    with pytest.raises(VitkitError, match=r"No model\.safetensors in"):
        load_model(tmp_path / "empty")
    (tmp_path / "model.pth").write_bytes(b"x")
    with pytest.raises(VitkitError, match="none of the checkpoints known"):
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
    for change, words in (
        ({"format": "other"}, "not a description"),
        ({"format_version": 99}, "newer"),
        ({"architecture": {**record["architecture"], "width": 48}}, "expected .*48.*found .*24"),
        ({"architecture": {**record["architecture"], "widht": 48}}, "unknown key 'widht'.*'width'"),
        ({"class_names": ["one"]}, "1 class names for a model of 5 classes"),
        ({"origin": []}, "origin: expected an object"),
    ):
        description.write_text(json.dumps({**record, **change}))
        with pytest.raises(VitkitError, match=words):
            load_model(weights)
    description.write_text("{")
    with pytest.raises(VitkitError, match="cannot be read"):
        load_model(weights)
    description.unlink()
    with pytest.raises(VitkitError, match=r"No model\.json beside"):
        load_model(weights)


def test_formats_are_named() -> None:
    with pytest.raises(VitkitError, match="'vitkit' and 'official'"):
        save_model(model_with_random_head(TINY), "x", format="onnx")  # type: ignore[arg-type]
