"""Folders of Hugging Face: read, refused by name, and written; their image processors' pixels."""

import dataclasses
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.helpers.random_models import TINY, random_model
from tests.pixel_cases import source
from vitkit import load_model
from vitkit.data.config import Preprocessing
from vitkit.errors import VitkitError
from vitkit.models.config import ResNetConfig, Task, ViTConfig
from vitkit.models.zoo import ModelConfig
from vitkit.weights.formats.huggingface_processor import read_pixels, read_rule
from vitkit.weights.loading import save_model
from vitkit.weights.model_card import ModelCard, card_of, changed_pixels, preprocessing_of

WIDTH, CLASSES = 16, 3
VIT = ViTConfig((8, 12), (4, 2), WIDTH, depth=2, num_heads=2, mlp_dim=24, num_classes=CLASSES, gelu="erf")


CONFIG: dict[str, Any] = {
    "model_type": "vit",
    "num_attention_heads": 2,
    "image_size": [8, 12],
    "patch_size": [4, 2],
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
}


BIT_CONFIG: dict[str, Any] = {
    "model_type": "bit",
    "embedding_size": 32,
    "hidden_sizes": [128, 256],
    "depths": [2, 1],
    "layer_type": "preactivation",
    "global_padding": None,
}


PROCESSOR: dict[str, Any] = {
    "do_resize": True,
    "size": {"height": 8, "width": 12},
    "resample": 2,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


def vit_folder(
    folder: Path,
    config: Mapping[str, Any] | None = CONFIG,
    processor: Mapping[str, Any] | None = PROCESSOR,
    arrays: Mapping[str, Tensor | None] | None = None,
) -> Path:
    """Write a small ViT with other settings, or none, and other arrays; those that are None are not there."""
    save_model(random_model(VIT), folder, "huggingface")
    weights = folder / "model.safetensors"
    changed = load_file(weights) | (arrays or {})
    save_file({name: array for name, array in changed.items() if array is not None}, weights)
    for name, content in (("config.json", config), ("preprocessor_config.json", processor)):
        (folder / name).unlink()
        if content is not None:
            (folder / name).write_text(json.dumps(content))
    return folder


def bit(**changes: Any) -> ResNetConfig:
    config = ResNetConfig((32, 40), (2, 1), 5, width_factor=0.5, standardization_eps=1e-8)
    return dataclasses.replace(config, **changes)


def bit_folder(folder: Path, processor: Mapping[str, Any] | None = None, **changes: Any) -> Path:
    save_model(random_model(bit()), folder, "huggingface")
    (folder / "config.json").write_text(json.dumps(BIT_CONFIG | changes))
    (folder / "preprocessor_config.json").write_text(json.dumps(processor or {"size": {"shortest_edge": 32}}))
    return folder


@pytest.mark.parametrize(
    ("activation", "form"),
    [("gelu", "erf"), ("gelu_new", "tanh"), ("gelu_pytorch_tanh", "tanh"), ("gelu_fast", "tanh")],
)
def test_their_arithmetic_comes_along(activation: str, form: str, tmp_path: Path) -> None:
    said = {"hidden_act": activation, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.2}
    model = load_model(vit_folder(tmp_path / "theirs", CONFIG | said))
    assert model.config.gelu == form
    assert (model.config.dropout, model.config.attention_dropout) == (0.1, 0.2)
    assert model.config.norm_eps == 1e-12


def test_what_a_config_leaves_out_is_what_transformers_takes(tmp_path: Path) -> None:
    config = {key: CONFIG[key] for key in ("model_type", "num_attention_heads", "image_size")}
    model = load_model(vit_folder(tmp_path / "theirs", config))
    assert (model.config.gelu, model.config.norm_eps) == ("erf", 1e-12)
    folder = vit_folder(tmp_path / "headless", CONFIG | {"num_attention_heads": None})
    assert load_model(folder, num_heads=4).config.num_heads == 4  # where they are not said


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"qkv_bias": False}, "qkv_bias"),
        ({"hidden_act": "relu"}, "relu"),
        ({"head_dim": 4}, "head_dim"),
        ({"num_attention_heads": None}, "give num_heads"),
        ({"model_type": "vit-hybrid"}, "original release"),
        ({"model_type": "swin"}, "beit, bit, clip.* are read, found 'swin'.$"),
        ({"model_type": "dinov2_with_registers"}, r"mlp\.fc1\.weight: missing, expected an array of 2 axes"),
        ({"model_type": "siglip2_vision_model"}, "NaFlex.*hf:google/siglip2-base-patch16-224"),
        ({"image_size": "large"}, "config.json: image_size"),
        ({"id2label": {"0": "cat"}}, "1 names for 3 classes"),
        ({"image_size": 10**30}, "config.json: image_size"),
        ({"image_size": [8, -12]}, "image_size is from 1 to"),
        ({"hidden_size": 10**30}, "config.json: hidden_size"),
        ({"num_channels": 10**400}, "config.json: num_channels"),
        ({"layer_norm_eps": float("inf")}, "config.json: layer_norm_eps"),
        (None, r"put the config\.json"),
    ],
)
def test_what_we_lack_is_refused_by_name(
    changes: dict[str, Any] | None, message: str, tmp_path: Path
) -> None:
    with pytest.raises(VitkitError, match=message):
        load_model(vit_folder(tmp_path / "theirs", None if changes is None else CONFIG | changes))


