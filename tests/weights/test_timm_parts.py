"""The parts of timm's later ViTs, both ways, against a slow forward pass over the tensors of a file."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.helpers.random_models import random_model
from tests.helpers.timm_files import TINY, config_json, folder_of, slow_logits, state
from vitkit import load_model
from vitkit.errors import VitkitError
from vitkit.models.config import DINOV3_ROTARY, EVA02_ROTARY, ROPE_VIT_ROTARY, ViTConfig
from vitkit.weights.loading import load, save_model

WIDTH = TINY.width


SCALES: dict[str, tuple[int, ...]] = {f"blocks.{i}.ls{j}.gamma": (WIDTH,) for i in range(2) for j in (1, 2)}


AFTER = {"norm.weight": (), "norm.bias": (), "fc_norm.weight": (WIDTH,), "fc_norm.bias": (WIDTH,)}


BEFORE = {"norm_pre.weight": (WIDTH,), "norm_pre.bias": (WIDTH,), "patch_embed.proj.bias": ()}


QK_SCALES: dict[str, tuple[int, ...]] = {
    f"blocks.{i}.attn.{j}_norm.weight": (WIDTH // 4,) for i in range(2) for j in "qk"
}


QK_SHIFTS: dict[str, tuple[int, ...]] = {name.replace("weight", "bias"): (8,) for name in QK_SCALES}


NO_SHIFTS: dict[str, tuple[int, ...]] = dict.fromkeys(
    ("norm.bias", *(f"blocks.{i}.norm{j}.bias" for i in range(2) for j in (1, 2))), ()
)


CASES: dict[str, tuple[dict[str, tuple[int, ...]], int, str, dict[str, Any], dict[str, Any]]] = {
    # name: tensors added, rows of positions, architecture, model_args, fields of ours
    "DeiT III": (
        SCALES,
        12,
        "deit3_small_patch16_224",
        {"global_pool": "token", "no_embed_class": True, "init_values": 1e-6},
        {"layer_scale": 1e-6, "class_token_position": False},
    ),
    "DINOv2 with registers": (
        {**SCALES, "reg_token": (1, 4, WIDTH)},
        12,
        "vit_small_patch14_reg4_dinov2",
        {"global_pool": "token", "init_values": 1e-5, "reg_tokens": 4, "no_embed_class": True},
        {"layer_scale": 1e-5, "class_token_position": False, "register_tokens": 4},
    ),
    "MAE, fine-tuned": (
        AFTER,
        13,
        "vit_base_patch16_224",
        {"global_pool": "avg"},
        {"pool": "mean", "extra_class_token": True, "norm_after_pooling": True},
    ),
    "mean beside a class token": (
        {},
        13,
        "vit_base_patch16_224",
        {"global_pool": "avg", "fc_norm": False},
        {"pool": "mean", "extra_class_token": True},
    ),
    "maximum": (
        {**AFTER, "cls_token": ()},
        12,
        "vit_base_patch16_224",
        {"global_pool": "max", "class_token": False},
        {"pool": "max", "norm_after_pooling": True},
    ),
    "norm after the class token": (
        AFTER,
        13,
        "vit_base_patch16_224",
        {"global_pool": "token", "fc_norm": True},
        {"norm_after_pooling": True},
    ),
    "every token": (
        {},
        13,
        "vit_base_patch16_224",
        {"global_pool": ""},
        {"pool": "none", "extra_class_token": True},
    ),
    "CLIP": (
        BEFORE,
        13,
        "vit_base_patch32_clip_224",
        {"global_pool": "token"},
        {"norm_before_blocks": True, "norm_eps": 1e-5},
    ),
    "CLIP of OpenAI": (
        BEFORE,
        13,
        "vit_base_patch32_clip_quickgelu_224",
        {"global_pool": "token", "act_layer": "quick_gelu"},
        {"norm_before_blocks": True, "norm_eps": 1e-5, "gelu": "quick"},
    ),
    "QK-norm": (
        {**QK_SCALES, **QK_SHIFTS},
        13,
        "vit_base_patch16_224",
        {"global_pool": "token", "qk_norm": True},
        {"qk_norm": True},
    ),
    "RMSNorm": (
        NO_SHIFTS,
        13,
        "vit_base_patch16_224",
        {"global_pool": "token", "norm_layer": "rmsnorm"},
        {"norm": "rms"},
    ),
    "QK-norm by RMSNorm": (
        {**QK_SCALES, **NO_SHIFTS},
        13,
        "vit_base_patch16_224",
        {"global_pool": "token", "norm_layer": "rmsnorm", "qk_norm": True},
        {"norm": "rms", "qk_norm": True},
    ),
}


def scaled(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: 0.3 * tensor for name, tensor in tensors.items()}


def images_of(config: ViTConfig) -> Tensor:
    return torch.randn(2, config.in_channels, *config.image_size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", CASES)
def test_a_file_of_timm_is_read(name: str, tmp_path: Path) -> None:
    extra, positions, architecture, arguments, fields = CASES[name]
    tensors = scaled(state(positions=positions, extra=extra))
    described = config_json(architecture, **arguments)
    model = load_model(folder_of(tmp_path, tensors, described))
    assert isinstance(model.config, ViTConfig)
    mean, std = described["pretrained_cfg"]["mean"], described["pretrained_cfg"]["std"]
    assert model.config == replace(TINY, **fields, image_mean=tuple(mean), image_std=tuple(std))
    images = images_of(model.config)
    with torch.no_grad():
        torch.testing.assert_close(
            model(images), slow_logits(tensors, images, described), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("name", CASES)
def test_a_file_for_timm_is_written(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = replace(TINY, **CASES[name][-1])
    model = random_model(config)
    save_model(model, tmp_path, format="timm")
    assert not caplog.text
    described = json.loads((tmp_path / "config.json").read_text())
    tensors = load_file(tmp_path / "model.safetensors")
    extra, positions = CASES[name][:2]
    assert {key: tensor.shape for key, tensor in tensors.items()} == {
        key: tensor.shape for key, tensor in state(positions=positions, extra=extra).items()
    }
    again = load_model(tmp_path)
    assert again.config == config
    images = images_of(config)
    with torch.no_grad():
        expected = model(images)
        torch.testing.assert_close(slow_logits(tensors, images, described), expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(again(images), expected, rtol=1e-5, atol=1e-6)


GAMMAS: dict[str, tuple[int, ...]] = {f"blocks.{i}.gamma_{j}": (WIDTH,) for i in range(2) for j in (1, 2)}


NO_BIAS: dict[str, tuple[int, ...]] = {f"blocks.{i}.attn.qkv.bias": () for i in range(2)}


TWO_BIASES = {f"blocks.{i}.attn.{part}_bias": (WIDTH,) for i in range(2) for part in "qv"}


REGISTERS: dict[str, tuple[int, ...]] = {"reg_token": (1, 4, WIDTH), "pos_embed": ()}


@pytest.mark.parametrize(
    ("architecture", "extra", "pool", "fields"),
    [
        (
            "vit_small_patch16_dinov3",
            {**GAMMAS, **NO_BIAS, **REGISTERS},
            "avg",
            {
                "rotary": DINOV3_ROTARY,
                "register_tokens": 4,
                "pool": "mean",
                "extra_class_token": True,
                "position": "none",
                "norm_eps": 1e-5,
            },
        ),
        (
            "vit_small_patch16_dinov3_qkvb",
            {**GAMMAS, **NO_BIAS, **TWO_BIASES, **REGISTERS},
            "token",
            {"rotary": DINOV3_ROTARY, "register_tokens": 4, "position": "none", "norm_eps": 1e-5},
        ),
        (
            "vit_base_patch16_rope_reg1_gap_256",
            {**GAMMAS, **NO_BIAS, **TWO_BIASES, **AFTER, "pos_embed": (), "cls_token": ()},
            "avg",
            {"rotary": EVA02_ROTARY, "pool": "mean", "position": "none", "norm_after_pooling": True},
        ),
        ("vit_small_patch16_rope_224", {**GAMMAS, "pos_embed": ()}, "token", {"position": "none"}),
        ("vit_base_patch16_rope_ape_224", GAMMAS, "token", {"class_token_position": False}),
    ],
)
def test_rotary_positions_are_read(
    architecture: str, extra: dict[str, tuple[int, ...]], pool: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    tensors = scaled(state(positions=12, extra=extra))
    described = config_json(architecture, global_pool=pool)
    model = load_model(folder_of(tmp_path, tensors, described))
    expected = {"rotary": ROPE_VIT_ROTARY, "layer_scale": 1e-5, **fields}
    assert {name: getattr(model.config, name) for name in expected} == expected
    images = torch.randn(2, 3, 12, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(
            model(images), slow_logits(tensors, images, described), rtol=1e-4, atol=1e-5
        )


def test_rotary_positions_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(VitkitError, match="rotary"):
        save_model(random_model(replace(TINY, rotary=DINOV3_ROTARY)), tmp_path / "no", format="timm")


def test_the_arguments_say_what_timm_is_to_build(tmp_path: Path) -> None:
    config = replace(TINY, pool="max", extra_class_token=True, layer_scale=0.1, norm_after_pooling=True)
    save_model(random_model(config), tmp_path, format="timm")
    arguments = json.loads((tmp_path / "config.json").read_text())["model_args"]
    expected = {"global_pool": "max", "class_token": True, "init_values": 0.1, "fc_norm": True}
    assert {**arguments, **expected, "pre_norm": False} == arguments


def test_the_bias_that_clip_has_not_moves_into_the_positions(tmp_path: Path) -> None:
    model = random_model(replace(TINY, norm_before_blocks=True))
    save_model(model, tmp_path, format="timm")
    tensors, ours = load_file(tmp_path / "model.safetensors"), model.state_dict()
    assert "patch_embed.proj.bias" not in tensors and ours["stem.bias"].any()
    moved = tensors["pos_embed"] - ours["positions.0.embedding"]
    assert not moved[:, :1].any()
    torch.testing.assert_close(moved[0, 1:], ours["stem.bias"].expand(12, -1))
    with pytest.raises(VitkitError, match="without position embeddings"):
        config = replace(TINY, norm_before_blocks=True, position="none")
        save_model(random_model(config), tmp_path / "no", format="timm")


@pytest.mark.parametrize(
    ("extra", "fields"),
    [
        (AFTER, {"pool": "mean", "extra_class_token": True, "norm_after_pooling": True}),
        (SCALES, {"layer_scale": 1e-5}),
        (BEFORE, {"norm_before_blocks": True, "norm_eps": 1e-5}),
        ({**QK_SCALES, **QK_SHIFTS}, {"qk_norm": True}),
    ],
    ids=["MAE", "DINOv2", "CLIP", "QK-norm"],
)
def test_the_tensors_alone_show_the_parts(
    extra: dict[str, tuple[int, ...]], fields: dict[str, Any], tmp_path: Path
) -> None:
    torch.save(state(extra=extra), tmp_path / "vit.pth")
    config = load_model(tmp_path / "vit.pth", num_heads=4, image_size=(12, 16)).config
    assert config == replace(TINY, **fields)


def test_norms_without_a_shift_are_not_guessed(tmp_path: Path) -> None:
    """RMSNorm, a LayerNorm without bias and others have the same tensors, and compute something else."""
    torch.save(state(extra=NO_SHIFTS), tmp_path / "vit.pth")
    with pytest.raises(VitkitError, match="have no shift, and no norm_layer in config"):
        load_model(tmp_path / "vit.pth", num_heads=4, image_size=(12, 16))


def test_dinov2s_mask_token_is_left_out_on_purpose(tmp_path: Path) -> None:
    tensors = state(extra={**SCALES, "mask_token": (1, WIDTH)})
    left_out = load(folder_of(tmp_path, tensors, config_json())).identity.left_out
    assert list(left_out.values()) == [["mask_token"]]


@pytest.mark.parametrize(
    ("architecture", "width", "heads", "biased"),
    [
        ("deit3_medium_patch16_224", 512, 8, True),
        ("vit_wee_patch16_reg1_gap_256", 256, 4, True),
        ("vit_base_patch16_plus_240", 896, 14, True),
        ("vit_so150m2_patch16_reg1_gap_256", 832, 13, False),
        ("vit_betwixt_patch16_gap_256", 640, 10, False),
        ("vit_medium_patch16_gap_384", 512, 8, False),
        ("vit_giant_patch14_reg4_dinov2", 1536, 24, True),
    ],
)
def test_a_name_says_heads_and_biases(
    architecture: str, width: int, heads: int, biased: bool, tmp_path: Path
) -> None:
    described = config_json(architecture)
    described["model_args"] = {"img_size": [12, 16]}
    extra = {} if biased else {f"blocks.{i}.attn.qkv.bias": () for i in range(2)}
    assert load_model(folder_of(tmp_path, state(width, extra=extra), described)).config.num_heads == heads


def test_parts_survive_another_image_size(tmp_path: Path) -> None:
    config = replace(
        TINY,
        pool="max",
        extra_class_token=True,
        register_tokens=2,
        layer_scale=0.1,
        norm_before_blocks=True,
        norm_after_pooling=True,
    )
    folder = save_model(random_model(config), tmp_path, format="timm")
    larger = load_model(folder, image_size=(24, 24)).config
    assert larger == replace(config, image_size=(24, 24))


def test_a_norm_twice_over_is_refused(tmp_path: Path) -> None:
    tensors = state(extra={"fc_norm.weight": (WIDTH,), "fc_norm.bias": (WIDTH,)})
    with pytest.raises(VitkitError, match=r"norm\.bias: unexpected"):
        load_model(folder_of(tmp_path, tensors, config_json(global_pool="avg")))


def test_attention_pooling_sees_a_class_token_if_the_arguments_say_so(tmp_path: Path) -> None:
    config = replace(TINY, pool="map", extra_class_token=True)
    folder = save_model(random_model(config), tmp_path, format="timm")
    assert json.loads((folder / "config.json").read_text())["model_args"]["pool_include_prefix"] is True
    assert load_model(folder).config == config
