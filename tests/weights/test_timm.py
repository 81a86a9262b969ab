"""timm's folders there and back: every variant with its preprocessing, and what timm cannot build."""

import json
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
from vitkit.models.config.resnet_config import BackboneConfig, ResNetConfig
from vitkit.weights.formats.timm.write import _vit_arguments
from vitkit.weights.model_card import ModelCard, card_of, preprocessing_of
from vitkit.weights.saving import save_model

NARROW_BIT = ResNetConfig(
    (32, 48),
    (3, 4, 6, 3),
    5,
    root_width=32,
    stage_widths=(128, 256, 128, 384),
    standardization_eps=1e-8,
)


def test_names_and_shapes_are_those_of_timm(tmp_path: Path) -> None:
    save_model(random_model(TINY), tmp_path, format="timm")
    written = {name: tensor.shape for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    assert written == {name: tensor.shape for name, tensor in state().items()}


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


@pytest.mark.parametrize("fraction", [0.875, 1.0, 0.77])
def test_the_nearest_of_timm_is_written_and_what_is_lost_is_said(
    tmp_path: Path, fraction: float, caplog: pytest.LogCaptureFixture
) -> None:
    model = random_model(replace(TINY, image_size=(224, 224), patch_size=(56, 56)))
    model.card = ModelCard(preprocessing=Preprocessing((224, 224), "crop", fraction, antialias=False))
    again = card_of(load_model(save_model(model, tmp_path, format="timm"))).preprocessing
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
    save_model(random_model(replace(TINY, pool="map")), tmp_path, format="timm")
    written = load_file(tmp_path / "model.safetensors")
    model = load_model(tmp_path)
    joined = model.state_dict()["pooling.attention.qkv.weight"]
    assert torch.equal(written["attn_pool.q.weight"], joined[:32])
    assert torch.equal(written["attn_pool.kv.weight"], joined[32:])


def test_any_mlp_is_said_by_a_ratio() -> None:
    for width in (32, 36, 192, 1152, 1408, 1664):
        for mlp_dim in range(1, 6 * width, 29):
            arguments = _vit_arguments(replace(TINY, width=width, num_heads=1, mlp_dim=mlp_dim))
            assert int(width * arguments["mlp_ratio"]) == mlp_dim


def test_a_model_of_our_own_format_is_not_overwritten(tmp_path: Path) -> None:
    model = random_model(TINY)
    save_model(model, tmp_path)
    with pytest.raises(VitkitError, match="own format"):
        save_model(model, tmp_path, format="timm")
    assert load_model(tmp_path).config == TINY
