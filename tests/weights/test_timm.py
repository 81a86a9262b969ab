"""timm's folders there and back: parts of ViTs against a slow forward pass, preprocessing, and ResNets."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.helpers.random_models import random_model
from tests.helpers.refusals import refused
from tests.helpers.timm_files import TINY, config_json, folder_of, state
from vitkit import load_model
from vitkit.data.config import Preprocessing
from vitkit.models.config import BackboneConfig, ResNetConfig
from vitkit.weights.format_names import Format
from vitkit.weights.formats.timm import _vit_arguments
from vitkit.weights.loading import save_model
from vitkit.weights.model_card import card_of, preprocessing_of

WIDTH = TINY.width
NO_SHIFTS: dict[str, tuple[int, ...]] = {
    f"{name}.bias": () for name in ("norm", *(f"blocks.{i}.norm{j}" for i in range(2) for j in (1, 2)))
}
NO_BIAS: dict[str, tuple[int, ...]] = {f"blocks.{i}.attn.qkv.bias": () for i in range(2)}


def test_attention_pooling_sees_the_class_token_only_if_timm_is_told(tmp_path: Path) -> None:
    config = replace(TINY, pool="map", extra_class_token=True)
    save_model(random_model(config), tmp_path, format="timm")
    written = json.loads((tmp_path / "config.json").read_text())["model_args"]
    assert written["pool_include_prefix"] is True and load_model(tmp_path).config == config


def test_the_bias_that_clip_has_not_moves_into_the_positions(tmp_path: Path) -> None:
    model = random_model(replace(TINY, norm_before_blocks=True))
    save_model(model, tmp_path, format="timm")
    tensors, ours = load_file(tmp_path / "model.safetensors"), model.state_dict()
    assert "patch_embed.proj.bias" not in tensors and ours["stem.bias"].any()
    moved = tensors["pos_embed"] - ours["positions.0.embedding"]
    assert not moved[:, :1].any()
    torch.testing.assert_close(moved[0, 1:], ours["stem.bias"].expand(12, -1))
    config = replace(TINY, norm_before_blocks=True, position="none")
    refused("without position embeddings", save_model, random_model(config), tmp_path / "no", "timm")


def test_norms_without_a_shift_are_not_guessed(tmp_path: Path) -> None:
    """RMSNorm, a LayerNorm without bias and others have the same tensors, and compute something else."""
    torch.save(state(extra=NO_SHIFTS), tmp_path / "vit.pth")
    said = "have no shift, and no norm_layer in config"
    refused(said, load_model, tmp_path / "vit.pth", num_heads=4, image_size=(12, 16))


@pytest.mark.parametrize(
    ("architecture", "width", "heads", "gelu", "biased"),
    [
        ("deit3_medium_patch16_224", 512, 8, "erf", True),
        ("vit_base_patch16_plus_240", 896, 14, "erf", True),
        ("vit_so150m2_patch16_reg1_gap_256", 832, 13, "erf", False),
        ("vit_betwixt_patch16_gap_256", 640, 10, "erf", False),
        ("vit_giant_patch14_reg4_dinov2", 1536, 24, "erf", True),
        ("vit_tiny_patch16_224", 48, 3, "erf", True),
        ("vit_base_patch16_224.augreg_in21k", 48, 12, "erf", True),
        ("vit_base_patch16_gap_224", 48, 16, "erf", True),
        ("vit_so400m_patch14_siglip_gap_224", 48, 16, "erf", True),
        ("vit_so400m_patch16_siglip_gap_256", 48, 16, "tanh", True),
    ],
)
def test_a_name_says_width_heads_gelu_and_biases(
    architecture: str, width: int, heads: int, gelu: str, biased: bool, tmp_path: Path
) -> None:
    described = config_json(architecture)
    described["model_args"] = {"img_size": [12, 16]} | ({"embed_dim": width} if width == 48 else {})
    config = load_model(folder_of(tmp_path, state(width, extra={} if biased else NO_BIAS), described)).config
    assert (config.width, config.num_heads, config.gelu) == (width, heads, gelu)


# timm's folders there and back: every variant with its preprocessing, and what timm cannot build

NARROW_BIT = ResNetConfig(
    (32, 48), (3, 4, 6, 3), 5, root_width=32, stage_widths=(128, 256, 128, 384), standardization_eps=1e-8
)


def test_names_of_hybrids_and_bits_are_those_of_timm(tmp_path: Path) -> None:
    backbone = BackboneConfig((2, 2, 2, 2), 1.0, 1e-5, "variance", 1e-8)
    config = replace(TINY, image_size=(64, 96), patch_size=(1, 1), backbone=backbone)
    save_model(random_model(config), tmp_path, format="timm")
    hybrid = {name: tuple(tensor.shape) for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    unit = "patch_embed.backbone.stages.1.blocks.0"
    assert hybrid["patch_embed.backbone.stem.conv.weight"] == (64, 3, 7, 7)
    assert hybrid["patch_embed.backbone.stem.norm.bias"] == (64,)
    assert hybrid[f"{unit}.conv2.weight"] == (128, 128, 3, 3)
    assert hybrid[f"{unit}.downsample.conv.weight"] == (512, 256, 1, 1)
    assert hybrid[f"{unit}.downsample.norm.weight"] == (512,)
    assert hybrid["patch_embed.proj.weight"] == (32, 2048, 1, 1)
    save_model(random_model(NARROW_BIT), tmp_path, format="timm")
    bit = {name: tuple(tensor.shape) for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    assert bit["stem.conv.weight"] == (32, 3, 7, 7)
    assert bit["stages.3.blocks.2.norm3.weight"] == (96,)
    assert bit["head.fc.weight"] == (5, 384, 1, 1)
    assert "stages.0.blocks.0.downsample.norm.weight" not in bit
    described = json.loads((tmp_path / "config.json").read_text())
    assert described["architecture"] == "resnetv2_50x1_bit"
    assert described["model_args"]["channels"] == [128, 256, 128, 384]
    assert described["model_args"]["stem_chs"] == 32


def test_what_config_json_says_is_taken_over(tmp_path: Path) -> None:
    config = {**config_json(), "label_names": ["a", "b", "c", "d", "e"]}
    model = load_model(folder_of(tmp_path, state(), config))
    assert model.config == replace(TINY, image_mean=(0.485, 0.456, 0.406), image_std=(0.229, 0.224, 0.225))
    assert model.card.class_names == ("a", "b", "c", "d", "e")
    assert card_of(model).origin["architecture"] == "vit_tiny_patch16_224"
    preprocessing = preprocessing_of(model)
    assert preprocessing == Preprocessing((12, 16), "shortest", 0.9)
    assert not card_of(model).assumed


def test_old_files_with_a_tanh_layer_keep_it(tmp_path: Path) -> None:
    extra = {"pre_logits.fc.weight": (7, 32), "pre_logits.fc.bias": (7,), "head.weight": (5, 7)}
    tensors = state(extra=extra)
    model = load_model(folder_of(tmp_path, tensors, config_json()))
    assert model.config.representation_size == 7
    assert torch.equal(model.state_dict()["pre_logits.weight"], tensors["pre_logits.fc.weight"])


def test_any_mlp_is_said_by_a_ratio() -> None:
    for width in (32, 36, 192, 1152, 1408, 1664):
        for mlp_dim in range(1, 6 * width, 29):
            arguments = _vit_arguments(replace(TINY, width=width, num_heads=1, mlp_dim=mlp_dim))
            assert int(width * arguments["mlp_ratio"]) == mlp_dim


@pytest.mark.parametrize(("format", "message"), [("timm", "own format"), ("huggingface", "another folder")])
def test_a_model_of_our_own_format_is_not_overwritten(format: Format, message: str, tmp_path: Path) -> None:
    model = random_model(TINY)
    before = (save_model(model, tmp_path) / "model.safetensors").read_bytes()
    refused(message, save_model, model, tmp_path, format)
    assert (tmp_path / "model.safetensors").read_bytes() == before


# ResNets: BiT by its name


@pytest.mark.parametrize(
    ("shapes", "changes", "message"),
    [
        ({"stem.conv.weight": (64,)}, {}, "stem.conv.weight: .*4 axes"),
        ({"head.fc.weight": (5, 384)}, {}, "head.fc.weight: .*4 axes"),
        ({"head.fc.weight": (5, 384, 2, 1)}, {}, r"head.weight: expected \(5, 384\), found \(5, 768\)"),
        ({"stem.conv.weight": None, "stem.conv1.weight": (16, 3, 3, 3)}, {}, "a stem of three convolutions"),
        ({}, {"architecture": "resnetv2_50d_gn"}, "resnetv2_50d_gn is no BiT"),
        ({}, {"model_args": {"stem_type": "same"}}, "stem_type='same'"),
        ({}, {"model_args": {"avg_down": True}}, "avg_down=True"),
        ({}, {"model_args": {"preact": False}}, "preact=False"),
        ({}, {"model_args": {"bottle_ratio": 0.5}}, "bottle_ratio=0.5"),
        ({}, {"model_args": {"act_layer": "silu"}}, "act_layer='silu'"),
        ({}, {"model_args": {"output_stride": 16}}, "output_stride=16"),
    ],
)
def test_a_resnet_that_is_misshapen_or_no_bit_is_refused(
    shapes: dict[str, tuple[int, ...] | None], changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    save_model(random_model(NARROW_BIT), tmp_path, format="timm")
    tensors = load_file(tmp_path / "model.safetensors")
    for key, shape in shapes.items():
        if shape is None:
            del tensors[key]
        else:
            tensors[key] = torch.zeros(shape)
    folder_of(tmp_path, tensors, json.loads((tmp_path / "config.json").read_text()) | changes)
    refused(message, load_model, tmp_path)


def test_a_bit_without_a_config_is_asked_for_its_size(tmp_path: Path) -> None:
    save_model(random_model(NARROW_BIT), tmp_path, format="timm")
    (tmp_path / "config.json").unlink()
    refused("give image_size", load_model, tmp_path)
    assert load_model(tmp_path, image_size=32).config.standardization_eps == 1e-8
