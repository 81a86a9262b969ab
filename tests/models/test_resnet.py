"""Hybrid stem and BiT ResNet against the authors' numbers, and what those numbers would not show."""

import dataclasses
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.fixture_files import load_fixture, write_npz
from tests.helpers.refusals import refused
from vitkit import load_model
from vitkit.models.build import build_model
from vitkit.models.config import BackboneConfig, ResNetConfig
from vitkit.models.resnet import PostActivationUnit, ResNet, ResNetStem, StdConv2d

BITS = ["g_bit_r111", "g_bit_r1111_fourblocks", "g_bit_r21_gauss", "g_bit_eps_probe"]

TINY = ResNetConfig(image_size=(37, 50), layers=(1, 2), num_classes=5, width_factor=0.5)


def fixture_model(name: str, folder: Path, **changes: Any) -> tuple[Any, Tensor, dict[str, Tensor]]:
    """A fixture's model with another arithmetic, its images, and the numbers that it should make of them."""
    description, parameters, arrays = load_fixture(name)
    model = load_model(write_npz(folder / "w.npz", parameters), image_size=tuple(description["image"]))
    other = build_model(dataclasses.replace(model.config, **changes)).eval()
    other.load_state_dict(model.state_dict())
    images = torch.from_numpy(arrays.pop("input")).permute(0, 3, 1, 2)
    return other, images, {key: torch.from_numpy(array) for key, array in arrays.items()}


def largest_error(output: Tensor, expected: Tensor) -> float:
    assert output.shape == expected.shape
    return (output - expected).abs().max().item()


# The original -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BITS)
def test_every_bit_intermediate_is_that_of_the_original(name: str, tmp_path: Path) -> None:
    for padding, logits in (("zeros", "logits_zeropad_maxpool"), ("lowest", "logits")):
        model, images, expected = fixture_model(name, tmp_path, max_pool_padding=padding)
        with torch.inference_mode():
            assert largest_error(model(images), expected[logits]) < 5e-5
    taps: dict[str, Tensor] = {}
    with torch.inference_mode():
        answer = model(images, taps=taps)
    description = load_fixture(name)[0]
    assert model.config.layers == tuple(description["depth"])
    assert model.config.width_factor == description["width_factor"]
    stages = {f"stage{number}" for number in range(1, len(model.config.layers) + 1)}
    assert set(taps) == stages | {"root", "pooled", "pre_logits", "logits"}
    assert torch.equal(taps["logits"], answer) and torch.equal(taps["pooled"], model.features(images))
    assert largest_error(taps["root"].permute(0, 2, 3, 1)[:1], expected["stem"]) < 5e-5
    for stage in stages:  # nothing norms these: values reach 85, and the original's own rounding 5e-5
        largest = taps[stage].abs().max().item()
        assert largest_error(taps[stage].mean((2, 3)), expected[f"{stage}_mean"]) < max(5e-5, 4e-6 * largest)
    assert largest_error(taps["pre_logits"], expected["pre_logits"]) < 5e-5


# Standardised convolutions ------------------------------------------------------------------------


@pytest.mark.parametrize("standardization", ["std", "variance"])
def test_kernels_are_standardised(standardization: Literal["std", "variance"]) -> None:
    conv = StdConv2d(8, 6, 3, padding="same", standardization=standardization, eps=0.5)
    nn.init.normal_(conv.weight, mean=3.0, generator=torch.Generator().manual_seed(0))
    kernels = conv.weight.detach().double().flatten(1)
    centred = kernels - kernels.mean(1, keepdim=True)
    std = kernels.std(1, correction=0, keepdim=True)
    expected = centred / (std + 0.5 if standardization == "std" else (std**2 + 0.5).sqrt())
    torch.testing.assert_close(conv.standardized().flatten(1).double(), expected, rtol=1e-5, atol=1e-6)
    half = conv.bfloat16().standardized()
    assert half.dtype == torch.bfloat16
    assert (half.flatten(1) - expected).abs().max() < 0.02


