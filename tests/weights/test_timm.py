"""timm's folders there and back: every variant with its preprocessing, and what timm cannot build."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.helpers.random_models import random_model
from tests.helpers.timm_files import TINY, config_json, folder_of, state
from vitkit import load_model
from vitkit.data.config import Preprocessing
from vitkit.errors import VitkitError
from vitkit.models.build import build_model
from vitkit.models.config.resnet_config import BackboneConfig, ResNetConfig
from vitkit.models.image_model import ImageModel
from vitkit.weights.format_names import Format
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


@pytest.mark.parametrize(("format", "message"), [("timm", "own format"), ("huggingface", "another folder")])
def test_a_model_of_our_own_format_is_not_overwritten(format: Format, message: str, tmp_path: Path) -> None:
    model = random_model(TINY)
    before = (save_model(model, tmp_path) / "model.safetensors").read_bytes()
    with pytest.raises(VitkitError, match=message):
        save_model(model, tmp_path, format)
    assert (tmp_path / "model.safetensors").read_bytes() == before


# ResNets: BiT by its name, others by the arguments in their config.json


def test_a_bit_that_is_misshapen_or_no_bit_is_refused_and_its_size_asked_for(tmp_path: Path) -> None:
    save_model(random_model(NARROW_BIT), tmp_path, format="timm")
    file = tmp_path / "model.safetensors"
    tensors, whole = load_file(file), file.read_bytes()
    for key, shape, message in (
        ("stem.conv.weight", (64,), "4 axes"),
        ("head.fc.weight", (5, 384), "4 axes"),
        ("head.fc.weight", (5, 384, 2, 1), "1x1 pixels"),
    ):
        save_file({**tensors, key: torch.zeros(shape)}, file)
        with pytest.raises(VitkitError, match=f"{key}: .*{message}"):
            load_model(tmp_path)
    file.write_bytes(whole)
    described = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**described, "architecture": "resnetv2_50d_gn"}))
    with pytest.raises(VitkitError, match="resnetv2_50d_gn is no BiT"):
        load_model(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(VitkitError, match="give image_size"):
        load_model(tmp_path)
    assert load_model(tmp_path, image_size=32).config.standardization_eps == 1e-8


CUSTOM = {"layers": [1, 2], "channels": [128, 256], "stem_chs": 32, "stem_type": "fixed"}


def custom_resnet(folder: Path, **changes: Any) -> ImageModel:
    """Write a small ResNet under timm's names, with `model_args` that say all of it; None leaves one out."""
    model = random_model(
        ResNetConfig((32, 32), (1, 2), 5, root_width=32, stage_widths=(128, 256), standardization_eps=1e-8)
    )
    tensors = {}
    for key, tensor in model.state_dict().items():
        name = re.sub(r"^(stages\.\d)\.(\d)\.", r"\1.blocks.\2.", key)
        for ours, theirs in (("root.", "stem.conv."), (".proj.", ".downsample.conv."), ("head.", "head.fc.")):
            name = name.replace(ours, theirs)
        tensors[name] = (tensor[:, :, None, None] if key == "head.weight" else tensor).contiguous()
    save_file(tensors, folder / "model.safetensors")
    arguments = {key: value for key, value in (CUSTOM | changes).items() if value is not None}
    described = {"architecture": "resnetv2_custom", "model_args": arguments}
    sized = {"pretrained_cfg": {"input_size": [3, 32, 32]}}
    (folder / "config.json").write_text(json.dumps(described | sized))
    return model


@pytest.mark.parametrize(
    ("changes", "padding", "eps"),
    [
        ({}, "zeros", 1e-8),
        ({"stem_type": ""}, "lowest", 1e-6),
        ({"stem_type": None, "preact": True, "output_stride": 32}, "lowest", 1e-6),
        ({"channels": [64, 128], "stem_chs": 16, "width_factor": 2}, "zeros", 1e-8),
    ],
)
def test_a_resnet_of_any_size_is_read_by_its_arguments(
    tmp_path: Path, changes: dict[str, Any], padding: Any, eps: float
) -> None:
    model = custom_resnet(tmp_path, **changes)
    loaded = load_model(tmp_path)
    expected = build_model(replace(model.config, max_pool_padding=padding, standardization_eps=eps))
    expected.load_state_dict(model.state_dict())
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(loaded(images), expected(images))
    assert f"{eps:g} is taken" in card_of(loaded).origin["notes"][0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stem_type": "same"}, "stem_type: expected 'fixed' or '' for resnetv2_custom, found 'same'"),
        ({"layers": [2, 2]}, "these two do not belong together"),
        ({"channels": [128, 512]}, "these two do not belong together"),
        ({"stem_chs": None}, "these two do not belong together"),
        ({"layers": None}, "these two do not belong together"),
        ({"avg_down": True}, "avg_down=True"),
        ({"preact": False}, "preact=False"),
        ({"bottle_ratio": 0.5}, "bottle_ratio=0.5"),
        ({"act_layer": "silu"}, "act_layer='silu'"),
        ({"output_stride": 16}, "output_stride=16"),
        ({"layers": "1, 2"}, "model_args: layers: "),
    ],
)
def test_a_resnet_of_other_arithmetic_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    custom_resnet(tmp_path, **changes)
    with pytest.raises(VitkitError, match=message):
        load_model(tmp_path)


def test_a_stem_of_three_convolutions_is_refused_by_name(tmp_path: Path) -> None:
    custom_resnet(tmp_path, stem_type="deep")
    tensors = load_file(tmp_path / "model.safetensors")
    deep = {"stem.conv1.weight": torch.zeros(16, 3, 3, 3)}
    del tensors["stem.conv.weight"]
    save_file(tensors | deep, tmp_path / "model.safetensors")
    with pytest.raises(VitkitError, match="a stem of three convolutions"):
        load_model(tmp_path)
