"""The archives of the original release, of BiT's and of big_vision: there, back, and what they cannot be."""

import dataclasses
import logging
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.fixture_files import load_fixture, without, write_npz
from tests.helpers.random_models import TINY, random_model, same_bits
from tests.helpers.refusals import refused
from vitkit import load_model
from vitkit.data.config import Preprocessing
from vitkit.models.build import build_model
from vitkit.models.config import BackboneConfig, ResNetConfig
from vitkit.models.image_model import ImageModel
from vitkit.models.position import sincos_2d
from vitkit.weights.format_names import Format
from vitkit.weights.formats.official import LINEN, RELEASED
from vitkit.weights.loading import save_model
from vitkit.weights.model_card import card_of

PLAIN = ["a_vit_token", "b_vit_token_rep", "c_vit_gap", "f_vit_gap_nonsquare_patch", "f_vit_token_nonsquare"]
HYBRIDS = {"d_hybrid_r111": 5e-5, "d_hybrid_r21_odd": 5e-5, "d_hybrid_stem_only": 5e-5}
HYBRIDS |= {"d_eps_probe_stem_unit": 2e-4}  # tiny kernels, where the original's own noise is 8e-5
BITS = ["g_bit_eps_probe", "g_bit_r111", "g_bit_r1111_fourblocks", "g_bit_r21_gauss"]
BIG_VISION = ["h_bv_gap_learn", "h_bv_gap_sincos2d_rep", "h_bv_sincos2d_map", "h_bv_tok_learn_rep"]
HYBRID = dataclasses.replace(
    TINY, image_size=(32, 32), patch_size=(2, 2), backbone=BackboneConfig((1, 2), width_factor=0.5)
)
BIT = ResNetConfig(image_size=(32, 32), layers=(1, 2), num_classes=4, width_factor=0.5)


def in_linen(parameters: dict[str, Any]) -> dict[str, Any]:
    """Released arrays under today's names and shapes."""
    for part in ("attention.out", "norm2", "mlp.fc1"):
        old, new = (names[f"blocks.{part}"].split("/")[2] for names in (RELEASED, LINEN))
        parameters = {key.replace(f"/{old}/", f"/{new}/"): value for key, value in parameters.items()}
    return {
        key: value.squeeze() if "gn" in key.rpartition("/")[0] else value for key, value in parameters.items()
    }


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


def read_fixture(name: str, folder: Path) -> tuple[ImageModel, dict[str, Any], dict[str, Any]]:
    """A fixture's model, read from its arrays, these under the names that are written, and its numbers."""
    description, parameters, arrays = load_fixture(name)
    if description.get("naming") == "linen":
        parameters = in_linen(parameters)
    path = write_npz(folder / f"{name}.npz", parameters)
    return load_model(path, image_size=tuple(description["image"])), parameters, arrays


def compare_taps(model: ImageModel, arrays: dict[str, Any], tolerance: float, **names: str) -> None:
    """Hold the intermediates of a model against a fixture's, by the names that differ from their own."""
    taps: dict[str, torch.Tensor] = {}
    with torch.inference_mode():
        model(torch.from_numpy(arrays["input"]).permute(0, 3, 1, 2), taps=taps)
    taps["placed"] = taps["embedded"][:, model.config.num_tokens - np.prod(model.config.grid) :]
    for tap, name in ({"encoded": "encoded", "pre_logits": "pre_logits", "logits": "logits"} | names).items():
        array = arrays[name].reshape(taps[tap].shape) if tap == "stem" else arrays[name]
        np.testing.assert_allclose(taps[tap], array, rtol=0, atol=tolerance, err_msg=tap)


@pytest.mark.parametrize("name", [*PLAIN, *HYBRIDS, *BITS, *BIG_VISION])
def test_arrays_survive_the_way_there_and_back(name: str, tmp_path: Path) -> None:
    first, parameters, _ = read_fixture(name, tmp_path)
    format: Format = "big_vision" if name in BIG_VISION else "official"
    root = "params/" if name in BIG_VISION else ""
    path = save_model(first, tmp_path / "b", format)
    assert path.name == "b.npz"
    with np.load(path) as file:
        written = {key.removeprefix(root): file[key] for key in file.files if key.startswith(root)}
    if load_fixture(name)[0].get("naming") == "linen":
        written = in_linen(written)
    assert written.keys() == parameters.keys()
    for key, array in parameters.items():
        np.testing.assert_array_equal(written[key], array)  # of the same shape, too
    again = load_model(path, image_size=first.config.image_size)
    assert again.config == first.config and same_bits(again, first)


