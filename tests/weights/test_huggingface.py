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
from tests.helpers.refusals import refused
from tests.pixel_cases import source
from vitkit import load_model
from vitkit.data.config import Preprocessing
from vitkit.models.config import ResNetConfig, Task, ViTConfig
from vitkit.models.zoo import ModelConfig
from vitkit.weights.formats.huggingface_processor import read_pixels, read_rule
from vitkit.weights.loading import save_model
from vitkit.weights.model_card import ModelCard, card_of, preprocessing_of

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
    changed: dict[str, Tensor | None] = {**load_file(weights), **(arrays or {})}
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
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
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


KEY = "vit.encoder.layer.1.attention.attention.key"
DISTILLED = {"distillation_classifier.weight": torch.zeros(CLASSES, WIDTH)}


OTHER_VITS = [
    ("config", {"qkv_bias": False}, "qkv_bias"),
    ("config", {"hidden_act": "relu"}, "relu"),
    ("config", {"head_dim": 4}, "head_dim"),
    ("config", {"num_attention_heads": None}, "give num_heads"),
    ("config", {"model_type": "vit-hybrid"}, "original release"),
    ("config", {"model_type": "swin"}, "beit, bit, clip.* are read, found 'swin'.$"),
    (
        "config",
        {"model_type": "dinov2_with_registers"},
        r"mlp\.fc1\.weight: missing, .* of 2 axes",
    ),
    ("config", {"model_type": "siglip2_vision_model"}, "NaFlex.*hf:google/siglip2-base-patch16-224"),
    ("config", {"image_size": "large"}, "config.json: image_size"),
    ("config", {"id2label": {"0": "cat"}}, "1 names for 3 classes"),
    ("config", {"image_size": 10**30}, "config.json: image_size"),
    ("config", {"image_size": [8, -12]}, "image_size is from 1 to"),
    ("config", {"hidden_size": 10**30}, "config.json: hidden_size"),
    ("config", {"num_channels": 10**400}, "config.json: num_channels"),
    ("config", {"layer_norm_eps": float("inf")}, "config.json: layer_norm_eps"),
    ("config", None, r"put the config\.json"),
    ("arrays", {"vit.encoder.layer.0.lambda_1": torch.ones(WIDTH)}, "lambda_1: unexpected"),
    ("arrays", DISTILLED, "two classifiers, of the class token"),
    ("arrays", {f"{KEY}.bias": None}, r"layer\.1\..*\.key\.bias: missing"),
    ("arrays", {"vit.encoder.layer.0.intermediate.dense.weight": None}, r"dense\.weight: missing, expected"),
    ("processor", {"image_mean": [0.1, 0.2]}, "images of 3 channels"),
    ("processor", {"resample": -1}, r"resample: expected one of 0 \(nearest\).*found"),
    ("processor", {"resample": 6}, r"resample: expected one of 0 \(nearest\).*found"),
    ("processor", {"rescale_factor": 0}, "preprocessor_config.json: rescale_factor is above 0"),
    ("processor", {"rescale_factor": "x"}, "preprocessor_config.json: rescale_factor"),
    ("processor", {"image_std": [0.5, 0, 0.5]}, "image_std is a number above 0"),
    ("processor", {"image_std": -0.5}, "image_std is a number above 0"),
    ("processor", {"image_mean": float("nan")}, "preprocessor_config.json: image_mean"),
    ("processor", {"rescale_factor": 1e-320}, "image_mean: expected a finite number"),
    ("processor", {"size": 0}, "preprocessor_config.json: size: a side"),
    ("processor", {"size": {"height": [8], "width": 12}}, "preprocessor_config.json: size: a side"),
    ("processor", {"size": {"shortest_edge": True}}, "preprocessor_config.json: size: a side"),
    ("processor", {"size": {"shortest_edge": 10**30}}, "preprocessor_config.json: size: a side"),
    (
        "processor",
        {"crop_size": -8, "do_center_crop": True},
        "config.json: crop_size: a side",
    ),
]


@pytest.mark.parametrize(("part", "changes", "message"), OTHER_VITS)
def test_a_vit_that_we_cannot_compute_is_refused_by_name(
    part: str, changes: dict[str, Any] | None, message: str, tmp_path: Path
) -> None:
    parts: dict[str, Any] = {"config": CONFIG, "processor": PROCESSOR, "arrays": {}}
    changed = {part: None if changes is None else parts[part] | changes}
    refused(message, load_model, vit_folder(tmp_path / "theirs", **changed))


def test_arrays_left_out_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pooler = {"vit.pooler.dense.weight": torch.ones(10, WIDTH), "vit.pooler.dense.bias": torch.ones(10)}
    arrays = {**pooler, "vit.embeddings.mask_token": torch.zeros(1, 1, WIDTH)}
    config = CONFIG | {"pooler_act": "relu"}  # which a classifier ignores
    with caplog.at_level(logging.INFO, "vitkit"):
        loaded = load_model(vit_folder(tmp_path, config, arrays=arrays))
    assert loaded.config.num_classes == CLASSES
    assert "mask_token" in caplog.text and "pooler.dense.weight" in caplog.text
    headless = {"classifier.weight": None, "classifier.bias": None}
    folder = vit_folder(tmp_path, config, arrays={**pooler, **headless})
    refused("pooler with the activation relu", load_model, folder)


def test_class_names_come_along_and_numbered_labels_are_none(tmp_path: Path) -> None:
    names = {"2": "owl", "0": "cat", "1": "dog"}
    named = load_model(vit_folder(tmp_path / "named", CONFIG | {"id2label": names}))
    assert named.card.class_names == ("cat", "dog", "owl")
    labels = {str(i): f"LABEL_{i}" for i in range(CLASSES)}
    assert load_model(vit_folder(tmp_path / "not", CONFIG | {"id2label": labels})).card.class_names == ()


OTHER_RESNETS = [
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
]


@pytest.mark.parametrize(("changes", "message"), OTHER_RESNETS)
def test_other_resnets_are_refused_by_name(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    refused(message, load_model, bit_folder(tmp_path / "bit", **changes))


def test_bit_has_the_size_of_the_crop_or_one_given(tmp_path: Path) -> None:
    model = load_model(bit_folder(tmp_path / "bit"))
    assert model.config == bit(image_size=(32, 32))
    crop = {"size": {"shortest_edge": 40}, "do_center_crop": True, "crop_size": {"height": 32, "width": 36}}
    assert load_model(bit_folder(tmp_path / "crop", crop)).config.image_size == (32, 36)
    folder = bit_folder(tmp_path / "unsaid", {"do_resize": False})
    refused("image_size", load_model, folder)
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
        refused(warning, read_pixels, files, 3)
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
        refused(message, save_model, random_model(config), tmp_path / "no", "huggingface")