def test_arrays_left_out_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pooler = {"vit.pooler.dense.weight": torch.ones(10, WIDTH), "vit.pooler.dense.bias": torch.ones(10)}
    arrays = {**pooler, "vit.embeddings.mask_token": torch.zeros(1, 1, WIDTH)}
    config = CONFIG | {"pooler_act": "relu"}  # which a classifier ignores
    with caplog.at_level(logging.INFO, "vitkit"):
        loaded = load_model(vit_folder(tmp_path, config, arrays=arrays))
    assert loaded.config.num_classes == CLASSES
    assert "mask_token" in caplog.text and "pooler.dense.weight" in caplog.text
    headless = {"classifier.weight": None, "classifier.bias": None}
    with pytest.raises(VitkitError, match="pooler with the activation relu"):
        load_model(vit_folder(tmp_path, config, arrays=pooler | headless))


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("vit.encoder.layer.0.lambda_1", torch.ones(WIDTH), r"lambda_1: unexpected"),
        (
            "distillation_classifier.weight",
            torch.zeros(CLASSES, WIDTH),
            "two classifiers, of the class token",
        ),
        ("vit.encoder.layer.1.attention.attention.key.bias", None, r"layer\.1\..*\.key\.bias: missing"),
        ("vit.encoder.layer.0.intermediate.dense.weight", None, r"dense\.weight: missing, expected"),
    ],
)
def test_an_array_too_many_or_too_few_is_named(
    name: str, array: Tensor | None, message: str, tmp_path: Path
) -> None:
    with pytest.raises(VitkitError, match=message):
        load_model(vit_folder(tmp_path, arrays={name: array}))


