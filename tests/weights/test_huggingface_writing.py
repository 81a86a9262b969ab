"""Folders written for Hugging Face: read again to the bit, and a note for what their format cannot say."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from tests.helpers.huggingface_files import (
    CLASSES,
    DEPTH,
    HEADS,
    HIDDEN,
    IN_FILES,
    WIDTH,
    bit,
    random_vit,
)
from tests.helpers.random_models import random_model
from tests.helpers.tiny_models import TINY
from vitkit import load_model
from vitkit.data.config import Preprocessing
from vitkit.errors import VitkitError
from vitkit.models.build import build_model
from vitkit.models.config import ViTConfig
from vitkit.models.zoo import ModelConfig, model_config
from vitkit.weights.loading import save_model
from vitkit.weights.model_card import ModelCard, Task, changed_pixels, preprocessing_of


@pytest.mark.parametrize(
    "config",
    [
        dataclasses.replace(TINY, image_size=(12, 12)),
        dataclasses.replace(TINY, patch_size=(4, 2), norm_eps=1e-5, gelu="erf"),
        dataclasses.replace(TINY, num_classes=0),
        dataclasses.replace(TINY, num_classes=0, representation_size=7, attention_dropout=0.1),
        dataclasses.replace(TINY, in_channels=1, image_mean=(0.3,), image_std=(0.2,)),
        bit(),
        bit(num_classes=0, layers=(1, 1, 2)),
        bit(image_mean=(0.1, 0.2, 0.3)),
    ],
    ids=["square", "rectangles", "headless", "pooler", "grey", "bit", "bit headless", "bit pixels"],
)
def test_what_is_written_is_read_again_to_the_bit(
    config: ModelConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = random_model(config)
    names = tuple("abcdefg"[: config.num_classes])
    model.card = ModelCard(class_names=names)
    again = load_model(save_model(model, tmp_path / "theirs", "huggingface"))
    assert not caplog.text
    assert again.config == config
    assert again.card.class_names == names
    assert again.state_dict().keys() == model.state_dict().keys()
    for key, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[key]), key


def test_the_names_written_are_those_of_every_release(tmp_path: Path) -> None:
    config = ViTConfig((8, 12), (4, 2), WIDTH, DEPTH, HEADS, HIDDEN, CLASSES)
    folder = save_model(random_model(config), tmp_path / "vit", "huggingface")
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        assert set(file.keys()) == set(random_vit("vit.", IN_FILES, classifier=True, pooler=False))
        assert file.metadata() == {"format": "pt"}  # transformers refuses a file that does not say so
    folder = save_model(random_model(bit(layers=(2,))), tmp_path / "bit", "huggingface")
    units = [f"bit.encoder.stages.0.layers.{u}" for u in (0, 1)]
    expected = {"bit.embedder.convolution.weight", "classifier.1.weight", "classifier.1.bias"}
    expected |= {"bit.norm.weight", "bit.norm.bias", f"{units[0]}.downsample.conv.weight"}
    for unit in units:
        expected |= {f"{unit}.conv{number}.weight" for number in (1, 2, 3)}
        expected |= {f"{unit}.norm{number}.{kind}" for number in (1, 2, 3) for kind in ("weight", "bias")}
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        assert set(file.keys()) == expected


def test_the_config_written_says_our_arithmetic(tmp_path: Path) -> None:
    model = random_model(TINY)
    model.card = ModelCard(class_names=("a", "b", "c", "d", "<é>"))
    folder = save_model(model, tmp_path / "theirs", "huggingface")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["ViTForImageClassification"]
    assert (config["hidden_act"], config["layer_norm_eps"]) == ("gelu_pytorch_tanh", 1e-6)
    assert config["image_size"] == [12, 16] and config["patch_size"] == 4
    assert config["id2label"]["4"] == "<é>" and config["label2id"]["<é>"] == 4
    assert [config[key] for key in ("hidden_size", "num_hidden_layers", "intermediate_size")] == [24, 2, 40]


@pytest.mark.parametrize("config", [TINY, bit()], ids=["vit", "bit"])
def test_a_loss_of_yes_and_no_survives_the_way_there_and_back(config: ModelConfig, tmp_path: Path) -> None:
    for task, said in ((Task(loss="sigmoid"), "multi_label_classification"), (None, None)):
        model = random_model(config)
        model.card = ModelCard(task=task)
        folder = save_model(model, tmp_path / "theirs", "huggingface")
        assert json.loads((folder / "config.json").read_text())["problem_type"] == said
        assert load_model(folder).card.task == task


@pytest.mark.parametrize(
    "rule",
    [
        Preprocessing((35, 35)),
        Preprocessing((35, 35), interpolation="bicubic"),
        Preprocessing((35, 35), "shortest", 0.875, crop_offset="down"),
        Preprocessing((35, 35), "shortest", 35 / 33, interpolation="lanczos", crop_offset="down"),
        Preprocessing((35, 35), "squash", 35 / 38, interpolation="nearest", crop_offset="down"),
        Preprocessing((35, 35), "none", crop_offset="down"),
    ],
    ids=lambda rule: f"{rule.resize} {rule.crop_fraction:g} {rule.interpolation}",
)
def test_preparation_survives_the_way_there_and_back(
    rule: Preprocessing, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = random_model(bit(image_size=(35, 35)))
    model.card = ModelCard(preprocessing=rule)
    again = load_model(save_model(model, tmp_path / "theirs", "huggingface"))
    assert not changed_pixels(rule, preprocessing_of(again))
    assert not caplog.text


@pytest.mark.parametrize(
    ("rule", "warnings"),
    [
        (Preprocessing((12, 16), "crop", antialias=False), ("resize: 'crop' becomes 'stretch'", "antialias")),
        (Preprocessing((12, 12), "shortest"), ("crop_offset: 'even' becomes 'down'",)),
        (Preprocessing((12, 12), "longest", 1.0, border=(9, 9, 9)), ("resize: 'longest'", "border")),
    ],
)
def test_preparation_that_theirs_cannot_do_is_said(
    rule: Preprocessing, warnings: tuple[str, ...], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = random_model(dataclasses.replace(TINY, image_size=rule.image_size))
    model.card = ModelCard(preprocessing=rule)
    save_model(model, tmp_path / "theirs", "huggingface")
    for warning in warnings:
        assert warning in caplog.text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"representation_size": 8}, "head='new'"),
        ({"pool": "mean"}, "pool mean"),
        ({"pool": "map"}, "pool map"),
        ({"register_tokens": 2}, "register_tokens 2"),
        ({"class_token_position": False}, "class_token_position False"),
        ({"position": "learned_2d"}, "position learned_2d"),
        ({"position_at": "every_layer"}, "position_at every_layer"),
    ],
)
def test_architectures_they_have_no_name_for_are_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(VitkitError, match=message):
        save_model(random_model(dataclasses.replace(TINY, **changes)), tmp_path / "theirs", "huggingface")
    assert not (tmp_path / "theirs").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [("R26+ViT-S/32", "backbone of"), ("Axial-ViT-B/32", "axial"), ("AxialResNet-50", "axial attention")],
)
def test_other_families_are_refused(name: str, message: str, tmp_path: Path) -> None:
    with torch.device("meta"):
        model = build_model(model_config(name))
    with pytest.raises(VitkitError, match=message):
        save_model(model, tmp_path / "theirs", "huggingface")


@pytest.mark.parametrize(
    ("config", "warning"),
    [
        (bit(standardization_eps=1e-10), "standardisation"),
        (bit(norm_eps=1e-6), "GroupNorm"),
        (bit(max_pool_padding="lowest"), "max-pooling"),
        (dataclasses.replace(TINY, dropout=0.1), "dropout"),
    ],
)
def test_arithmetic_they_cannot_say_is_said(
    config: ModelConfig, warning: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_model(random_model(config), tmp_path / "theirs", "huggingface")
    assert warning in caplog.text


def test_a_folder_of_our_own_layout_is_left_alone(tmp_path: Path) -> None:
    model = random_model(TINY)
    save_model(model, tmp_path / "model")
    before = (tmp_path / "model" / "model.safetensors").read_bytes()
    with pytest.raises(VitkitError, match="another folder"):
        save_model(model, tmp_path / "model", "huggingface")
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == before
