"""The grammar of names."""

import dataclasses
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers.refusals import refused
from vitkit.models.build import build_empty, build_model
from vitkit.models.config import BackboneConfig, ResNetConfig
from vitkit.models.zoo import (
    FAMILIES,
    NAMES,
    ModelConfig,
    changed_name,
    list_models,
    model_config,
    name_of,
    vit_config,
    zoo_name,
)
from vitkit.runs.folder import is_checkpoint
from vitkit.weights.create import create_model


def test_names_say_patches_pooling_and_what_the_files_say() -> None:
    config = vit_config("ViT-96x6x3/8x4", num_classes=7, image_size=(24, 32))
    assert (config.patch_size, config.grid, config.num_classes) == ((8, 4), (3, 8), 7)
    assert (config.depth, config.width, config.mlp_dim, config.num_heads) == (6, 96, 384, 3)
    assert vit_config("ViT-1024x8x16x2048/32").mlp_dim == 2048  # Figure 8 starts from it
    assert vit_config("ViT-B/16").num_heads == 12  # Table 1; other sizes are held by the parameters
    assert vit_config("ViT-Ti/16-gap").pool == vit_config("R50+ViT-B/32-gap").pool == "mean"
    assert vit_config("ViT-B/16") == vit_config("ViT-B_16")
    assert vit_config("ViT-S/32-gap") == vit_config("ViT-S_32-gap-norep")
    config = vit_config("ViT-S/16-map-reg4-pos2d-shared")
    assert (config.pool, config.register_tokens) == ("map", 4)
    assert (config.position, config.position_at) == ("learned_2d", "every_layer_shared")
    refused(r"no option is named 'gpa'.*'gap'", vit_config, "ViT-S/16-gpa")


def test_every_listed_name_can_be_made() -> None:
    assert list_models() == sorted(NAMES)
    for name in list_models():
        with torch.device("meta"):
            model = create_model(name, num_classes=3, image_size=64)
        assert model.config.num_classes == 3 and model.config.image_size == (64, 64)
        assert model_config(name_of(model.config), 3, 64) == model.config  # b is S by another name
    assert list_models("ViT-L*") == ["ViT-L/16", "ViT-L/32"]


def test_hybrids_are_named_by_their_total_stride() -> None:
    for name, layers, grid, token in (
        ("R50+ViT-B/16", (3, 4, 9), (14, 14), (16, 16)),
        ("R50+ViT-B/32", (3, 4, 6, 3), (7, 7), (32, 32)),
        ("R26+ViT-S/32", (2, 2, 2, 2), (7, 7), (32, 32)),
        ("R+ViT-Ti/16", (), (7, 7), (32, 32)),
    ):
        config = vit_config(name)
        assert config.backbone is not None
        assert (config.backbone.layers, config.grid, config.token_size) == (layers, grid, token)
    assert vit_config("R50x1+ViT-B/16") == vit_config("R50+ViT-B_16")  # as the paper's Table 6 writes it


def test_resnets_and_axial_models() -> None:
    config = model_config("BiT-R152x4", 10, 480)
    assert isinstance(config, ResNetConfig)
    assert (config.layers, config.width, config.image_size) == ((3, 8, 36, 3), 8192, (480, 480))
    assert model_config("BiT-M-R50x1") == model_config("BiT-R50x1")  # as the files are called
    axial = model_config("AxialResNet-50")
    assert isinstance(axial, ResNetConfig) and axial.mixing == "axial"
    assert vit_config("Axial-ViT-B/32").attention == "axial"


def test_resnets_are_named_by_the_units_of_their_stages() -> None:
    config = model_config("BiT-R2-1-3x0.5", 10, 64)
    assert isinstance(config, ResNetConfig)
    assert (config.layers, config.stage_channels) == ((2, 1, 3), (128, 256, 512))
    assert model_config("BiT-R3-4-6-3x1") == model_config("BiT-R50x1")
    for name, patch, grid in (
        ("R1-1-1x0.5+ViT-32x2x2/16", (1, 1), (4, 4)),
        ("R1-1x0.5+ViT-32x2x2/16", (2, 2), (4, 4)),
    ):
        hybrid = vit_config(name, 10, 64)
        assert hybrid.backbone is not None and hybrid.backbone.root_channels == 32
        assert (hybrid.patch_size, hybrid.grid, hybrid.token_size) == (patch, grid, (16, 16))
        assert build_model(hybrid)(torch.zeros(1, 3, 64, 64)).shape == (1, 10)
    assert vit_config("R2-2-2-2+ViT-B/32") == vit_config("R26+ViT-B/32")
    backbone = vit_config("R50x2+ViT-B/16").backbone
    assert backbone is not None and backbone.root_channels == 128


