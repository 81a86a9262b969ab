"""big_vision's ViTs: both ways to keep blocks, all poolings, both kinds of positions."""

import dataclasses
import logging
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.fixture_files import load_fixture, without, write_npz
from tests.helpers.random_models import random_model, same_bits
from tests.helpers.tiny_models import TINY
from vitkit import load_model
from vitkit.data.config import Preprocessing
from vitkit.errors import VitkitError
from vitkit.models.position import sincos_2d
from vitkit.weights.files.source import open_source
from vitkit.weights.formats.big_vision import read
from vitkit.weights.model_card import card_of
from vitkit.weights.saving import save_model
from vitkit.weights.table import Hints

FIXTURES = ["h_bv_gap_learn", "h_bv_gap_sincos2d_rep", "h_bv_sincos2d_map", "h_bv_tok_learn_rep"]


def scanned(parameters: dict[str, Any]) -> dict[str, Any]:
    """The same arrays as a scan over the layers keeps them."""
    block = "Transformer/encoderblock_0/"
    stacked = {
        key.replace(block, "Transformer/encoderblock/"): np.stack(
            [parameters[key.replace("encoderblock_0", f"encoderblock_{i}")] for i in range(2)]
        )
        for key in parameters
        if key.startswith(block)
    }
    return stacked | {key: value for key, value in parameters.items() if "encoderblock_" not in key}


@pytest.mark.parametrize("name", FIXTURES)
def test_every_intermediate_is_that_of_big_vision(name: str, tmp_path: Path) -> None:
    description, parameters, arrays = load_fixture(name)
    model = load_model(write_npz(tmp_path / "w.npz", parameters), image_size=tuple(description["image"]))
    assert not model.config.class_token_position and model.config.gelu == "tanh"
    images = torch.from_numpy(arrays["input"]).permute(0, 3, 1, 2)
    taps: dict[str, torch.Tensor] = {}
    with torch.inference_mode():
        model(images, taps=taps)
    taps["embedded"] = taps["embedded"][:, model.config.prefix_tokens :]
    expected = {
        "embedded": arrays["with_posemb"],
        "encoded": arrays["encoded"],
        "pooled": arrays["head_input"],
        "pre_logits": arrays["pre_logits"],
        "logits": arrays["logits"],
    }
    for tap, array in expected.items():
        np.testing.assert_allclose(taps[tap], array, rtol=0, atol=2e-5, err_msg=tap)
    if "posemb_sincos2d" in arrays:
        positions = sincos_2d(model.config.grid, model.config.width, "sincos_2d")
        np.testing.assert_allclose(positions, arrays["posemb_sincos2d"], rtol=0, atol=1e-6)
        assert "sincos2d" in card_of(model).origin["positions"]


@pytest.mark.parametrize("name", FIXTURES)
def test_arrays_survive_the_way_there_and_back(name: str, tmp_path: Path) -> None:
    description, parameters, _ = load_fixture(name)
    size = tuple(description["image"])
    first = load_model(write_npz(tmp_path / "a.npz", parameters), image_size=size)
    path = save_model(first, tmp_path / "b", format="big_vision")
    assert path.name == "b.npz"
    with np.load(path) as file:
        assert set(file.files) == {f"params/{key}" for key in parameters}
        for key, array in parameters.items():
            np.testing.assert_array_equal(file[f"params/{key}"], array)
    again = load_model(path, image_size=size)
    assert again.config == first.config and same_bits(again, first)


@pytest.mark.parametrize("name", ["h_bv_sincos2d_map", "h_bv_tok_learn_rep"])
def test_stacked_blocks_are_the_same_bits_each_array_read_once(name: str, tmp_path: Path) -> None:
    description, parameters, _ = load_fixture(name)
    size = tuple(description["image"])
    flat = load_model(write_npz(tmp_path / "flat.npz", parameters), image_size=size)
    path = write_npz(tmp_path / "scanned.npz", scanned(parameters))
    assert same_bits(load_model(path, image_size=size), flat)

    counts: dict[str, int] = {}
    with open_source(path) as source:
        inner = source.read

        def counted(key: str) -> torch.Tensor:
            counts[key] = counts.get(key, 0) + 1
            return inner(key)

        translation = read(dataclasses.replace(source, read=counted), Hints(size))
        assert translation.source is not None
        for row in translation.rows:
            for key in row.theirs:
                translation.source.read(key)
    assert counts and set(counts.values()) == {1}


