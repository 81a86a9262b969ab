"""Folders of Hugging Face, made by hand: what is read, and what is refused by name."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.helpers.huggingface_files import (
    CLASSES,
    CONFIG,
    IN_FILES,
    IN_MODULES,
    WIDTH,
    bit,
    bit_folder,
    random_vit,
    their_answer,
    vit_folder,
    write_folder,
)
from tests.helpers.random_models import same_bits
from vitkit import load_model
from vitkit.errors import VitkitError


@pytest.mark.parametrize("names", [IN_FILES, IN_MODULES], ids=["files", "modules"])
@pytest.mark.parametrize(
    ("prefix", "classifier", "pooler"),
    [("vit.", True, False), ("deit.", True, False), ("", False, True), ("", False, False)],
)
def test_their_arrays_give_their_answer(
    prefix: str, classifier: bool, pooler: bool, names: dict[str, str], tmp_path: Path
) -> None:
    arrays = random_vit(prefix, names, classifier=classifier, pooler=pooler)
    kind = prefix.rstrip(".") or "vit"
    model = load_model(write_folder(tmp_path / "theirs", arrays, CONFIG | {"model_type": kind}))
    assert (model.config.num_classes, model.config.representation_size) == (
        CLASSES if classifier else 0,
        10 if pooler else None,
    )
    images = torch.randn(4, 3, 8, 12, generator=torch.Generator().manual_seed(1))
    expected = their_answer(arrays, prefix, names, images)
    with torch.inference_mode():
        torch.testing.assert_close(model(images), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["shards", "bin"])
def test_shards_and_pytorch_files_are_read_too(kind: str, tmp_path: Path) -> None:
    whole = load_model(vit_folder(tmp_path / "whole"))
    folder = vit_folder(tmp_path / kind)
    arrays = random_vit("vit.", IN_FILES, classifier=True, pooler=False)
    (folder / "model.safetensors").unlink()
    if kind == "bin":
        torch.save(arrays, folder / "pytorch_model.bin")
    else:
        parts = {f"model-{number}-of-2.safetensors": list(arrays)[number - 1 :: 2] for number in (1, 2)}
        for file, keys in parts.items():
            save_file({key: arrays[key] for key in keys}, folder / file)
        index = {"weight_map": {key: file for file, keys in parts.items() for key in keys}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert same_bits(load_model(folder), whole)


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
        ({"model_type": "swin"}, "vit and bit are read, found 'swin'.$"),
        ({"model_type": "dinov2_with_registers"}, "timm's file of the same weights is read"),
        ({"model_type": "siglip_vision_model"}, "timm's file of the same weights is read"),
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
def test_what_no_model_of_ours_has_is_refused_by_name(
    changes: dict[str, Any] | None, message: str, tmp_path: Path
) -> None:
    with pytest.raises(VitkitError, match=message):
        load_model(vit_folder(tmp_path / "theirs", None if changes is None else CONFIG | changes))


def test_arrays_left_out_on_purpose_are_named_and_others_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    arrays = random_vit("vit.", IN_FILES, classifier=True, pooler=True)
    arrays["vit.embeddings.mask_token"] = torch.zeros(1, 1, WIDTH)
    config = CONFIG | {"pooler_act": "relu"}  # which a classifier ignores
    with caplog.at_level(logging.INFO, "vitkit"):
        loaded = load_model(write_folder(tmp_path / "more", arrays, config))
    assert loaded.config.num_classes == CLASSES
    assert "mask_token" in caplog.text and "pooler.dense.weight" in caplog.text
    arrays["vit.encoder.layer.0.lambda_1"] = torch.ones(WIDTH)
    with pytest.raises(VitkitError, match=r"lambda_1: unexpected"):
        load_model(write_folder(tmp_path / "unknown", arrays))
    arrays = random_vit("", IN_FILES, classifier=False, pooler=True)
    with pytest.raises(VitkitError, match="pooler with the activation relu"):
        load_model(write_folder(tmp_path / "pooled", arrays, config))
    arrays = random_vit("deit.", IN_FILES, classifier=True, pooler=False)
    arrays["deit.embeddings.distillation_token"] = torch.zeros(1, 1, WIDTH)
    with pytest.raises(VitkitError, match="distillation token"):
        load_model(write_folder(tmp_path / "theirs", arrays, CONFIG | {"model_type": "deit"}))


def test_a_missing_array_is_named(tmp_path: Path) -> None:
    arrays = random_vit("vit.", IN_FILES, classifier=True, pooler=False)
    del arrays["vit.encoder.layer.1.attention.attention.key.bias"]
    with pytest.raises(VitkitError, match=r"layer\.1\.attention\.attention\.key\.bias: missing"):
        load_model(write_folder(tmp_path / "theirs", arrays))
    del arrays["vit.encoder.layer.0.intermediate.dense.weight"]
    with pytest.raises(VitkitError, match=r"no whole ViT: .*layer\.0\.intermediate\.dense\.weight"):
        load_model(write_folder(tmp_path / "theirs", arrays))


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
        ({"depths": [10**6, 1]}, "more than its arrays"),
        ({"depths": [3, 1]}, "missing"),
        ({"depths": [0, 1]}, "at least one unit"),
        ({"num_channels": 10**30}, "config.json: num_channels"),
        ({"embedding_size": 10**30}, "config.json: embedding_size"),
        ({"hidden_sizes": [128, 10**30]}, "config.json: hidden_sizes"),
        ({"num_channels": 0}, "in_channels is from 1 to"),
    ],
)
def test_other_resnets_are_refused_by_name(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(VitkitError, match=message):
        load_model(bit_folder(tmp_path / "bit", **changes))


def test_bit_is_read_with_their_epsilons_and_its_size_is_the_crop_or_given_or_asked_for(
    tmp_path: Path,
) -> None:
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