@pytest.mark.parametrize("standardization", ["std", "variance"])
def test_constant_kernels_have_finite_gradients(standardization: Literal["std", "variance"]) -> None:
    conv = StdConv2d(4, 4, 3, padding="same", standardization=standardization, eps=1e-5)
    nn.init.ones_(conv.weight)
    conv(torch.ones(1, 4, 5, 5)).sum().backward()
    assert conv.weight.grad is not None and conv.weight.grad.isfinite().all()


@pytest.mark.parametrize(("kernel", "stride"), [(1, 2), (3, 1), (3, 2), (7, 2)])
@pytest.mark.parametrize("size", [(1, 2), (7, 8), (8, 9), (5, 5)])
def test_same_padding_puts_the_odd_pixel_last(kernel: int, stride: int, size: tuple[int, int]) -> None:
    """Against windows written out: TensorFlow's first one starts half of the padding, rounded down, early."""
    conv = StdConv2d(1, 1, kernel, stride, padding="same", standardization="std", eps=1e-3)
    nn.init.normal_(conv.weight, generator=torch.Generator().manual_seed(0))
    image = torch.randn(size, generator=torch.Generator().manual_seed(1))
    output = conv(image[None, None])[0, 0]
    rows, columns = (-(-n // stride) for n in size)
    assert output.shape == (rows, columns)
    starts = [max((-(-n // stride) - 1) * stride + kernel - n, 0) // 2 for n in size]
    weights = conv.standardized()[0, 0]
    for r in range(rows):
        for c in range(columns):
            total = torch.zeros(())
            for i in range(kernel):
                for j in range(kernel):
                    y, x = r * stride + i - starts[0], c * stride + j - starts[1]
                    if 0 <= y < size[0] and 0 <= x < size[1]:
                        total = total + weights[i, j] * image[y, x]
            torch.testing.assert_close(output[r, c], total, rtol=1e-4, atol=1e-5)


# Sizes --------------------------------------------------------------------------------------------


def test_tokens_are_in_raster_order_and_surplus_is_cropped() -> None:
    """Right and bottom of the feature map, beyond the last whole patch, reach no token."""
    backbone = BackboneConfig((), width_factor=0.5)
    whole = ResNetStem(backbone, (1, 1), 6)
    whole.init_weights(torch.Generator().manual_seed(0))
    images = torch.randn(2, 3, 28, 20, generator=torch.Generator().manual_seed(1))  # a map of 7x5
    patches = ResNetStem(backbone, (2, 3), 6)
    patches.root.load_state_dict(whole.root.state_dict())
    patches.root_norm.load_state_dict(whole.root_norm.state_dict())
    with torch.inference_mode():
        nn.init.zeros_(patches.projection.weight)
        # Each patch's token is made of the last of its 2x3 positions alone.
        patches.projection.weight[:, :, 1, 2] = whole.projection.weight[:, :, 0, 0]
        assert patches.projection.bias is not None and whole.projection.bias is not None
        patches.projection.bias.copy_(whole.projection.bias)
        grid = whole(images).reshape(2, 7, 5, 6)
        tokens = patches(images)
    assert tokens.shape == (2, 3, 6)
    torch.testing.assert_close(tokens.reshape(2, 3, 1, 6), grid[:, 1:6:2, 2:3], rtol=1e-4, atol=1e-5)


# Training -----------------------------------------------------------------------------------------


def test_gradients_reach_every_parameter() -> None:
    stem = ResNetStem(BackboneConfig((1, 2), width_factor=0.5), (1, 1), 12)
    stem.init_weights(torch.Generator().manual_seed(0))
    for unit in stem.modules():
        if isinstance(unit, PostActivationUnit):
            nn.init.ones_(unit.norm3.weight)  # at zero, what stands before it has no gradient yet
    stem(torch.randn(2, 3, 33, 40)).square().mean().backward()
    models: list[nn.Module] = [stem]
    for mixing in ("convolution", "axial"):
        model = ResNet(dataclasses.replace(TINY, mixing=mixing), generator=torch.Generator().manual_seed(0))
        nn.init.normal_(model.get_parameter("head.weight"), std=0.1)  # a new one is zero
        images = torch.randn(3, 3, *TINY.image_size, generator=torch.Generator().manual_seed(2))
        F.cross_entropy(model(images), torch.tensor([0, 1, 2])).backward()  # type: ignore[no-untyped-call]
        models.append(model)
    for module in models:
        for name, parameter in module.named_parameters():
            assert parameter.grad is not None and parameter.grad.isfinite().all(), name
            assert parameter.grad.any(), name


def test_a_new_unit_of_a_hybrid_passes_its_input_on() -> None:
    """norm3's scale is zero; the second unit of a stage has no projection, and its input is at least 0."""
    shallow, deep = (ResNetStem(BackboneConfig((n,), width_factor=0.5), (1, 1), 8).eval() for n in (1, 2))
    for stem in (shallow, deep):
        stem.init_weights(torch.Generator().manual_seed(0))
    deep.load_state_dict(shallow.state_dict(), strict=False)
    images = torch.randn(1, 3, 32, 32)
    with torch.inference_mode():
        assert torch.equal(shallow(images), deep(images))


def test_weights_are_drawn_as_the_original_draws_them() -> None:
    model = ResNet(dataclasses.replace(TINY, layers=(1, 1, 1), width_factor=1))
    for name, parameter in model.named_parameters():
        if "norm" in name:
            assert (parameter == float(name.endswith("weight"))).all(), name
        elif "head" not in name:
            std = parameter[0].numel() ** -0.5
            assert parameter.std().item() == pytest.approx(std, rel=0.05), name
            assert parameter.abs().max() <= 2 / 0.8796 * std * 1.001, name
    assert isinstance(model.head, nn.Linear)
    assert not model.head.weight.any() and not model.head.bias.any()


# Errors -------------------------------------------------------------------------------------------


def test_impossible_resnets_backbones_and_requests_are_explained() -> None:
    changes: tuple[tuple[dict[str, Any], str], ...] = (
        ({"layers": ()}, "at least one stage"),
        ({"layers": (2, 0)}, "at least one unit"),
        ({"width_factor": 0.75}, "32 groups"),
        ({"mixing": "axial", "num_heads": 3}, "3 heads"),
        ({"num_classes": -1}, "num_classes"),
        ({"groups": 0}, "groups is at least 1"),
        ({"stage_widths": (48,)}, "stage_widths"),
        ({"stage_widths": (48, 50), "root_width": 32}, "GroupNorm"),
        ({"stage_widths": (64, 128), "root_width": 20, "groups": 12}, "GroupNorm"),
    )
    for change, message in changes:
        refused(message, dataclasses.replace, TINY, **change)
    refused("at least one unit", BackboneConfig, (3, 0))
    refused("32 groups", BackboneConfig, width_factor=0.3)
    refused(r"\(B, 3, 37, 50\)", ResNet(TINY), torch.zeros(1, 3, 50, 37))
    refused("no attention weights", ResNet(TINY), torch.zeros(1, 3, 37, 50), taps={}, attention_weights=True)


def test_groups_and_widths_are_configuration() -> None:
    config = ResNetConfig((32, 32), (1, 2), 5, root_width=24, stage_widths=(48, 144), groups=12)
    model = ResNet(config, torch.Generator().manual_seed(0))
    norms = [module for module in model.modules() if isinstance(module, torch.nn.GroupNorm)]
    assert {norm.num_groups for norm in norms} == {12}
    taps: dict[str, torch.Tensor] = {}
    model(torch.randn(2, 3, 32, 32), taps=taps)
    assert [taps[name].shape[1] for name in ("root", "stage1", "stage2")] == [24, 48, 144]
    maps = model.feature_maps(torch.randn(2, 3, 32, 32), [0, -1])
    assert [tuple(each.shape) for each in maps] == [(2, 48, 8, 8), (2, 144, 4, 4)]
