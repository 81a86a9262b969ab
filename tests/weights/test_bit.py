"""BiT's ResNets under the names of their release."""

import dataclasses
import logging
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.fixture_files import load_fixture, without, write_npz
from tests.helpers.random_models import same_bits
from vitkit import load_model
from vitkit.data.config import Preprocessing
from vitkit.errors import VitkitError
from vitkit.models.build import build_model
from vitkit.models.config import ResNetConfig
from vitkit.weights.loading import save_model
from vitkit.weights.model_card import card_of

FIXTURES = ["g_bit_eps_probe", "g_bit_r111", "g_bit_r1111_fourblocks", "g_bit_r21_gauss"]
TINY = ResNetConfig(image_size=(32, 32), layers=(1, 2), num_classes=4, width_factor=0.5)


@pytest.mark.parametrize("name", FIXTURES)
def test_the_release_computes_the_same(name: str, tmp_path: Path) -> None:
    """Zeros around the root's max-pooling, as all three code bases of the release have it."""
    description, parameters, arrays = load_fixture(name)
    model = load_model(write_npz(tmp_path / "w.npz", parameters), image_size=tuple(description["image"]))
    assert model.config.layers == tuple(description["depth"])
    assert model.config.width_factor == description["width_factor"]
    images = torch.from_numpy(arrays["input"]).permute(0, 3, 1, 2)
    with torch.inference_mode():
        logits = model(images)
    np.testing.assert_allclose(logits, arrays["logits_zeropad_maxpool"], rtol=0, atol=5e-5)


@pytest.mark.parametrize("name", FIXTURES)
def test_arrays_survive_the_way_there_and_back(name: str, tmp_path: Path) -> None:
    description, parameters, _ = load_fixture(name)
    first = load_model(write_npz(tmp_path / "a.npz", parameters), image_size=tuple(description["image"]))
    path = save_model(first, tmp_path / "b", format="official")
    with np.load(path) as file:
        assert set(file.files) == parameters.keys()
        for key, array in parameters.items():
            np.testing.assert_array_equal(file[key], array)
    again = load_model(path, image_size=tuple(description["image"]))
    assert again.config == first.config and same_bits(again, first)


def test_numbered_convolutions_are_the_same(tmp_path: Path) -> None:
    _, parameters, _ = load_fixture("g_bit_eps_probe")
    numbered = {
        key.replace("standardized_conv2d/", f"standardized_conv2d_{number}/"): value
        for number, (key, value) in enumerate(parameters.items())
    }
    assert numbered.keys() != parameters.keys()
    plain = load_model(write_npz(tmp_path / "a.npz", parameters), image_size=48)
    renumbered = load_model(write_npz(tmp_path / "b.npz", numbered), image_size=48)
    assert same_bits(plain, renumbered)
    twice = {**parameters, **numbered}
    with pytest.raises(VitkitError, match="found a second of resnet"):
        load_model(write_npz(tmp_path / "c.npz", twice), image_size=48)


def test_the_image_size_is_asked_for_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = dataclasses.replace(TINY, max_pool_padding="lowest", norm_eps=1e-6)
    with caplog.at_level(logging.WARNING, "vitkit"):
        path = save_model(build_model(config), tmp_path / "w.npz", format="official")
    for warning in ("image size 32x32", "max_pool_padding lowest", "norm_eps 1e-06"):
        assert warning in caplog.text
    with pytest.raises(VitkitError, match=r"image_size=.*224"):
        load_model(path)
    model = load_model(path, image_size=(32, 48))
    assert model.config == dataclasses.replace(TINY, image_size=(32, 48))
    assert card_of(model).preprocessing == Preprocessing((32, 48), "stretch", antialias=True)


def test_a_new_head_and_none(tmp_path: Path) -> None:
    _, parameters, _ = load_fixture("g_bit_eps_probe")
    path = write_npz(tmp_path / "w.npz", parameters)
    model = load_model(path, num_classes=3, image_size=48)
    assert model(torch.zeros(1, 3, 48, 48)).shape == (1, 3) and not model.state_dict()["head.weight"].any()
    headless = without(without(parameters, "resnet/head/conv2d/kernel"), "resnet/head/conv2d/bias")
    model = load_model(write_npz(tmp_path / "w.npz", headless), image_size=48)
    assert model.config.num_classes == 0
    assert model(torch.zeros(1, 3, 48, 48)).shape == (1, 128)


def test_axial_attention_has_no_name_there(tmp_path: Path) -> None:
    with pytest.raises(VitkitError, match="no place for axial"):
        save_model(build_model(dataclasses.replace(TINY, mixing="axial")), tmp_path / "w", format="official")


def test_files_that_are_not_whole_are_explained(tmp_path: Path) -> None:
    _, parameters, _ = load_fixture("g_bit_eps_probe")
    root, head = "resnet/root_block/standardized_conv2d/kernel", "resnet/head/conv2d/kernel"
    for arrays, message in (
        (without(parameters, "resnet/group_norm/beta"), "resnet/group_norm/beta: missing"),
        (without(parameters, head), f"{head}: missing"),
        ({**parameters, "more": np.zeros(2)}, "more: unexpected"),
        ({**parameters, root: np.zeros(7, np.float32)}, "expected an array of 4 axes"),
        ({**parameters, head: np.zeros((128, 10), np.float32)}, f"{head}: expected an array of 4 axes"),
        ({**parameters, head: np.zeros((2, 1, 128, 10), np.float32)}, f"{head}: .*1x1 pixels"),
        ({**parameters, head: np.zeros((0, 1, 128, 10), np.float32)}, f"{head}: .*none of them empty"),
        (
            {**parameters, "resnet/head/conv2d/bias": np.zeros((), np.float32)},
            "bias: expected an array of 1 axes",
        ),
    ):
        with pytest.raises(VitkitError, match=message):
            load_model(write_npz(tmp_path / "w.npz", arrays), image_size=48)