# The original's ViTs and hybrids


@pytest.mark.parametrize("name", [*PLAIN, *HYBRIDS])
def test_every_intermediate_is_that_of_the_original(name: str, tmp_path: Path) -> None:
    description, parameters, arrays = load_fixture(name)
    names = {"stem": "embedding_out", "block00/+mlp": "block0_out"}
    for naming in (parameters, in_linen(parameters)):
        model = load_model(write_npz(tmp_path / "w.npz", naming), image_size=tuple(description["image"]))
        compare_taps(model, arrays, HYBRIDS.get(name, 2e-5), **names)


def test_a_hybrids_shape_is_read_from_its_arrays(tmp_path: Path) -> None:
    path = save_model(random_model(HYBRID), tmp_path / "hybrid", format="official")
    assert load_model(path).config == HYBRID  # 2x2 patches of stride 8: a grid of 2x2 is an image of 32x32
    larger = load_model(path, num_classes=3, image_size=48)
    assert larger.config.grid == (3, 3) and larger.config.backbone == HYBRID.backbone
    assert larger(torch.zeros(1, 3, 48, 48)).shape == (1, 3) and not larger.state_dict()["head.weight"].any()


@pytest.mark.parametrize("root", ["params/", "opt/target/"])
def test_the_parameters_of_a_training_checkpoint_are_found(
    root: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain, parameters, _ = read_fixture("a_vit_token", tmp_path)
    rooted = {f"{root}{key}": value for key, value in parameters.items()}
    beside = {"opt/state/step": np.array(3), "extra/chrono": np.zeros(2)}
    with caplog.at_level(logging.INFO, "vitkit"):
        assert same_bits(load_model(write_npz(tmp_path / "w.npz", rooted | beside)), plain)
    assert "state of the optimiser: opt/state/step" in caplog.text
    for more, message in (
        ({"x": np.ones(1)}, "x: unexpected"),
        ({"cls": parameters["cls"]}, "cls: there is another array of this name"),
    ):
        refused(message, load_model, write_npz(tmp_path / "w.npz", rooted | more))


def test_without_a_head_there_are_no_classes(tmp_path: Path) -> None:
    whole, parameters, arrays = read_fixture("a_vit_token", tmp_path)
    # Images are cut as the original evaluates.
    assert card_of(whole).preprocessing == Preprocessing((16, 16), "stretch", antialias=False)
    assert card_of(whole).origin["dialect"] == "official"
    headless = {key: value for key, value in parameters.items() if not key.startswith("head/")}
    model = load_model(write_npz(tmp_path / "w.npz", headless))
    assert model.config.num_classes == 0
    compare_taps(model, arrays | {"logits": arrays["pre_logits"]}, 2e-5)
    again = load_model(save_model(model, tmp_path / "again", format="official"))
    assert again.config == model.config and same_bits(again, model)


def test_a_class_token_without_position_is_given_one_of_zeros(tmp_path: Path) -> None:
    model = random_model(dataclasses.replace(TINY, class_token_position=False))
    path = save_model(model, tmp_path / "w.npz", format="official")
    refused(r"no square grid.*image_size", load_model, path)
    again = load_model(path, image_size=(12, 16))
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


# BiT's ResNets


def test_numbered_convolutions_are_the_same(tmp_path: Path) -> None:
    plain, parameters, _ = read_fixture("g_bit_eps_probe", tmp_path)
    numbered = {
        key.replace("standardized_conv2d/", f"standardized_conv2d_{number}/"): value
        for number, (key, value) in enumerate(parameters.items())
    }
    assert numbered.keys() != parameters.keys()
    assert same_bits(plain, load_model(write_npz(tmp_path / "b.npz", numbered), image_size=48))
    twice = write_npz(tmp_path / "c.npz", {**parameters, **numbered})
    refused("found a second of resnet", load_model, twice, image_size=48)


def test_a_bits_image_size_is_asked_for_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = dataclasses.replace(BIT, max_pool_padding="lowest", norm_eps=1e-6)
    path = save_model(build_model(config), tmp_path / "w.npz", format="official")
    for warning in ("image size 32x32", "max_pool_padding lowest", "norm_eps 1e-06"):
        assert warning in caplog.text
    refused(r"image_size=.*224", load_model, path)
    model = load_model(path, image_size=(32, 48))
    assert model.config == dataclasses.replace(BIT, image_size=(32, 48))
    assert card_of(model).preprocessing == Preprocessing((32, 48), "stretch", antialias=True)


def test_a_bit_with_a_new_head_and_with_none(tmp_path: Path) -> None:
    _, parameters, _ = read_fixture("g_bit_eps_probe", tmp_path)
    model = load_model(tmp_path / "g_bit_eps_probe.npz", num_classes=3, image_size=48)
    assert model(torch.zeros(1, 3, 48, 48)).shape == (1, 3) and not model.state_dict()["head.weight"].any()
    headless = without(without(parameters, "resnet/head/conv2d/kernel"), "resnet/head/conv2d/bias")
    model = load_model(write_npz(tmp_path / "w.npz", headless), image_size=48)
    assert model.config.num_classes == 0
    assert model(torch.zeros(1, 3, 48, 48)).shape == (1, 128)


# big_vision's ViTs: both ways to keep blocks, all poolings, both kinds of positions


@pytest.mark.parametrize("name", BIG_VISION)
def test_every_intermediate_is_that_of_big_vision(name: str, tmp_path: Path) -> None:
    model, _, arrays = read_fixture(name, tmp_path)
    assert not model.config.class_token_position and model.config.gelu == "tanh"
    compare_taps(model, arrays, 2e-5, placed="with_posemb", pooled="head_input")
    if "posemb_sincos2d" in arrays:
        positions = sincos_2d(model.config.grid, model.config.width, "sincos_2d")
        np.testing.assert_allclose(positions, arrays["posemb_sincos2d"], rtol=0, atol=1e-6)
        assert "sincos2d" in card_of(model).origin["positions"]


@pytest.mark.parametrize("name", ["h_bv_sincos2d_map", "h_bv_tok_learn_rep"])
def test_stacked_blocks_are_the_same_bits(name: str, tmp_path: Path) -> None:
    flat, parameters, _ = read_fixture(name, tmp_path)
    path = write_npz(tmp_path / "scanned.npz", scanned(parameters))
    assert same_bits(load_model(path, image_size=flat.config.image_size), flat)


def test_bfloat16_becomes_the_numbers_it_stands_for(tmp_path: Path) -> None:
    model, parameters, _ = read_fixture("h_bv_gap_learn", tmp_path)
    assert card_of(model).preprocessing == Preprocessing((16, 16), "crop", 0.875)
    rounded = {key: torch.from_numpy(value).bfloat16() for key, value in parameters.items()}
    void = {key: value.view(torch.int16).numpy().view("V2") for key, value in rounded.items()}
    exact = {key: value.float().numpy() for key, value in rounded.items()}
    expected = load_model(write_npz(tmp_path / "f32.npz", exact))
    for arrays in (void, scanned(void)):
        assert same_bits(load_model(write_npz(tmp_path / "bf16.npz", arrays)), expected)


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
        caplog.clear()
        with caplog.at_level(logging.INFO, "vitkit"):
            again = load_model(write_npz(tmp_path / "two.npz", both))
        assert again.config == config and same_bits(again, model)
        assert card_of(again).origin["tower"] == "img" and "params/txt/head/kernel" in caplog.text
    third = write_npz(tmp_path / "w.npz", {**both, "params/aud/kernel": np.zeros(2)})
    refused("params/aud/kernel: unexpected", load_model, third)


def test_the_class_tokens_position_is_added_to_it(tmp_path: Path) -> None:
    model = random_model(dataclasses.replace(TINY, representation_size=10))
    path = save_model(model, tmp_path / "w.npz", format="big_vision")
    with zipfile.ZipFile(path) as archive:  # one that numpy reads anywhere
        assert archive.testzip() is None and "params/embedding/kernel.npy" in archive.namelist()
    again = load_model(path, image_size=(12, 16))
    assert again.config == dataclasses.replace(model.config, class_token_position=False)
    images = torch.randn(2, 3, 12, 16, generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        torch.testing.assert_close(again(images), model(images), rtol=0, atol=1e-6)
        there = load_model(save_model(again, tmp_path / "o.npz", format="official"), image_size=(12, 16))
        assert torch.equal(there(images), again(images))


# Files that are not whole

QUERY = "Transformer/encoderblock_0/MultiHeadDotProductAttention_1/query/kernel"
SCALE = "Transformer/encoderblock/LayerNorm_0/scale"
HEAD = "resnet/head/conv2d/kernel"


NOT_WHOLE = [
    # An array of zeros of this shape, or none, in place of a fixture's.
    ("a_vit_token", "cls", None, "no square grid"),
    ("a_vit_token", "Transformer/encoder_norm/bias", None, "Transformer/encoder_norm/bias: missing"),
    ("a_vit_token", "extra/kernel", (2,), "extra/kernel: unexpected"),
    ("a_vit_token", QUERY, None, "query/kernel: missing, expected an array of 3 axes"),
    ("a_vit_token", "head/bias", (11,), "head.bias: expected"),
    ("a_vit_token", "head/kernel", (10,), "cannot be made of"),
    ("h_bv_tok_learn_rep", "Transformer/encoder_norm/bias", None, "encoder_norm/bias: missing"),
    ("h_bv_tok_learn_rep", "Transformer/encoderblock_0/ls1", (48,), "encoderblock_0/ls1: unexpected"),
    ("h_bv_tok_learn_rep", "MAPHead_0/probe", (1, 1, 48), "MAPHead_0/probe: unexpected"),
    ("g_bit_eps_probe", "more", (2,), "more: unexpected"),
    ("g_bit_eps_probe", HEAD, (2, 1, 128, 10), r"head.weight: expected \(10, 128\), found \(10, 256\)"),
    ("g_bit_eps_probe", HEAD, (0, 1, 128, 10), r"expected \(10, 128\), found \(10, 0\)"),
    ("g_bit_eps_probe", "resnet/head/conv2d/bias", (), r"head.bias: expected \(10,\), found \(1,\)"),
]


@pytest.mark.parametrize(("name", "key", "shape", "message"), NOT_WHOLE)
def test_files_that_are_not_whole_are_explained(
    name: str, key: str, shape: tuple[int, ...] | None, message: str, tmp_path: Path
) -> None:
    _, parameters, _ = load_fixture(name)
    arrays = without(parameters, key) | ({} if shape is None else {key: np.zeros(shape, np.float32)})
    size = None if name == "a_vit_token" else 48 if "bit" in name else 16
    refused(message, load_model, write_npz(tmp_path / "w.npz", arrays), image_size=size)


def test_stacks_and_units_not_whole_are_explained(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _, parameters, _ = load_fixture("h_bv_tok_learn_rep")
    _, hybrid, _ = load_fixture("d_hybrid_r111")
    stack, path = scanned(parameters), tmp_path / "w.npz"
    for arrays, message in (
        (without(stack, SCALE), "encoderblock_1/LayerNorm_0/scale: missing"),
        ({**stack, SCALE: stack[SCALE][:1]}, "encoderblock_1/LayerNorm_0/scale: missing"),
        (parameters | stack, "twice: by itself"),
        ({**stack, SCALE: np.zeros((0, 48))}, "encoderblock_0/LayerNorm_0/scale: missing"),
        ({"weights": np.zeros(3)}, "no model we know"),
        (
            {key: value for key, value in hybrid.items() if not key.startswith("block2/")},
            "at least one unit, found \\(1, 0, 1\\)",
        ),
    ):
        refused(message, load_model, write_npz(path, arrays), image_size=16)
    write_npz(path, load_fixture("h_bv_gap_sincos2d_rep")[1])
    refused(r"sines and cosines.*image_size=.*224", load_model, path)
    save_model(load_model(path, image_size=16), path, format="big_vision")
    assert "cannot say: the image size" in caplog.text