def test_arithmetic_does_not_change_a_name() -> None:
    config = vit_config("R50+ViT-B/16", 7, 384)
    assert config.backbone is not None
    other = dataclasses.replace(
        config, gelu="erf", norm_eps=1e-12, backbone=dataclasses.replace(config.backbone, norm_eps=1e-5)
    )
    assert name_of(other) == "R50+ViT-B/16"
    assert name_of(vit_config("ViT-S/8x4", image_size=8)) == "ViT-S/8x4"  # smaller than any listed patch


@pytest.mark.parametrize(
    "name", ["ViT-96x6x3/4", "ViT-64x4x4x128/4-gap-reg2", "ViT-32x2x4/4x8", "ViT-64x2x4/8-conv"]
)
def test_a_model_that_is_not_listed_is_named_by_its_shape(name: str) -> None:
    """Another library's format says the shape alone; the grammar has no channels of a stem."""
    assert name_of(vit_config(name, 10, 64)) == ("" if "conv" in name else name)


WRONG_NAMES = [
    ("ViT-B/61x", "ViT-B/16"),
    ("ViT-X/16", "Did you mean 'ViT-.*/16'"),
    ("ViT-96x6/4", "96x6x3"),
    ("R50+ViT-B/8", "total stride of 16 or 32"),
    ("R51+ViT-B/16", "R26, R50"),
    ("R1-1-1x0.5+ViT-64x2x2/8", "3 stages has a stride of 16, .* found 8x8"),
    ("R1-0+ViT-64x2x2/8", "at least one unit"),
    ("R1-1x0.3+ViT-64x2x2/8", "0.5, 1, 1.5"),
    ("ViT-96x6x7/4", "cannot be divided among 7 heads"),
    # More or less than an architecture:
    ("vit-b/32", "Did you mean 'ViT-b/32' or 'ViT-B/32'"),
    ("vit_base_patch16_224.augreg_in21k", "called 'ViT-B/16'"),
    ("vit_tiny_patch16_clip_224", "reads its weights from hf:timm/vit_tiny_patch16_clip_224.TAG."),
    ("vit_small_patch14_dinov2.lvd142m", "from hf:timm/vit_small_patch14_dinov2.lvd142m."),
    ("resnet18", "vitkit models lists the names."),
]


@pytest.mark.parametrize(("name", "message"), WRONG_NAMES)
def test_a_wrong_name_is_told_the_nearest(name: str, message: str) -> None:
    refused(message, model_config, name)


@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("vit-b/16", "ViT-B/16"),
        ("bit-r50X1", "BiT-R50x1"),
        ("vit_b_32", "ViT-B/32"),
        ("vit_base_patch16_224", "ViT-B/16"),
        ("google/vit-base-patch16-224", "ViT-B/16"),
        ("vit_tiny_r_s16_p8_224", "R+ViT-Ti/16"),
        ("resnetv2_101x3_bitm", "BiT-R101x3"),
        ("ViT-B_16", "ViT-B_16"),
        ("ViT-b/16", "ViT-b/16"),
        ("vit-b/32", "vit-b/32"),
    ],
)
def test_a_name_in_other_letters_or_of_another_library_is_taken(name: str, here: str) -> None:
    assert zoo_name(name) == here
    if name != "vit-b/32":
        assert model_config(name, 10, 64) == model_config(here, 10, 64)
        assert is_checkpoint(name) is False


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("ViT-B/16", {}, "ViT-B/16"),
        ("ViT-B/16", {"gelu": "erf", "dropout": 0.1, "representation_size": 7}, "ViT-B/16"),
        ("ViT-B/16", {"pool": "mean"}, "ViT-B/16-gap"),
        ("ViT-b/32", {"position": "none", "register_tokens": 2}, "ViT-b/32-nopos-reg2"),
        ("ViT-64x4x4/4", {"mlp_dim": 128}, "ViT-64x4x4x128/4"),
        ("ViT-S/16", {"norm": "rms", "qk_norm": True}, "ViT-S/16-rms-qknorm"),
        ("ViT-5-S/16", {"pool": "mean", "depth": 6}, "ViT-5-384x6x6/16-gap"),
        ("ViT-5-S/16", {"qk_norm": False}, ""),
        ("ViT-S/16", {"layer_scale": 0.1}, ""),  # the grammar has no word for it
        ("BiT-R50x1", {}, "BiT-R50x1"),
    ],
)
def test_a_changed_architecture_has_another_name(name: str, changes: dict[str, Any], expected: str) -> None:
    config = dataclasses.replace(model_config(name, 10, 64), **changes)
    assert changed_name(name, config) == expected


