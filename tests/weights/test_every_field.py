"""No format forgets a field of a configuration in silence: it is carried, said to be lost, or refused."""

import dataclasses
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from tests.helpers.random_models import random_model, same_bits
from tests.helpers.refusals import refused
from vitkit import load_model
from vitkit.errors import VitkitError
from vitkit.models.build import build_empty, build_model
from vitkit.models.config import (
    DINOV3_ROTARY,
    PE_ROTARY,
    VIT5_ROTARY,
    BackboneConfig,
    ResNetConfig,
    ViTConfig,
)
from vitkit.models.zoo import ModelConfig
from vitkit.weights.format_names import Format
from vitkit.weights.loading import save_model
from vitkit.weights.table import IMAGENET_MEAN, IMAGENET_STD, find_format

FORMATS: tuple[Format, ...] = get_args(Format)

VIT = ViTConfig((32, 32), (8, 8), width=32, depth=2, num_heads=4, mlp_dim=44, num_classes=5)
RESNET = ResNetConfig(image_size=(32, 32), layers=(1, 1), num_classes=5, width_factor=0.5)
USUAL: dict[Format, tuple[ViTConfig, ResNetConfig]] = {
    "torchvision": (replace(VIT, gelu="erf", image_mean=IMAGENET_MEAN, image_std=IMAGENET_STD), RESNET),
    "huggingface": (VIT, replace(RESNET, standardization_eps=1e-8)),
    # timm has names for whole architectures alone, but narrow ones are said by arguments.
    "timm": (
        VIT,
        ResNetConfig(
            (32, 32), (3, 4, 6, 3), 5, root_width=32, stage_widths=(128,) * 4, standardization_eps=1e-8
        ),
    ),
}
"""Models whose arithmetic a format says without loss, where it is not `VIT` and `RESNET`."""

