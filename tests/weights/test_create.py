"""The front door of models: timm's names give timm's models, and nothing is fetched without permission."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import vitkit
from tests.helpers.random_models import random_model, same_bits
from tests.helpers.refusals import refused
from tests.helpers.timm_files import folder_of
from tests.peers.fixed_weights import ARCHITECTURE, NUMBERS, fixed_images, fixed_tensor
from vitkit.durable import cache_folder
from vitkit.errors import VitkitError
from vitkit.models.build import build_model
from vitkit.models.image_model import ImageModel
from vitkit.models.resnet import StdConv2d
from vitkit.models.zoo import ModelConfig, model_config, with_channels, with_statistics
from vitkit.weights.files import download
from vitkit.weights.formats.timm import vit_rows
from vitkit.weights.loading import fit_channels
from vitkit.weights.model_card import preprocessing_of

TOLERANCE = 1e-5
"""Logits and features have a spread of about 1, in float32: the rounding of twelve blocks."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a network that fails the test that would use it."""
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)

    def refuse(address: str, expected: object) -> None:
        raise VitkitError(f"{address} was to be fetched.")

    monkeypatch.setattr(download, "from_hub", refuse)
    return cache_folder()


def timm_tensors(num_classes: int) -> dict[str, Tensor]:
    """The fixed weights of timm's architecture, by timm's names."""
    model = vitkit.create_model(ARCHITECTURE, num_classes=num_classes)
    ours = model.state_dict()
    return {
        row.theirs[0]: fixed_tensor(row.theirs[0], tuple(ours[row.ours].shape))
        for row in vit_rows(model.config)
    }


def shipped(name: str) -> Tensor:
    return torch.from_numpy(np.load(NUMBERS)[name])


def test_published_weights_compute_what_timm_computes_and_all_their_names_give_them(cache: Path) -> None:
    short = "vit-ti16-augreg-in21k-in1k-224"
    folder = cache / "starts" / short
    folder.mkdir(parents=True)
    pixels = {"mean": [0.5] * 3, "std": [0.5] * 3, "input_size": [3, 224, 224]}
    settings = {"architecture": ARCHITECTURE, "num_classes": 10, "pretrained_cfg": pixels}
    folder_of(folder, timm_tensors(10), settings)
    model = vitkit.create_model(ARCHITECTURE, pretrained=True)
    grey = vitkit.create_model(ARCHITECTURE, pretrained=True, in_chans=1, num_classes=4)
    with torch.inference_mode():
        logits, features = model(fixed_images(3))[0], grey.features(fixed_images(1))[0]
    assert (logits - shipped("logits")).abs().max() < TOLERANCE
    assert (features - shipped("features of one channel")).abs().max() < TOLERANCE
    assert grey.config.num_classes == 4 and not grey.state_dict()["head.weight"].any()
    assert not grey.training and preprocessing_of(grey).decode.channels == 1
    tagged = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    for name in ("vit_tiny_patch16_224", tagged, short, f"hf:timm/{tagged}", f"timm/{tagged}"):
        model = vitkit.create_model(name, pretrained=True, image_size=32)
        assert model.config.image_size == (32, 32) and model.config.num_classes == 10


PUBLISHED = {
    "vit_base_patch16_224": "hf:timm/vit_base_patch16_224.augreg2_in21k_ft_in1k",
    "vit_base_patch16_224.mae": "hf:timm/vit_base_patch16_224.mae",
    "vit_small_patch16_224.augreg_in21k": "hf:timm/vit_small_patch16_224.augreg_in21k",
    "google/vit-base-patch16-384": "hf:timm/vit_base_patch16_384.orig_in21k_ft_in1k",
    "hf:somebody/a-vit": "hf:somebody/a-vit",
}
"""The address at which the weights of a name are fetched."""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        *((name, rf"{address}\S* was to be fetched") for name, address in PUBLISHED.items()),
        ("ViT-H/14", "names of their own: vit-h14-in21k"),
        ("ViT-S/15", "No weights of ViT-S/15 are published"),
        ("vit_giant_patch14_224", "timm has no weights of vit_giant_patch14_224"),
        ("vit-h14", "names of their own: vit-h14-in21k"),
        ("somebody/a-vit", "No model is named 'somebody/a-vit'"),
        # Architectures of timm that their names do not say in full:
        ("vit_base_patch16_clip_224", "No model is named"),
        ("deit_base_distilled_patch16_224", "No model is named"),
        ("vit_base_patch16_224_miil", "No model is named"),
        ("here", "load it with vitkit.load_model"),
    ],
)
def test_weights_are_fetched_from_where_they_are_published_or_not_at_all(
    name: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "here").mkdir()
    refused(said, vitkit.create_model, name, pretrained=True)


