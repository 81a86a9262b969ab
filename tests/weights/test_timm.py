"""timm's folders there and back: every variant with its preprocessing, and what timm cannot build."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.helpers.random_models import random_model
from tests.helpers.timm_files import TINY, config_json, folder_of, state
from vitkit import load_model
from vitkit.data.config import Preprocessing
from vitkit.errors import VitkitError
from vitkit.models.build import build_model
from vitkit.models.config import BackboneConfig, ResNetConfig
from vitkit.models.zoo import ModelConfig
from vitkit.weights.formats.timm.write import _vit_arguments
from vitkit.weights.loading import save_model
from vitkit.weights.model_card import ModelCard, card_of, preprocessing_of

TIMM_RESNET = {"norm_eps": 1e-5, "standardization": "variance", "standardization_eps": 1e-8}


VARIANTS: dict[str, ModelConfig] = {
    "token": TINY,
    "tanh GELU": replace(TINY, gelu="tanh"),
    "gap": replace(TINY, pool="mean"),
    "map": replace(TINY, pool="map"),
    "map with registers": replace(TINY, pool="map", register_tokens=2),
    "every token": replace(TINY, pool="none"),
    "registers with positions": replace(TINY, register_tokens=4),
    "registers without positions": replace(TINY, register_tokens=4, class_token_position=False),
    "gap with registers": replace(TINY, pool="mean", register_tokens=4, class_token_position=False),
    "no positions": replace(TINY, position="none"),
    "map by RMSNorm": replace(TINY, pool="map", norm="rms"),
    "no head": replace(TINY, num_classes=0),
    "one channel": replace(TINY, in_channels=1, image_mean=(0.1,), image_std=(0.3,)),
    "patches not square": replace(TINY, patch_size=(4, 2)),
    "an awkward MLP": replace(TINY, width=36, mlp_dim=97),
    "dropout": replace(TINY, dropout=0.1, attention_dropout=0.2),
    "hybrid, root alone": replace(
        TINY,
        image_size=(32, 64),
        patch_size=(8, 8),
        backbone=BackboneConfig((), **TIMM_RESNET),  # type: ignore[arg-type]
    ),
    "hybrid": replace(
        TINY,
        image_size=(64, 96),
        patch_size=(1, 1),
        backbone=BackboneConfig((2, 2, 2, 2), **TIMM_RESNET),  # type: ignore[arg-type]
    ),
    "BiT": ResNetConfig((32, 48), (3, 4, 6, 3), num_classes=5, standardization_eps=1e-8),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_survives_the_way_there_and_back(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = random_model(VARIANTS[name])
    with caplog.at_level(logging.WARNING, "vitkit"):
        save_model(model, tmp_path / "theirs", format="timm")
    assert "cannot say" not in caplog.text
    again = load_model(tmp_path / "theirs")
    if name == "no positions":  # nothing is before the patches that could have or lack a position
        again.config = replace(again.config, class_token_position=True)
    assert again.config == model.config
    assert again.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(value, again.state_dict()[key]) for key, value in model.state_dict().items())


def test_names_and_shapes_are_those_of_timm(tmp_path: Path) -> None:
    save_model(random_model(TINY), tmp_path, format="timm")
    written = {name: tensor.shape for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    assert written == {name: tensor.shape for name, tensor in state().items()}


def test_names_of_hybrids_and_bits_are_those_of_timm(tmp_path: Path) -> None:
    save_model(random_model(VARIANTS["hybrid"]), tmp_path, format="timm")
    hybrid = {name: tuple(tensor.shape) for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    unit = "patch_embed.backbone.stages.1.blocks.0"
    assert hybrid["patch_embed.backbone.stem.conv.weight"] == (64, 3, 7, 7)
    assert hybrid["patch_embed.backbone.stem.norm.bias"] == (64,)
    assert hybrid[f"{unit}.conv2.weight"] == (128, 128, 3, 3)
    assert hybrid[f"{unit}.downsample.conv.weight"] == (512, 256, 1, 1)
    assert hybrid[f"{unit}.downsample.norm.weight"] == (512,)
    assert hybrid["patch_embed.proj.weight"] == (32, 2048, 1, 1)
    save_model(random_model(VARIANTS["BiT"]), tmp_path, format="timm")
    bit = {name: tuple(tensor.shape) for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    assert bit["stem.conv.weight"] == (64, 3, 7, 7)
    assert bit["stages.3.blocks.2.norm3.weight"] == (512,)
    assert bit["head.fc.weight"] == (5, 2048, 1, 1)
    assert "stages.0.blocks.0.downsample.norm.weight" not in bit


def test_what_config_json_says_is_taken_over(tmp_path: Path) -> None:
    config = {**config_json(), "label_names": ["a", "b", "c", "d", "e"]}
    model = load_model(folder_of(tmp_path, state(), config))
    assert model.config == replace(TINY, image_mean=(0.485, 0.456, 0.406), image_std=(0.229, 0.224, 0.225))
    assert model.card.class_names == ("a", "b", "c", "d", "e")
    assert card_of(model).origin["architecture"] == "vit_tiny_patch16_224"
    preprocessing = preprocessing_of(model)
    assert preprocessing == Preprocessing((12, 16), "shortest", 0.9)
    assert not card_of(model).assumed


@pytest.mark.parametrize(
    "rule",
    [
        Preprocessing((224, 224)),
        Preprocessing((224, 224), interpolation="bicubic"),
        Preprocessing((224, 224), "shortest", 0.9, interpolation="bicubic"),
        Preprocessing((224, 224), "shortest", 0.8777, interpolation="lanczos"),
        Preprocessing((224, 224), "shortest", 1.2),
        Preprocessing((224, 224), "squash", 0.95, interpolation="nearest"),
        Preprocessing((224, 224), "longest", 0.9, interpolation="bicubic", border=(128, 128, 128)),
    ],
    ids=lambda rule: f"{rule.resize} {rule.crop_fraction} {rule.interpolation}",
)
def test_preprocessing_survives_the_way_there_and_back(
    tmp_path: Path, rule: Preprocessing, caplog: pytest.LogCaptureFixture
) -> None:
    model = random_model(replace(TINY, image_size=(224, 224), patch_size=(56, 56)))
    model.card = ModelCard(preprocessing=rule, class_names=("a", "b", "c", "d", "e"))
    card = card_of(load_model(save_model(model, tmp_path, format="timm")))
    assert card.class_names == model.card.class_names
    assert card.preprocessing == rule
    assert not caplog.text


@pytest.mark.parametrize("fraction", [0.875, 0.9, 1.0, 0.77])
def test_the_nearest_of_timm_is_written_and_what_is_lost_is_said(
    tmp_path: Path, fraction: float, caplog: pytest.LogCaptureFixture
) -> None:
    model = random_model(replace(TINY, image_size=(224, 224), patch_size=(56, 56)))
    rule = Preprocessing((224, 224), "crop", fraction, antialias=False)
    model.card = ModelCard(preprocessing=rule)
    card = card_of(load_model(save_model(model, tmp_path, format="timm")))
    again = card.preprocessing
    assert again is not None
    assert (again.resize, again.resized(0)) == ("shortest", round(224 / fraction))
    assert "resize: 'crop' becomes 'shortest'" in caplog.text
    assert "antialias: False becomes True" in caplog.text


def test_old_files_with_a_tanh_layer_keep_it(tmp_path: Path) -> None:
    extra = {"pre_logits.fc.weight": (7, 32), "pre_logits.fc.bias": (7,), "head.weight": (5, 7)}
    tensors = state(extra=extra)
    model = load_model(folder_of(tmp_path, tensors, config_json()))
    assert model.config.representation_size == 7
    assert torch.equal(model.state_dict()["pre_logits.weight"], tensors["pre_logits.fc.weight"])


def test_the_query_of_attention_pooling_stands_before_keys_and_values(tmp_path: Path) -> None:
    save_model(random_model(VARIANTS["map"]), tmp_path, format="timm")
    written = load_file(tmp_path / "model.safetensors")
    model = load_model(tmp_path)
    joined = model.state_dict()["pooling.attention.qkv.weight"]
    assert torch.equal(written["attn_pool.q.weight"], joined[:32])
    assert torch.equal(written["attn_pool.kv.weight"], joined[32:])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (replace(TINY, position="relative"), "position relative"),
        (replace(TINY, position_at="every_layer"), "position_at every_layer"),
        (replace(TINY, representation_size=7), "tanh layer"),
        (replace(TINY, pool="mean", attention="axial"), "attention axial"),
        (replace(TINY, image_size=(64, 64), patch_size=(1, 1), backbone=BackboneConfig((1, 1))), "hybrid of"),
        (ResNetConfig((32, 32), (2, 2, 2, 2), num_classes=5), "resnetv2_50x1_bit"),
    ],
)
def test_what_timm_cannot_build_is_not_written(tmp_path: Path, config: ModelConfig, message: str) -> None:
    with pytest.raises(VitkitError, match=message):
        save_model(build_model(config), tmp_path / "theirs", format="timm")
    assert not (tmp_path / "theirs").exists()


def test_arithmetic_that_timm_cannot_be_told_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = replace(TINY, image_size=(32, 32), patch_size=(8, 8), backbone=BackboneConfig(()), norm_eps=1e-5)
    with caplog.at_level(logging.WARNING, "vitkit"):
        save_model(build_model(config), tmp_path, format="timm")
    for warning in ("LayerNorm's epsilon 1e-05", "w / (std + eps)", "GroupNorm's epsilon 1e-06"):
        assert warning in caplog.text


def test_any_mlp_is_said_by_a_ratio() -> None:
    for width in (32, 36, 192, 1152, 1408, 1664):
        for mlp_dim in range(1, 6 * width, 7):
            arguments = _vit_arguments(replace(TINY, width=width, num_heads=1, mlp_dim=mlp_dim))
            assert int(width * arguments["mlp_ratio"]) == mlp_dim


def test_a_model_of_our_own_format_is_not_overwritten(tmp_path: Path) -> None:
    model = random_model(TINY)
    save_model(model, tmp_path)
    with pytest.raises(VitkitError, match="own format"):
        save_model(model, tmp_path, format="timm")
    assert load_model(tmp_path).config == TINY
