"""Folders written for Hugging Face: read again to the bit, and a note for what their format cannot say."""

import dataclasses
import json
from pathlib import Path

import pytest
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
from vitkit.models.config.vit_config import ViTConfig
from vitkit.models.zoo import ModelConfig
from vitkit.weights.model_card import ModelCard, Task, changed_pixels, preprocessing_of
from vitkit.weights.saving import save_model


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
    assert load_model(folder).card.class_names == model.card.class_names
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


def test_resnets_of_other_channels_are_said_or_refused(tmp_path: Path) -> None:
    narrow = bit(layers=(1, 1, 1, 1), root_width=32, stage_widths=(128, 256, 128, 384), groups=16)
    folder = save_model(random_model(narrow), tmp_path / "theirs", "huggingface")
    described = json.loads((folder / "config.json").read_text())
    assert described["embedding_size"] == 32 and described["hidden_sizes"] == [128, 256, 128, 384]
    assert described["num_groups"] == 16
    for config, message in (
        (dataclasses.replace(narrow, stage_widths=(16, 32, 64, 128), groups=4), "multiples of 8 and of 32"),
        (bit(layers=(1,), root_width=128, stage_widths=(128,)), "as the root"),
    ):
        with pytest.raises(VitkitError, match=message):
            save_model(random_model(config), tmp_path / "no", "huggingface")