def test_class_names_come_along_and_numbered_labels_are_none(tmp_path: Path) -> None:
    names = {"2": "owl", "0": "cat", "1": "dog"}
    named = load_model(vit_folder(tmp_path / "named", CONFIG | {"id2label": names}))
    assert named.card.class_names == ("cat", "dog", "owl")
    labels = {str(i): f"LABEL_{i}" for i in range(CLASSES)}
    assert load_model(vit_folder(tmp_path / "not", CONFIG | {"id2label": labels})).card.class_names == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_type": "bottleneck"}, "bottleneck"),
        ({"global_padding": "SAME"}, "padding SAME"),
        ({"embedding_dynamic_padding": True}, "embedding_dynamic_padding"),
        ({"hidden_act": "gelu"}, "activation gelu"),
        ({"num_groups": 0}, "num_groups 0"),
        ({"num_groups": 24}, "24 groups"),
        ({"hidden_sizes": [128]}, r"hidden_sizes \(128,\) for 2 stages"),
        ({"hidden_sizes": [128, 144], "num_groups": 4}, "multiples of 8 and of 32"),
        ({"hidden_sizes": [32, 256], "num_groups": 8}, "first stage of as many channels as the root"),
        ({"output_stride": 4}, "dilates"),
        ({"width_factor": 2}, "width_factor"),
        ({"depths": [10**6, 1]}, "at most 10 stages and 1,000 units"),
        ({"depths": [3, 1]}, "missing"),
        ({"depths": [0, 1]}, "at least one unit"),
        ({"num_channels": 10**30}, "config.json: num_channels"),
        ({"hidden_sizes": [128, 10**30]}, "config.json: hidden_sizes"),
        ({"num_channels": 0}, "in_channels is from 1 to"),
    ],
)
def test_other_resnets_are_refused_by_name(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(VitkitError, match=message):
        load_model(bit_folder(tmp_path / "bit", **changes))


def test_bit_has_their_epsilons_and_the_size_of_the_crop_or_one_given(tmp_path: Path) -> None:
    model = load_model(bit_folder(tmp_path / "bit"))
    assert model.config == bit(image_size=(32, 32))
    config = model.config
    assert (config.norm_eps, config.standardization_eps, config.max_pool_padding) == (1e-5, 1e-8, "zeros")
    crop = {"size": {"shortest_edge": 40}, "do_center_crop": True, "crop_size": {"height": 32, "width": 36}}
    assert load_model(bit_folder(tmp_path / "crop", crop)).config.image_size == (32, 36)
    folder = bit_folder(tmp_path / "unsaid", {"do_resize": False})
    with pytest.raises(VitkitError, match="image_size"):
        load_model(folder)
    assert load_model(folder, image_size=48).config.image_size == (48, 48)


# The image processors of Hugging Face: the same pixels, or a note that says what differs


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}, "standard"),
        ({"rescale_factor": 1 / 127.5, "image_mean": [1, 1, 1], "image_std": [1, 1, 1]}, "other factor"),
        ({"do_normalize": False}, "no normalisation"),
        ({"do_rescale": False, "image_mean": [100, 110, 120], "image_std": [50, 60, 70]}, "no rescaling"),
    ],
)
def test_bytes_become_their_processors_numbers(
    changes: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    processor = PROCESSOR | changes
    model = load_model(vit_folder(tmp_path / "theirs", processor=processor))
    pixels = torch.randint(256, (2, 3, 8, 12), dtype=torch.uint8)
    numbers = pixels.double()
    if processor.get("do_rescale", True):
        numbers *= processor.get("rescale_factor", 1 / 255)
    if processor["do_normalize"]:
        mean, std = (torch.tensor(processor[key]).view(-1, 1, 1) for key in ("image_mean", "image_std"))
        numbers = (numbers - mean) / std
    torch.testing.assert_close(model.normalize(pixels).double(), numbers, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_mean": [0.1, 0.2]}, "images of 3 channels"),
        ({"resample": -1}, r"resample: expected one of 0 \(nearest\).*found"),
        ({"resample": 6}, r"resample: expected one of 0 \(nearest\).*found"),
        ({"rescale_factor": 0}, "preprocessor_config.json: rescale_factor is above 0"),
        ({"rescale_factor": "x"}, "preprocessor_config.json: rescale_factor"),
        ({"image_std": [0.5, 0, 0.5]}, "image_std is a number above 0"),
        ({"image_std": -0.5}, "image_std is a number above 0"),
        ({"image_mean": float("nan")}, "preprocessor_config.json: image_mean"),
        ({"rescale_factor": 1e-320}, "image_mean: expected a finite number"),
        ({"size": 0}, "preprocessor_config.json: size: a side"),
        ({"size": {"height": [8], "width": 12}}, "preprocessor_config.json: size: a side"),
        ({"size": {"shortest_edge": True}}, "preprocessor_config.json: size: a side"),
        ({"size": {"shortest_edge": 10**30}}, "preprocessor_config.json: size: a side"),
        ({"crop_size": -8, "do_center_crop": True}, "preprocessor_config.json: crop_size: a side"),
    ],
)
def test_pixels_of_no_image_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(VitkitError, match=message):
        load_model(vit_folder(tmp_path / "theirs", processor=PROCESSOR | changes))