def test_sizes_may_be_lists_and_have_one_number() -> None:
    for given, size in (([64, 32], (64, 32)), ([64], (64, 64)), ((48,), (48, 48)), (32, (32, 32))):
        config = model_config("ViT-Ti/16", 3, given)  # type: ignore[arg-type]
        assert config.image_size == size and hash(config)
    for wrong in ((16, 16, 3), ()):
        refused(r"image_size must be \(height, width\)", model_config, "ViT-Ti/16", 3, wrong)
    for std in ([float("nan")] * 3, (np.float32("inf"),) * 3):
        message = r"image_std(: expected a finite number| is a number above 0), found"
        refused(message, dataclasses.replace, model_config("ViT-Ti/16"), image_std=std)


# What a configuration answers for its family, so that nothing else asks which one it is

VIT = vit_config("ViT-16x2x2/4", 5, (16, 12))
HYBRID = replace(vit_config("R26+ViT-16x2x2/32", 5, 64), backbone=BackboneConfig((1, 2), 0.5))
BIT = ResNetConfig((33, 34), (1, 2), 5, 0.5)
AXIAL = replace(BIT, mixing="axial")
AXIAL_VIT = replace(VIT, attention="axial", pool="mean")


@pytest.mark.parametrize("name", NAMES)
def test_the_first_filters_of_every_model_are_known(name: str) -> None:
    config = model_config(name)
    model = build_empty(config)
    filters = [key for key, _ in model.named_parameters() if key in config.first_filters]
    assert len(filters) == 1
    assert dict(model.named_parameters())[filters[0]].shape[1] == config.in_channels
    assert FAMILIES[config.family] is type(config)


def test_a_new_head_is_linear() -> None:
    config = replace(VIT, representation_size=8).with_new_head(3)
    assert (config.num_classes, config.representation_size) == (3, None)
    assert BIT.with_new_head(3) == replace(BIT, num_classes=3)


def test_positions_alone_are_fitted_to_another_size() -> None:
    """This is an axial ResNet; axial ViTs are among the variants."""
    model, larger = build_model(AXIAL), build_model(replace(AXIAL, image_size=(65, 40)))
    tensors = dict(model.named_parameters())
    fitted = larger.fit_positions(tensors, AXIAL.position_extent[1], "original")
    changed = {key for key, value in larger.named_parameters() if value.shape != tensors[key].shape}
    assert changed <= fitted.keys()
    assert fitted and all("relative" in key for key in fitted)
    larger.load_state_dict({**tensors, **fitted}, strict=True)


@pytest.mark.parametrize("config", [VIT, replace(VIT, stem_channels=(8, 16)), AXIAL_VIT, HYBRID, BIT, AXIAL])
def test_the_generator_decides_the_weights(config: ModelConfig) -> None:
    weights, same, other = (
        build_model(config, torch.Generator().manual_seed(seed)).state_dict() for seed in (1, 1, 2)
    )
    assert all(torch.equal(weights[key], same[key]) for key in weights)
    drawn = [key for key in weights if "norm" not in key and weights[key].any()]
    assert drawn and not any(torch.equal(weights[key], other[key]) for key in drawn)
