"""Weights for three channels that are made to fit images of another number."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from vitkit.errors import VitkitError
from vitkit.models.build import build_model
from vitkit.models.image_model import ImageModel
from vitkit.models.resnet import StdConv2d
from vitkit.models.zoo import ModelConfig, model_config, with_channels, with_statistics
from vitkit.weights.loading import fit_channels

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALF = ((0.5,), (0.5,))


def random_model(name: str, statistics: tuple[tuple[float, ...], tuple[float, ...]]) -> ImageModel:
    config = with_statistics(model_config(name, 5, (32, 32)), *statistics)
    model = build_model(config, torch.Generator().manual_seed(0)).eval()
    with torch.no_grad():  # a head and biases of zeros would hide what is before them
        for parameter in model.parameters():
            if not parameter.any():
                parameter.normal_(std=0.1, generator=torch.Generator().manual_seed(1))
    return model


def fitted(model: ImageModel, channels: int) -> ImageModel:
    config: ModelConfig = model.config
    changed, tensors = fit_channels(config, model.state_dict(), channels)
    made = build_model(changed, torch.Generator().manual_seed(9)).eval()
    made.load_state_dict(tensors, strict=False)
    return made


def grey_images(count: int = 4) -> Tensor:
    return torch.randint(
        0, 256, (count, 1, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(2)
    )


@pytest.mark.parametrize(
    ("name", "statistics"),
    [("ViT-32x2x4/8", HALF), ("ViT-32x2x4/8", IMAGENET), ("ViT-32x2x4/8-conv", HALF)],
)
@torch.no_grad()
def test_a_grey_image_gives_what_it_gave_when_it_was_repeated(
    name: str, statistics: tuple[tuple[float, ...], tuple[float, ...]]
) -> None:
    model, grey = random_model(name, statistics), grey_images()
    expected = model(grey.repeat(1, 3, 1, 1))
    logits = fitted(model, 1)(grey)
    assert expected.std() > 0.01  # else any model would pass
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)  # sums in another order


@torch.no_grad()
def test_without_the_statistics_of_each_channel_the_sum_is_another_model() -> None:
    model, grey = random_model("ViT-32x2x4/8", IMAGENET), grey_images()
    plain = model.state_dict()
    plain["stem.weight"] = plain["stem.weight"].sum(1, keepdim=True)
    made = fitted(model, 1)
    expected = made(grey)
    made.load_state_dict(plain, strict=False)
    assert (made(grey) - expected).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["BiT-R1-1-1x0.5", "R+ViT-32x2x2/16"])
@torch.no_grad()
def test_a_standardised_filter_keeps_its_output_up_to_a_factor(name: str) -> None:
    model, grey = random_model(name, HALF), grey_images(2)
    root, made = (
        next(module for module in network.modules() if isinstance(module, StdConv2d))
        for network in (model, fitted(model, 1))
    )
    centred = grey.float() / 127.5 - 1
    expected, output = root(centred.repeat(1, 3, 1, 1)), made(centred)
    alike = torch.cosine_similarity(expected.transpose(0, 1).flatten(1), output.transpose(0, 1).flatten(1))
    torch.testing.assert_close(alike, torch.ones_like(alike), rtol=0, atol=1e-5)


def test_other_numbers_of_channels_repeat_the_filters_as_timm_does() -> None:
    model = random_model("ViT-32x2x4/8", IMAGENET)
    before = model.state_dict()["stem.weight"]
    made = fitted(model, 5)
    # adapt_input_conv of timm 1.0: repeat by ceil(C / 3), cut to C, times 3 / C.
    expected = before.repeat(1, 2, 1, 1)[:, :5] * (3 / 5)
    assert torch.equal(made.state_dict()["stem.weight"], expected)
    assert made.config.image_mean == (0.485, 0.456, 0.406, 0.485, 0.456)


@torch.no_grad()
def test_grey_weights_give_the_same_of_repeated_grey() -> None:
    model, grey = fitted(random_model("ViT-32x2x4/8", HALF), 1), grey_images()
    torch.testing.assert_close(fitted(model, 3)(grey.repeat(1, 3, 1, 1)), model(grey), rtol=1e-4, atol=1e-5)


def test_there_is_no_rule_from_five_channels_to_four() -> None:
    config = replace(
        model_config("ViT-32x2x4/8", 5, (32, 32)), in_channels=5, image_mean=(0.5,) * 5, image_std=(0.5,) * 5
    )
    with pytest.raises(VitkitError, match=r"5 channels.*channels 5"):
        with_channels(config, 4)
    assert with_channels(config, 5) is config