VIT_CHANGES: dict[str, tuple[dict[str, Any], ...]] = {
    "image_size": ({"image_size": (48, 32)}, {"image_size": (33, 32)}),
    "patch_size": ({"patch_size": (8, 4)},),
    "width": ({"width": 64},),
    "depth": ({"depth": 3},),
    "num_heads": ({"num_heads": 2},),
    "mlp_dim": ({"mlp_dim": 40}, {"mlp_dim": 97, "width": 36}),
    "num_classes": ({"num_classes": 4}, {"num_classes": 0}),
    "in_channels": ({"in_channels": 1, "image_mean": (0.5,), "image_std": (0.5,)},),
    "backbone": (
        {"backbone": BackboneConfig(()), "patch_size": (2, 2)},
        {"backbone": BackboneConfig((1, 1), width_factor=0.5), "patch_size": (1, 1)},
        {"backbone": BackboneConfig((), norm_eps=0.1), "patch_size": (2, 2)},
        {"backbone": BackboneConfig((), 1.0, 1e-5, "variance", 1e-8), "patch_size": (2, 2)},
        {"backbone": BackboneConfig((2, 2, 2, 2), 1.0, 1e-5, "variance", 1e-8), "patch_size": (1, 1)},
    ),
    "pool": tuple({"pool": pool} for pool in ("mean", "max", "map", "none", "token+mean")),
    "pool_heads": ({"pool": "map", "pool_heads": 2},),
    "register_tokens": ({"register_tokens": 2}, {"register_tokens": 2, "pool": "map"}),
    "class_token_position": (
        {"class_token_position": False},
        {"class_token_position": False, "register_tokens": 4},
        {"class_token_position": False, "register_tokens": 4, "pool": "mean"},
    ),
    "position": (
        {"position": "none"},
        {"position": "learned_2d"},
        {"position": "relative"},
        {"position": "relative_bias"},
        {"position": "sincos_2d"},
        {"position": "sincos_2d", "pool": "mean"},
        {"position": "sincos_2d_mae"},
        {"position": "sincos_2d_mae", "pool": "mean"},
    ),
    "rotary": (
        {"rotary": DINOV3_ROTARY},
        {"rotary": PE_ROTARY},
        {"rotary": VIT5_ROTARY, "register_tokens": 4},
    ),
    "position_at": ({"position_at": "every_layer"}, {"position_at": "every_layer_shared"}),
    "attention": ({"attention": "axial", "pool": "mean"},),
    "extra_class_token": tuple({"extra_class_token": True, "pool": pool} for pool in ("mean", "max", "map")),
    "norm": ({"norm": "rms"}, {"norm": "rms", "norm_eps": 1e-5}, {"norm": "rms", "pool": "map"}),
    "qk_norm": ({"qk_norm": True}, {"qk_norm": True, "norm": "rms"}),
    "qkv_bias": ({"qkv_bias": False},),
    "mlp": ({"mlp": "swiglu"},),
    "mlp_norm": ({"mlp": "swiglu", "mlp_norm": True},),
    "layer_scale": ({"layer_scale": 0.5},),
    "norm_before_blocks": ({"norm_before_blocks": True}, {"norm_before_blocks": True, "position": "none"}),
    "norm_after_pooling": ({"norm_after_pooling": True}, {"norm_after_pooling": True, "pool": "mean"}),
    "final_norm": ({"final_norm": False},),
    "representation_size": ({"representation_size": 7}, {"representation_size": 7, "num_classes": 0}),
    "dropout": ({"dropout": 0.1},),
    "attention_dropout": ({"attention_dropout": 0.1},),
    "stem_channels": ({"stem_channels": (8, 16, 24)}, {"stem_channels": (8, 8, 16, 24)}),
    "stem_strides": (
        {"stem_channels": (8, 8, 16, 24), "stem_strides": (2, 1, 2, 2)},
        {"stem_channels": (8, 16, 24), "stem_strides": (2, 2, 2)},
    ),
    "drop_path": ({"drop_path": 0.1},),
    "gelu": ({"gelu": "erf"}, {"gelu": "quick"}),
    "norm_eps": ({"norm_eps": 1e-5}, {"norm_eps": 0.1}),
    "image_mean": ({"image_mean": (0.1, 0.2, 0.3)},),
    "image_std": ({"image_std": (0.1, 0.2, 0.3)},),
}
RESNET_CHANGES: dict[str, tuple[dict[str, Any], ...]] = {
    "image_size": ({"image_size": (48, 32)},),
    "layers": ({"layers": (2, 1)},),
    "num_classes": ({"num_classes": 4}, {"num_classes": 0}),
    "width_factor": ({"width_factor": 1.0}, {"width_factor": 1.5}),
    "root_width": ({"root_width": 32}, {"root_width": 96}),
    "stage_widths": ({"stage_widths": (128, 384)}, {"stage_widths": (128, 256)}),
    "groups": ({"groups": 16},),
    "in_channels": ({"in_channels": 1, "image_mean": (0.5,), "image_std": (0.5,)},),
    "mixing": ({"mixing": "axial"},),
    "num_heads": ({"num_heads": 4}, {"num_heads": 4, "mixing": "axial"}),
    "norm_eps": ({"norm_eps": 0.1},),
    "standardization_eps": ({"standardization_eps": 1e-3},),
    "max_pool_padding": ({"max_pool_padding": "lowest"},),
    "image_mean": ({"image_mean": (0.1, 0.2, 0.3)},),
    "image_std": ({"image_std": (0.1, 0.2, 0.3)},),
}
EQUIVALENT = {
    "class_token_position": "the released files give the class token a position of zeros in its place",
    "num_heads": "a ResNet without attention has no use for it",
    "qkv_bias": "biases of zeros are none",
    "root_width": "the width factor says the same",
    "stage_widths": "the width factor says the same",
    "width_factor": "the channels say the same",
}
"""Fields that may come back in another form, and why the model is the same; its logits are compared."""
REFUSALS = {"vitkit": 0, "official": 49, "big_vision": 66, "huggingface": 54, "timm": 29, "torchvision": 77}
"""How many of the changes each format has no place for."""
OTHER_NAMES = {
    "num_classes": "without a head",
    "representation_size": "tanh layer before the head|without a head",
    "position": "the image size, which is to be given",
    "drop_path": r"stochastic depth 0\.1, which training alone uses",
}
"""How a format names a field that it cannot say, where it has neither a word of its name nor its value."""


def test_every_field_is_changed_here() -> None:
    assert VIT_CHANGES.keys() == {field.name for field in dataclasses.fields(ViTConfig)}
    assert RESNET_CHANGES.keys() == {field.name for field in dataclasses.fields(ResNetConfig)}


def is_named(name: str, change: dict[str, Any], resnet: bool, phrases: list[str]) -> bool:
    """Whether the phrases of what a format cannot say name a field, by a word of its name or by its value."""
    said = "; ".join(phrases).lower()
    names = [word for field in change for word in field.split("_")]
    values = [word for value in change.values() for word in re.findall(r"[\w.-]+", str(value).lower())]
    return (
        any(re.search(rf"\b{re.escape(word)}", said) for word in (*names, *values))
        or re.search(OTHER_NAMES.get(name, "^$"), said) is not None
        or (resnet and "resnets" in said)
    )


