"""The parts of timm's later ViTs, both ways, against a slow forward pass over the tensors of a file."""

import json
from dataclasses import dataclass, replace
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
from vitkit.models.config.vit_config import DINOV3_ROTARY, EVA02_ROTARY, ROPE_VIT_ROTARY
from vitkit.models.zoo import ModelConfig
from vitkit.weights.loading import load
from vitkit.weights.saving import save_model

Shapes = dict[str, tuple[int, ...]]
WIDTH = TINY.width
NORMS = [f"blocks.{i}.norm{j}" for i in range(2) for j in (1, 2)]
SCALES: Shapes = {f"blocks.{i}.ls{j}.gamma": (WIDTH,) for i in range(2) for j in (1, 2)}
GAMMAS: Shapes = {f"blocks.{i}.gamma_{j}": (WIDTH,) for i in range(2) for j in (1, 2)}
AFTER: Shapes = {"norm.weight": (), "norm.bias": (), "fc_norm.weight": (WIDTH,), "fc_norm.bias": (WIDTH,)}
BEFORE: Shapes = {"norm_pre.weight": (WIDTH,), "norm_pre.bias": (WIDTH,), "patch_embed.proj.bias": ()}
QK_SCALES: Shapes = {f"blocks.{i}.attn.{j}_norm.weight": (WIDTH // 4,) for i in range(2) for j in "qk"}
QK_NORM: Shapes = QK_SCALES | {name.replace("weight", "bias"): (8,) for name in QK_SCALES}
NO_SHIFTS: Shapes = {f"{name}.bias": () for name in ("norm", *NORMS)}
NO_BIAS: Shapes = {f"blocks.{i}.attn.qkv.bias": () for i in range(2)}
TWO_BIASES: Shapes = NO_BIAS | {f"blocks.{i}.attn.{part}_bias": (WIDTH,) for i in range(2) for part in "qv"}
REGISTERS: Shapes = {"reg_token": (1, 4, WIDTH)}
UNPLACED = {"register_tokens": 4, "position": "none", "norm_eps": 1e-5}
MEAN = {"pool": "mean", "extra_class_token": True}
CLIP_FIELDS = {"norm_before_blocks": True, "norm_eps": 1e-5}


@dataclass(frozen=True)
class Case:
    extra: Shapes
    """Tensors added to the plain ones; those of an empty shape are not there."""
    arguments: dict[str, Any]
    """timm's `model_args`."""
    fields: dict[str, Any]
    """Ours."""
    positions: int = 13
    architecture: str = "vit_base_patch16_224"


CASES = {
    "DeiT III": Case(
        SCALES,
        {"no_embed_class": True, "init_values": 1e-6},
        {"layer_scale": 1e-6, "class_token_position": False},
        12,
        "deit3_small_patch16_224",
    ),
    "DINOv2 with registers": Case(
        SCALES | REGISTERS,
        {"init_values": 1e-5, "reg_tokens": 4, "no_embed_class": True},
        {"layer_scale": 1e-5, "class_token_position": False, "register_tokens": 4},
        12,
        "vit_small_patch14_reg4_dinov2",
    ),
    "MAE, fine-tuned": Case(AFTER, {"global_pool": "avg"}, MEAN | {"norm_after_pooling": True}),
    "mean beside a class token": Case({}, {"global_pool": "avg", "fc_norm": False}, MEAN),
    "maximum": Case(
        AFTER | {"cls_token": ()},
        {"global_pool": "max", "class_token": False},
        {"pool": "max", "norm_after_pooling": True},
        12,
    ),
    "norm after the class token": Case(AFTER, {"fc_norm": True}, {"norm_after_pooling": True}),
    "every token": Case({}, {"global_pool": ""}, {"pool": "none", "extra_class_token": True}),
    "CLIP": Case(BEFORE, {}, CLIP_FIELDS, architecture="vit_base_patch32_clip_224"),
    "CLIP of OpenAI": Case(
        BEFORE,
        {"act_layer": "quick_gelu"},
        CLIP_FIELDS | {"gelu": "quick"},
        architecture="vit_base_patch32_clip_quickgelu_224",
    ),
    "QK-norm": Case(QK_NORM, {"qk_norm": True}, {"qk_norm": True}),
    "RMSNorm": Case(NO_SHIFTS, {"norm_layer": "rmsnorm"}, {"norm": "rms"}),
    "QK-norm by RMSNorm": Case(
        QK_SCALES | NO_SHIFTS, {"norm_layer": "rmsnorm", "qk_norm": True}, {"norm": "rms", "qk_norm": True}
    ),
}
ROTARY = {
    "DINOv3": Case(
        GAMMAS | NO_BIAS | REGISTERS | {"pos_embed": ()},
        {"global_pool": "avg"},
        UNPLACED | MEAN | {"rotary": DINOV3_ROTARY},
        architecture="vit_small_patch16_dinov3",
    ),
    "DINOv3 with biases": Case(
        GAMMAS | TWO_BIASES | REGISTERS | {"pos_embed": ()},
        {},
        UNPLACED | {"rotary": DINOV3_ROTARY},
        architecture="vit_small_patch16_dinov3_qkvb",
    ),
    "EVA-02": Case(
        GAMMAS | TWO_BIASES | AFTER | {"pos_embed": (), "cls_token": ()},
        {"global_pool": "avg"},
        {"rotary": EVA02_ROTARY, "pool": "mean", "position": "none", "norm_after_pooling": True},
        architecture="vit_base_patch16_rope_reg1_gap_256",
    ),
    "RoPE-ViT": Case(
        GAMMAS | {"pos_embed": ()}, {}, {"position": "none"}, architecture="vit_small_patch16_rope_224"
    ),
    "RoPE-ViT with positions": Case(
        GAMMAS, {}, {"class_token_position": False}, 12, "vit_base_patch16_rope_ape_224"
    ),
}


def images_of(config: ModelConfig) -> Tensor:
    return torch.randn(2, config.in_channels, *config.image_size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", [*CASES, *ROTARY])
def test_a_file_of_timm_is_read(name: str, tmp_path: Path) -> None:
    case = (CASES | ROTARY)[name]
    tensors = state(positions=case.positions, extra=case.extra)
    tensors = {name: 0.3 * tensor for name, tensor in tensors.items()}
    described = config_json(case.architecture, **{"global_pool": "token", **case.arguments})
    model = load_model(folder_of(tmp_path, tensors, described))
    usual: dict[str, Any] = {"rotary": ROPE_VIT_ROTARY, "layer_scale": 1e-5} if name in ROTARY else {}
    mean, std = (tuple(described["pretrained_cfg"][key]) for key in ("mean", "std"))
    assert model.config == replace(TINY, **(usual | case.fields), image_mean=mean, image_std=std)
    images = images_of(model.config)
    with torch.no_grad():
        expected = slow_logits(tensors, images, described)
        torch.testing.assert_close(model(images), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_file_for_timm_is_written(case: Case, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = replace(TINY, **case.fields)
    model = random_model(config)
    save_model(model, tmp_path, format="timm")
    assert not caplog.text
    described = json.loads((tmp_path / "config.json").read_text())
    tensors = load_file(tmp_path / "model.safetensors")
    expected = state(positions=case.positions, extra=case.extra)
    assert {key: tensor.shape for key, tensor in tensors.items()} == {
        key: tensor.shape for key, tensor in expected.items()
    }
    again = load_model(tmp_path)
    assert again.config == config
    images = images_of(config)
    with torch.no_grad():
        logits = model(images)
        torch.testing.assert_close(slow_logits(tensors, images, described), logits, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(again(images), logits, rtol=1e-5, atol=1e-6)


def test_the_arguments_say_what_timm_is_to_build(tmp_path: Path) -> None:
    config = replace(TINY, pool="max", extra_class_token=True, layer_scale=0.1, norm_after_pooling=True)
    expected = {
        "global_pool": "max",
        "class_token": True,
        "init_values": 0.1,
        "fc_norm": True,
        "pre_norm": False,
    }
    pooled = replace(
        TINY, pool="map", extra_class_token=True
    )  # which sees the class token only if it is said
    for made, arguments in ((config, expected), (pooled, {"pool_include_prefix": True})):
        save_model(random_model(made), tmp_path, format="timm")
        written = json.loads((tmp_path / "config.json").read_text())["model_args"]
        assert {**written, **arguments} == written and load_model(tmp_path).config == made


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


@pytest.mark.parametrize("name", ["MAE, fine-tuned", "DINOv2 with registers", "CLIP", "QK-norm"])
def test_the_tensors_alone_show_the_parts(name: str, tmp_path: Path) -> None:
    torch.save(state(positions=CASES[name].positions, extra=CASES[name].extra), tmp_path / "vit.pth")
    config = load_model(tmp_path / "vit.pth", num_heads=4, image_size=(12, 16)).config
    assert config == replace(TINY, **CASES[name].fields)


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
    ("architecture", "width", "heads", "gelu", "biased"),
    [
        ("deit3_medium_patch16_224", 512, 8, "erf", True),
        ("vit_wee_patch16_reg1_gap_256", 256, 4, "erf", True),
        ("vit_base_patch16_plus_240", 896, 14, "erf", True),
        ("vit_so150m2_patch16_reg1_gap_256", 832, 13, "erf", False),
        ("vit_betwixt_patch16_gap_256", 640, 10, "erf", False),
        ("vit_medium_patch16_gap_384", 512, 8, "erf", False),
        ("vit_giant_patch14_reg4_dinov2", 1536, 24, "erf", True),
        ("vit_tiny_patch16_224", 48, 3, "erf", True),
        ("vit_base_patch16_224.augreg_in21k", 48, 12, "erf", True),
        ("vit_base_patch16_gap_224", 48, 16, "erf", True),
        ("deit_small_patch16_224", 48, 6, "erf", True),
        ("vit_so400m_patch14_siglip_gap_224", 48, 16, "erf", True),
        ("vit_so400m_patch16_siglip_gap_256", 48, 16, "tanh", True),
        ("vit_large_patch16_siglip_512", 48, 16, "tanh", True),
    ],
)
def test_a_name_says_width_heads_gelu_and_biases(
    architecture: str, width: int, heads: int, gelu: str, biased: bool, tmp_path: Path
) -> None:
    described = config_json(architecture)
    described["model_args"] = {"img_size": [12, 16]} | ({"embed_dim": width} if width == 48 else {})
    config = load_model(folder_of(tmp_path, state(width, extra={} if biased else NO_BIAS), described)).config
    assert (config.width, config.num_heads, config.gelu) == (width, heads, gelu)


def test_parts_survive_another_image_size(tmp_path: Path) -> None:
    fields = {"pool": "max", "extra_class_token": True, "register_tokens": 2, "layer_scale": 0.1}
    config = replace(TINY, **fields, norm_before_blocks=True, norm_after_pooling=True)  # type: ignore[arg-type]
    folder = save_model(random_model(config), tmp_path, format="timm")
    assert load_model(folder, image_size=(24, 24)).config == replace(config, image_size=(24, 24))