def test_bfloat16_becomes_the_numbers_it_stands_for(tmp_path: Path) -> None:
    _, parameters, _ = load_fixture("h_bv_gap_learn")
    rounded = {key: torch.from_numpy(value).bfloat16() for key, value in parameters.items()}
    void = {key: value.view(torch.int16).numpy().view("V2") for key, value in rounded.items()}
    path = write_npz(tmp_path / "bf16.npz", void)
    exact = {key: value.float().numpy() for key, value in rounded.items()}
    expected = load_model(write_npz(tmp_path / "f32.npz", exact))
    assert same_bits(load_model(path), expected)
    assert same_bits(load_model(write_npz(tmp_path / "s.npz", scanned(void))), expected)


def test_of_two_towers_the_image_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As SigLIP's files are: attention pooling, no head, learned positions, stacked or not."""
    config = dataclasses.replace(
        TINY, image_size=(16, 16), pool="map", num_classes=0, class_token_position=False
    )
    model = random_model(config)
    with np.load(save_model(model, tmp_path / "alone.npz", format="big_vision")) as file:
        image = {key.removeprefix("params/"): file[key] for key in file.files}
    text = {"params/txt/head/kernel": np.zeros((2, 2)), "params/t": np.ones(1), "params/b": np.ones(1)}
    for tower in (image, scanned(image)):
        both = {f"params/img/{key}": value for key, value in tower.items()} | text
        path = write_npz(tmp_path / "two.npz", both)
        caplog.clear()
        with caplog.at_level(logging.INFO, "vitkit"):
            again = load_model(path)
        assert again.config == config and same_bits(again, model)
        assert card_of(again).origin["tower"] == "img" and "params/txt/head/kernel" in caplog.text
    with pytest.raises(VitkitError, match="params/aud/kernel: unexpected"):
        load_model(write_npz(tmp_path / "w.npz", {**both, "params/aud/kernel": np.zeros(2)}))


def test_the_class_tokens_position_is_added_to_it(tmp_path: Path) -> None:
    model = random_model(dataclasses.replace(TINY, representation_size=10))
    again = load_model(save_model(model, tmp_path / "w.npz", format="big_vision"), image_size=(12, 16))
    assert again.config == dataclasses.replace(model.config, class_token_position=False)
    images = torch.randn(2, 3, 12, 16, generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        torch.testing.assert_close(again(images), model(images), rtol=0, atol=1e-6)
        there = load_model(save_model(again, tmp_path / "o.npz", format="official"), image_size=(12, 16))
        assert torch.equal(there(images), again(images))


def test_preprocessing_is_that_of_its_configurations(tmp_path: Path) -> None:
    _, parameters, _ = load_fixture("h_bv_gap_learn")
    card = card_of(load_model(write_npz(tmp_path / "w.npz", parameters)))
    assert card.preprocessing == Preprocessing((16, 16), "crop", 0.875)


def test_sizes_that_no_array_tells_are_asked_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _, parameters, _ = load_fixture("h_bv_gap_sincos2d_rep")
    path = write_npz(tmp_path / "w.npz", parameters)
    with pytest.raises(VitkitError, match=r"sines and cosines.*image_size=.*224"):
        load_model(path)
    with caplog.at_level(logging.WARNING, "vitkit"):
        save_model(load_model(path, image_size=16), tmp_path / "w.npz", format="big_vision")
    assert "cannot say: the image size" in caplog.text


def test_files_that_are_not_whole_are_explained(tmp_path: Path) -> None:
    _, parameters, _ = load_fixture("h_bv_tok_learn_rep")
    stack = scanned(parameters)
    scale = "Transformer/encoderblock/LayerNorm_0/scale"
    for arrays, message in (
        (without(parameters, "Transformer/encoder_norm/bias"), "encoder_norm/bias: missing"),
        ({**parameters, "Transformer/encoderblock_0/ls1": np.ones(48)}, "encoderblock_0/ls1: unexpected"),
        ({**parameters, "pos_embedding": np.zeros(3)}, "expected an array of 3 axes"),
        ({**parameters, "MAPHead_0/probe": np.zeros((1, 1, 48))}, "MAPHead_0/probe: unexpected"),
        (without(stack, scale), "encoderblock_1/LayerNorm_0/scale: missing"),
        ({**stack, scale: stack[scale][:1]}, "encoderblock_1/LayerNorm_0/scale: missing"),
        (parameters | stack, "twice: by itself"),
        ({**stack, scale: np.zeros((0, 48))}, "encoderblock_0/LayerNorm_0/scale: missing"),
    ):
        with pytest.raises(VitkitError, match=message):
            load_model(write_npz(tmp_path / "w.npz", arrays), image_size=16)


def test_the_written_archive_is_one_that_numpy_reads_anywhere(tmp_path: Path) -> None:
    path = save_model(random_model(TINY), tmp_path / "w.npz", format="big_vision")
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert "params/embedding/kernel.npy" in archive.namelist()