def changed(format: Format, name: str, number: int, resnet: bool) -> tuple[ModelConfig, ModelConfig]:
    """Give a format's usual model, and the same with one field changed."""
    vit, usual = USUAL.get(format, (VIT, RESNET))
    if not resnet:
        return vit, replace(vit, **VIT_CHANGES[name][number])
    change = dict(RESNET_CHANGES[name][number])
    stages = len(change.get("stage_widths", ()))
    if stages:  # repeated for a format whose usual model has more stages
        change["stage_widths"] = (change["stage_widths"] * len(usual.layers))[: len(usual.layers)]
    if "layers" in change and usual.stage_widths is not None:
        change["stage_widths"] = usual.stage_widths[: len(change["layers"])]
    return usual, replace(usual, **change)


CASES = [
    pytest.param(name, number, resnet, id=f"{'ResNet' if resnet else 'ViT'} {name} {number}")
    for resnet, table in ((False, VIT_CHANGES), (True, RESNET_CHANGES))
    for name, changes in table.items()
    for number in range(len(changes))
]


SAME = {
    "norm_after_pooling 0": "of the class token alone the norm is one before and after the pooling",
    "stem_strides 1": "these are the strides of three convolutions",
    "root_width 0": "the width factor says the same",
    "stage_widths 1": "the width factor says the same",
    "num_heads 0 True": "a ResNet without attention has none",
}
"""Changes that change no number, and why."""


@pytest.mark.parametrize(("name", "number", "resnet"), CASES)
def test_a_field_changes_what_is_computed(name: str, number: int, resnet: bool) -> None:
    """A field that no part reads would be recorded, and do nothing."""
    usual, config = changed("vitkit", name, number, resnet)
    for other in (RESNET_CHANGES if resnet else VIT_CHANGES)[name][number].keys() - {name}:
        with suppress(VitkitError):  # statistics of one channel
            usual = replace(usual, **{other: getattr(config, other)})
    plain, model = random_model(usual).train(), build_model(config).train()
    shapes = [{key: value.shape for key, value in m.state_dict().items()} for m in (plain, model)]
    if shapes[0] == shapes[1] and usual.image_size == config.image_size:
        model.load_state_dict(plain.state_dict())
        pixels = torch.arange(2 * 3 * 32 * 32).remainder(251).view(2, 3, 32, 32).to(torch.uint8)
        same = {f"{name} {number}", f"{name} {number} {resnet}"} & {*SAME}
        assert torch.equal(plain(pixels), model(pixels)) == bool(same)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("name", "number", "resnet"), CASES)
def test_a_field_is_carried_or_said_to_be_lost_or_refused(
    name: str, number: int, resnet: bool, format: Format, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chosen = find_format(format)
    usual, config = changed(format, name, number, resnet)
    change = (RESNET_CHANGES if resnet else VIT_CHANGES)[name][number]
    if lacking := chosen.unsupported(config):
        assert is_named(name, change, resnet, lacking)
        refused(re.escape("; ".join(lacking)), save_model, build_empty(config), tmp_path / "file", format)
        assert not (tmp_path / "file").exists()
        return
    model = random_model(config)
    heads = config.num_heads if isinstance(config, ViTConfig) else None
    path = save_model(model, tmp_path / "file", format)
    lost = [phrase for phrase in chosen.lost_numerics(config) if phrase not in chosen.lost_numerics(usual)]
    if lost:
        assert is_named(name, change, resnet, lost) and "; ".join(lost) in caplog.text
    elif not chosen.lost_numerics(usual):
        assert not caplog.text
    again = load_model(path, image_size=config.image_size, num_heads=heads)
    if lost:
        return
    if name not in EQUIVALENT:
        assert getattr(again.config, name) == getattr(config, name)
        if format != "big_vision":
            assert again.config == config
            assert same_bits(again, model) or (name, format) == ("norm_before_blocks", "timm")
    pixels = torch.randint(
        0, 256, (2, config.in_channels, *config.image_size), generator=torch.Generator().manual_seed(0)
    ).to(torch.uint8)
    with torch.no_grad():
        logits, expected = again(pixels), model(pixels)
    torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))


def test_each_format_has_no_place_for_so_many_changes() -> None:
    counts = {}
    for format in FORMATS:
        configs = [changed(format, *case.values)[1] for case in CASES]  # type: ignore[arg-type]
        counts[format] = sum(bool(find_format(format).unsupported(config)) for config in configs)
    assert counts == REFUSALS


@pytest.mark.parametrize("format", [format for format in FORMATS if format != "vitkit"])
def test_a_parameter_without_a_name_in_a_format_is_never_left_out(format: Format, tmp_path: Path) -> None:
    model = random_model(USUAL.get(format, (VIT, RESNET))[0])
    model.register_parameter("exponent", torch.nn.Parameter(torch.ones(1)))
    refused("no name for exponent", save_model, model, tmp_path / "file", format)