CROP = {"do_center_crop": True, "crop_size": {"height": 8, "width": 8}}


STRETCHED = Preprocessing((8, 12))
SIZED = {"height": 10, "width": 11}
CUT = Preprocessing((8, 8), "shortest", 0.8, crop_offset="down")
SQUASHED = dataclasses.replace(CUT, resize="squash")


@pytest.mark.parametrize(
    ("changes", "rule", "warning"),
    [
        ({}, STRETCHED, ""),
        ({"size": [8, 12]}, None, "size"),
        ({"size": 8}, STRETCHED, "images of 8x8 (here: 8x12)"),
        ({"resample": 3}, dataclasses.replace(STRETCHED, interpolation="bicubic"), ""),
        ({"size": {"shortest_edge": 8}}, STRETCHED, "proportions"),
        ({"size": {"shortest_edge": 10}, **CROP}, CUT, ""),
        ({"size": 10, "do_center_crop": True, "crop_size": 8}, SQUASHED, ""),
        ({"size": 10, "image_processor_type": "BitImageProcessorFast", **CROP}, CUT, ""),
        ({"size": {"height": 10, "width": 10}, **CROP}, SQUASHED, ""),
        ({"size": SIZED, **CROP}, SQUASHED, "resized to 10x11"),
        ({"size": {"shortest_edge": 6}, **CROP}, dataclasses.replace(CUT, crop_fraction=8 / 6), ""),
        ({"do_resize": False, **CROP}, dataclasses.replace(CUT, resize="none", crop_fraction=0.875), ""),
        ({"image_processor_type": "PvtImageProcessor"}, STRETCHED, "the processor of Pvt"),
    ],
)
def test_preparation_is_put_in_our_words_and_differences_are_said(
    changes: dict[str, Any], rule: Preprocessing | None, warning: str
) -> None:
    files = source({"preprocessor_config.json": PROCESSOR | changes})
    if rule is None:
        with pytest.raises(VitkitError, match=warning):
            read_pixels(files, 3)
        return
    assert read_rule(files, read_pixels(files, 3)[0], rule.image_size) == rule
    assert (warning in files.notes[0]) if warning else not files.notes


def test_without_a_processor_usual_pixels_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = load_model(vit_folder(tmp_path / "theirs", processor=None))
    assert model.config.image_mean == model.config.image_std == (0.5, 0.5, 0.5)
    assert preprocessing_of(model) == STRETCHED
    assert [assumption.what for assumption in card_of(model).assumed] == ["pixel statistics", "resizing"]
    assert "assumed: pixel mean 0.5 and std 0.5" in caplog.text and "assumed: images stretched" in caplog.text
    caplog.clear()
    processor = {key: value for key, value in PROCESSOR.items() if key != "image_mean"}
    model = load_model(vit_folder(tmp_path / "without", processor=processor))
    assert [assumption.what for assumption in card_of(model).assumed] == ["pixel statistics"]
    assert "assumed: pixel mean 0.5" in caplog.text


# Folders written for Hugging Face: read again to the bit, and a note for what their format cannot say


def test_the_config_written_says_our_arithmetic(tmp_path: Path) -> None:
    model = random_model(TINY)
    model.card = ModelCard(class_names=("a", "b", "c", "d", "<é>"))
    folder = save_model(model, tmp_path / "theirs", "huggingface")
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}  # transformers refuses a file that does not say so
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
