"""The official release's ViTs and hybrids: there, back, and what a file of it cannot be."""

import dataclasses
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.fixture_files import load_fixture, without, write_npz
from tests.helpers.random_models import random_model, same_bits
from tests.helpers.tiny_models import TINY, model_with_random_head
from vitkit import load_model
from vitkit.data.config import Preprocessing
from vitkit.errors import VitkitError
from vitkit.models.config.resnet_config import BackboneConfig
from vitkit.weights.formats.official import LINEN, RELEASED
from vitkit.weights.model_card import card_of
from vitkit.weights.saving import save_model

PLAIN = [
    "a_vit_token",
    "b_vit_token_rep",
    "c_vit_gap",
    "f_vit_gap_nonsquare_patch",
    "f_vit_token_nonsquare",
]
HYBRIDS = {"d_hybrid_r111": 5e-5, "d_hybrid_r21_odd": 5e-5, "d_hybrid_stem_only": 5e-5}
HYBRIDS |= {"d_eps_probe_stem_unit": 2e-4}  # tiny kernels, where the original's own noise is 8e-5

HYBRID = dataclasses.replace(
    TINY, image_size=(32, 32), patch_size=(2, 2), backbone=BackboneConfig((1, 2), width_factor=0.5)
)


def renamed(parameters: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    return {key.replace(old, new): value for key, value in parameters.items()}


def in_linen(parameters: dict[str, Any]) -> dict[str, Any]:
    """Released arrays under today's names and shapes."""
    for name in ("attention", "norm2", "mlp"):
        parameters = renamed(parameters, f"/{getattr(RELEASED, name)}/", f"/{getattr(LINEN, name)}/")
    return {
        key: value.squeeze() if "gn" in key.rpartition("/")[0] else value for key, value in parameters.items()
    }


@pytest.mark.parametrize("name", [*PLAIN, *HYBRIDS])
def test_arrays_survive_the_way_there_and_back(name: str, tmp_path: Path) -> None:
    description, parameters, _ = load_fixture(name)
    if description["naming"] == "linen":
        parameters = in_linen(parameters)
    first = load_model(write_npz(tmp_path / "a.npz", parameters), image_size=tuple(description["image"]))
    path = save_model(first, tmp_path / "b.npz", format="official")
    with np.load(path) as file:
        written = {key: file[key] for key in file.files}
    if description["naming"] == "linen":
        written = in_linen(written)
    assert written.keys() == parameters.keys()
    for key, array in parameters.items():
        np.testing.assert_array_equal(written[key], array)  # of the same shape, too
    assert same_bits(load_model(path, image_size=tuple(description["image"])), first)


@pytest.mark.parametrize("name", HYBRIDS)
def test_hybrids_compute_what_the_original_computes(name: str, tmp_path: Path) -> None:
    description, parameters, arrays = load_fixture(name)
    images = torch.from_numpy(arrays["input"]).permute(0, 3, 1, 2)
    for naming in (parameters, in_linen(parameters)):
        model = load_model(write_npz(tmp_path / "w.npz", naming), image_size=tuple(description["image"]))
        taps: dict[str, torch.Tensor] = {}
        with torch.inference_mode():
            model(images, taps=taps)
        expected = {
            "stem": arrays["embedding_out"].reshape(taps["stem"].shape),
            "block00/+mlp": arrays["block0_out"],
            "encoded": arrays["encoded"],
            "pre_logits": arrays["pre_logits"],
            "logits": arrays["logits"],
        }
        for tap, array in expected.items():
            np.testing.assert_allclose(taps[tap], array, rtol=0, atol=HYBRIDS[name], err_msg=tap)


def test_a_hybrids_shape_is_read_from_its_arrays(tmp_path: Path) -> None:
    path = save_model(random_model(HYBRID), tmp_path / "hybrid", format="official")
    model = load_model(path)
    assert model.config == HYBRID  # 2x2 patches of stride 8: a grid of 2x2 is an image of 32x32
    larger = load_model(path, num_classes=3, image_size=48)
    assert larger.config.grid == (3, 3) and larger.config.backbone == HYBRID.backbone
    assert larger(torch.zeros(1, 3, 48, 48)).shape == (1, 3) and not larger.state_dict()["head.weight"].any()


@pytest.mark.parametrize("root", ["params/", "opt/target/"])
def test_the_parameters_of_a_training_checkpoint_are_found(
    root: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, parameters, _ = load_fixture("a_vit_token")
    plain = load_model(write_npz(tmp_path / "plain.npz", parameters))
    beside = {"opt/state/step": np.array(3), "extra/chrono": np.zeros(2)}
    path = write_npz(tmp_path / "w.npz", {f"{root}{key}": v for key, v in parameters.items()} | beside)
    with caplog.at_level(logging.INFO, "vitkit"):
        assert same_bits(load_model(path), plain)
    assert "state of the optimiser: opt/state/step" in caplog.text
    path = write_npz(
        tmp_path / "w.npz", {f"{root}{key}": v for key, v in parameters.items()} | {"x": np.ones(1)}
    )
    with pytest.raises(VitkitError, match="x: unexpected"):
        load_model(path)
    twice = {f"{root}{key}": v for key, v in parameters.items()} | {"cls": parameters["cls"]}
    with pytest.raises(VitkitError, match="cls: there is another array of this name"):
        load_model(write_npz(tmp_path / "w.npz", twice))


def test_without_a_head_there_are_no_classes(tmp_path: Path) -> None:
    _, parameters, arrays = load_fixture("a_vit_token")
    headless = {key: value for key, value in parameters.items() if not key.startswith("head/")}
    model = load_model(write_npz(tmp_path / "w.npz", headless))
    assert model.config.num_classes == 0
    with torch.inference_mode():
        features = model(torch.from_numpy(arrays["input"]).permute(0, 3, 1, 2))
    np.testing.assert_allclose(features, arrays["pre_logits"], rtol=0, atol=2e-5)
    again = load_model(save_model(model, tmp_path / "again", format="official"))
    assert again.config == model.config and same_bits(again, model)


def test_images_are_cut_as_the_original_evaluates(tmp_path: Path) -> None:
    _, parameters, _ = load_fixture("a_vit_token")
    card = card_of(load_model(write_npz(tmp_path / "w.npz", parameters)))
    assert card.preprocessing == Preprocessing((16, 16), "stretch", antialias=False)
    assert card.origin["dialect"] == "official"


def test_a_class_token_without_position_is_given_one_of_zeros(tmp_path: Path) -> None:
    model = random_model(dataclasses.replace(TINY, class_token_position=False))
    again = load_model(save_model(model, tmp_path / "w.npz", format="official"), image_size=(12, 16))
    assert again.config == TINY
    assert not again.state_dict()["positions.0.embedding"][:, 0].any()
    images = torch.randn(2, 3, 12, 16, generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        assert torch.equal(again(images), model(images))


def test_an_image_of_one_row_of_patches_is_read_as_one(tmp_path: Path) -> None:
    config = dataclasses.replace(TINY, image_size=(4, 32), patch_size=(4, 8))
    path = save_model(random_model(config), tmp_path / "w.npz", format="official")
    assert load_model(path, image_size=(4, 32)).config == config
    assert load_model(path).config.image_size == (8, 16)  # a square grid, as the original takes it to be


def test_a_grid_that_is_not_square_is_asked_for(tmp_path: Path) -> None:
    path = save_model(model_with_random_head(TINY), tmp_path / "ours", format="official")
    assert path.name == "ours.npz"
    with pytest.raises(VitkitError, match=r"no square grid.*image_size"):
        load_model(path)


def test_files_that_are_not_whole_are_explained(tmp_path: Path) -> None:
    _, parameters, _ = load_fixture("a_vit_token")
    _, hybrid, _ = load_fixture("d_hybrid_r111")
    query = "Transformer/encoderblock_0/MultiHeadDotProductAttention_1/query/kernel"
    cases = {
        "cls is missing": (without(parameters, "cls"), "no square grid"),
        "a bias is missing": (
            without(parameters, "Transformer/encoder_norm/bias"),
            "Transformer/encoder_norm/bias: missing",
        ),
        "one too many": ({**parameters, "extra/kernel": np.zeros(2)}, "extra/kernel: unexpected"),
        "half a head": (without(parameters, "head/kernel"), "head/kernel: missing"),
        "something else": ({"weights": np.zeros(3)}, "no model we know"),
        "a root without stages": (
            {**parameters, "conv_root/kernel": np.zeros(2)},
            "expected an array of 4 axes",
        ),
        "a hybrid without a unit": (
            {key: value for key, value in hybrid.items() if not key.startswith("block2/")},
            "block2",
        ),
        "no query": (without(parameters, query), "query/kernel: missing, expected an array of 3 axes"),
        "a flat query": (
            {**parameters, query: np.zeros((48, 48), np.float32)},
            "expected an array of 3 axes",
        ),
        "wrong shape": ({**parameters, "head/bias": np.zeros(11, np.float32)}, "head.bias: expected"),
        "a vector for a matrix": (
            {**parameters, "head/kernel": np.zeros(10, np.float32)},
            "cannot be made of",
        ),
    }
    for name, (arrays, message) in cases.items():
        path = write_npz(tmp_path / "weights.npz", arrays)
        with pytest.raises(VitkitError, match=message):
            load_model(path)
            pytest.fail(f"not noticed: {name}")