def test_new_weights_follow_the_name() -> None:
    model = vitkit.create_model("vit_tiny_patch16_384", in_chans=4)
    config = model.config
    assert (config.image_size, config.in_channels, config.num_classes) == ((384, 384), 4, 1000)
    assert config.gelu == "erf" and model.training
    deit = vitkit.create_model("deit_tiny_patch16_224", num_classes=2, image_size=(32, 48)).config
    assert deit.image_mean == (0.485, 0.456, 0.406) and deit.image_size == (32, 48)
    first, second = (
        vitkit.create_model("ViT-16x1x2/4", 3, 8, generator=torch.Generator().manual_seed(1))
        for _ in range(2)
    )
    assert first.config.gelu == "tanh" and same_bits(first, second)  # drawn from the generator


# Weights for three channels that are made to fit images of another number

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALF = ((0.5,), (0.5,))


def drawn(name: str, statistics: tuple[tuple[float, ...], tuple[float, ...]]) -> ImageModel:
    return random_model(with_statistics(model_config(name, 5, (32, 32)), *statistics))


def fitted(model: ImageModel, channels: int) -> ImageModel:
    config: ModelConfig = model.config
    changed, tensors = fit_channels(config, model.state_dict(), channels)
    made = build_model(changed, torch.Generator().manual_seed(9)).eval()
    made.load_state_dict(tensors, strict=False)
    return made


def grey_images(count: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randint(0, 256, (count, 1, 32, 32), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize(
    ("name", "statistics"), [("ViT-32x2x4/8", HALF), ("ViT-32x2x4/8", IMAGENET), ("ViT-32x2x4/8-conv", HALF)]
)
@torch.no_grad()
def test_a_grey_image_gives_what_it_gave_when_it_was_repeated(
    name: str, statistics: tuple[tuple[float, ...], tuple[float, ...]]
) -> None:
    model, grey = drawn(name, statistics), grey_images()
    expected = model(grey.repeat(1, 3, 1, 1))
    logits = fitted(model, 1)(grey)
    assert expected.std() > 0.01  # else any model would pass
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)  # sums in another order


@pytest.mark.parametrize("name", ["BiT-R1-1-1x0.5", "R+ViT-32x2x2/16"])
@torch.no_grad()
def test_a_standardised_filter_keeps_its_output_up_to_a_factor(name: str) -> None:
    model, grey = drawn(name, HALF), grey_images(2)
    root, made = (
        next(module for module in network.modules() if isinstance(module, StdConv2d))
        for network in (model, fitted(model, 1))
    )
    centred = grey.float() / 127.5 - 1
    expected, output = root(centred.repeat(1, 3, 1, 1)), made(centred)
    alike = torch.cosine_similarity(expected.transpose(0, 1).flatten(1), output.transpose(0, 1).flatten(1))
    torch.testing.assert_close(alike, torch.ones_like(alike), rtol=0, atol=1e-5)


def test_other_numbers_of_channels_repeat_the_filters_as_timm_does() -> None:
    model = drawn("ViT-32x2x4/8", IMAGENET)
    before = model.state_dict()["stem.weight"]
    made = fitted(model, 5)
    # adapt_input_conv of timm 1.0: repeat by ceil(C / 3), cut to C, times 3 / C.
    expected = before.repeat(1, 2, 1, 1)[:, :5] * (3 / 5)
    assert torch.equal(made.state_dict()["stem.weight"], expected)
    assert made.config.image_mean == (0.485, 0.456, 0.406, 0.485, 0.456)


@torch.no_grad()
def test_grey_weights_give_the_same_of_repeated_grey() -> None:
    model, grey = fitted(drawn("ViT-32x2x4/8", HALF), 1), grey_images()
    torch.testing.assert_close(fitted(model, 3)(grey.repeat(1, 3, 1, 1)), model(grey), rtol=1e-4, atol=1e-5)


def test_there_is_no_rule_from_five_channels_to_four() -> None:
    config = replace(
        model_config("ViT-32x2x4/8", 5, (32, 32)), in_channels=5, image_mean=(0.5,) * 5, image_std=(0.5,) * 5
    )
    refused(r"5 channels.*channels 5", with_channels, config, 4)
    assert with_channels(config, 5) is config
