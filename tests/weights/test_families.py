"""Today's families, from files with the names of their own libraries: equal to them, or refused by name."""

import json
import logging
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from tests.helpers.random_models import same_bits
from tests.helpers.refusals import refused
from tests.peers import families
from tests.peers.families import NUMBERS, drawn, outputs, write_files
from vitkit import load_model
from vitkit.weights.loading import save_model
from vitkit.weights.table import IMAGENET_MEAN


@cache
def numbers() -> dict[str, NDArray[Any]]:
    with np.load(NUMBERS) as arrays:
        return dict(arrays)


NAMES = sorted(key.removesuffix("/file") for key in np.load(NUMBERS).files if key.endswith("/file"))


def made(name: str) -> Any:
    """A file as its library writes it: names, shapes and settings are the library's, the numbers drawn."""
    description = json.loads(str(numbers()[f"{name}/file"]))
    shapes = {key: tuple(shape) for key, shape in description.pop("shapes").items()}
    return SimpleNamespace(**description, tensors=drawn(shapes))


@pytest.mark.parametrize("name", NAMES)
def test_a_family_computes_what_its_own_library_does(name: str) -> None:
    """At its own size, at another and at a rectangle, whose positions its library has resized.

    The outputs differ by float32 sums in another order, up to 6e-6 of the largest on other processors.
    """
    for (rows, columns), actual in outputs(made(name)):
        expected = torch.from_numpy(numbers()[f"{name}/{rows}x{columns}"])
        tolerance = 2e-5 * float(expected.abs().max())
        torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


OTHERS = ("DeiT III", "DINOv2 with registers", "CLIP", "CLIP of OpenAI", "SigLIP")
OF_TIMM = [f"timm, {name}" for name in (*families.TIMM_PARTS, *OTHERS)]


@pytest.mark.parametrize("name", ["vit, classifier", "bit, classifier", *OF_TIMM])
def test_a_file_is_written_as_its_library_writes_it(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = made(name)
    model = load_model(write_files(file, tmp_path), image_size=32)
    caplog.clear()
    folder = save_model(model, tmp_path / "again", "timm" if name.startswith("timm") else "huggingface")
    assert not caplog.text
    tensors = load_file(folder / "model.safetensors")
    assert tensors.keys() == file.tensors.keys()
    assert all(torch.equal(tensors[key], tensor) for key, tensor in file.tensors.items())
    assert load_model(folder).config == model.config
    written, theirs = json.loads((folder / "config.json").read_text()), file.settings["config.json"]
    if name.startswith("timm"):
        written, theirs = written["model_args"], theirs["model_args"]
        assert theirs.keys() <= written.keys()
    shared = written.keys() & theirs.keys() - {"patch_size"}  # 8 or [8, 8]
    assert {key: written[key] for key in shared} == {key: theirs[key] for key in shared}


@pytest.mark.parametrize("name", ["mean, then the norm", "DINOv2 with registers", "CLIP", "QK-norm"])
def test_tensors_of_timm_show_its_parts_without_its_settings(name: str, tmp_path: Path) -> None:
    file = made(f"timm, {name}")
    described = load_model(write_files(file, tmp_path)).config
    torch.save(file.tensors, tmp_path / "vit.pth")
    (tmp_path / "config.json").unlink()
    pixels = {"image_mean": described.image_mean, "image_std": described.image_std}
    assert load_model(tmp_path / "vit.pth", num_heads=2, image_size=32, **pixels).config == described


@pytest.mark.parametrize(
    ("name", "left_out"),
    [
        ("clip", "the tower for texts"),
        ("siglip, classifier", "attention pooling beside a classifier"),
        ("clip, classifier", "a norm beside a classifier"),
        ("vit_mae, with its decoder", "the decoder of masked image modelling"),
        ("dinov2", "the mask token"),
        ("open_clip", "the tower for texts"),
        ("MAE", "the decoder of masked image modelling"),
        ("DINOv2", "the mask token"),
    ],
)
def test_what_is_left_aside_is_said(
    name: str, left_out: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "vitkit"):
        load_model(write_files(made(name), tmp_path), num_heads=made(name).num_heads)
    assert left_out in caplog.text


LACKING = [
    ("dinov2", {"hidden_act": "relu"}, "the activation relu"),
    ("dinov2", {"qkv_bias": False}, "qkv_bias"),
    ("dinov2", {"use_swiglu_ffn": True}, "does not hold the weights"),
    ("dinov2, SwiGLU", {"use_swiglu_ffn": False}, "does not hold the weights"),
    ("dinov3_vit, SwiGLU", {"hidden_act": "gelu"}, r"the activation gelu \(expected silu\)"),
    ("dinov3_vit", {"query_bias": False}, r"q_proj\.bias: unexpected"),
    ("dinov3_vit", {"model_type": "dinov3_convnext"}, "found 'dinov3_convnext'"),
    ("siglip", {"model_type": "siglip2"}, "NaFlex.*hf:google/siglip2-base-patch16-224"),
    ("clip", {"vision_config": [1]}, "vision_config: expected an object"),
    ("beit", {"use_shared_relative_position_bias": True}, "all layers share"),
    ("beit", {"use_absolute_position_embeddings": True}, "absolute and relative positions together"),
    ("timm, DINOv2 giant", {"architecture": "vit_giant_patch14_224"}, "what its gates are"),
    ("timm, EVA-02 B", {"architecture": "eva02_base_patch16_clip_224"}, "what its gates|something else"),
    ("timm, no final norm", {"model_args": {}}, "no final norm"),
    ("timm, BEiT v2", {"architecture": "naflexvit_base_patch16_gap"}, "NaFlex"),
    ("timm, BEiT v2", {"architecture": "vit_base_patch16_radio_v3"}, "C-RADIO"),
    ("open_clip", {"attentional_pool": True}, "attentional_pool=True"),
    ("open_clip", {"a_new_field": 3}, "a_new_field=3"),
    ("open_clip", {"norm_kwargs": {"bias": False}}, "norm_kwargs"),
    ("open_clip", {"head_width": 0}, "do not belong together"),
    ("open_clip", {"norm_kwargs": {"eps": "small"}}, "norm_kwargs"),
    ("open_clip", {"head_width": 24}, "do not belong together"),
    ("open_clip", {"width": 32}, "do not belong together"),
]


@pytest.mark.parametrize(("name", "changes", "message"), LACKING)
def test_what_a_family_lacks_here_is_refused_by_name(
    name: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    file = made(name)
    if name == "open_clip":
        file.settings["open_clip_config.json"]["model_cfg"]["vision_cfg"] |= changes
    else:
        file.settings["config.json"] |= changes
    refused(message, load_model, write_files(file, tmp_path))


def test_a_checkpoint_of_dinos_training_is_its_backbone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """DINO's and DINOv2's: the tensors of the backbone behind a prefix, beside projection heads."""
    for name, head in (("DINOv2", "dino_head.mlp.0.weight"), ("MAE", "head.last_layer.weight_g")):
        file = made(name)
        alone = {key: tensor for key, tensor in file.tensors.items() if not key.startswith("decoder_")}
        if name == "MAE":  # an encoder with timm's names, as DINO's is
            del alone["mask_token"]
        file.tensors = {f"backbone.{key}": tensor for key, tensor in alone.items()} | drawn({head: (8, 64)})
        with caplog.at_level(logging.INFO, "vitkit"):
            model = load_model(write_files(file, tmp_path), num_heads=2)
        assert "the projection head of the training" in caplog.text
        assert model.card.position_interpolation == "dinov2"
        assert model.config.image_mean == IMAGENET_MEAN
        file.tensors = alone
        same = load_model(write_files(file, tmp_path), num_heads=2)
        assert same_bits(model, same)


def test_siglip_without_a_pooling_is_read_with_the_mean(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = made("siglip_vision_model")
    file.settings["config.json"]["vision_use_head"] = False
    file.tensors = {key: tensor for key, tensor in file.tensors.items() if not key.startswith("head.")}
    assert load_model(write_files(file, tmp_path)).config.pool == "mean"
    assert "no pooling of its own" in caplog.text


def test_buffers_of_older_releases_are_left_out(tmp_path: Path) -> None:
    for name, key in (
        ("clip", "vision_model.embeddings.position_ids"),
        ("beit", "encoder.layer.0.attention.attention.relative_position_bias.relative_position_index"),
        ("timm, BEiT v2", "blocks.0.attn.relative_position_index"),
    ):
        file = made(name)
        expected = load_model(write_files(file, tmp_path))
        file.tensors[key] = torch.zeros(17, 17, dtype=torch.int64)
        assert same_bits(load_model(write_files(file, tmp_path)), expected)


OTHER_SHAPES = [
    ("open_clip", "visual.proj", (64,)),
    ("open_clip", "visual.conv1.weight", (64, 3)),
    ("open_clip", "visual.class_embedding", (63,)),
    ("DINOv2, registers", "register_tokens", (4,)),
    ("DINOv2, registers", "pos_embed", (17,)),
    ("DINOv2, SwiGLU", "blocks.0.mlp.w3.weight", (64,)),
    ("dinov2_with_registers", "embeddings.register_tokens", (64,)),
    ("dinov2_with_registers", "embeddings.position_embeddings", ()),
    ("dinov3_vit, SwiGLU", "layer.0.mlp.gate_proj.weight", (128,)),
    (
        "beit",
        "encoder.layer.0.attention.attention.relative_position_bias.relative_position_bias_table",
        (2,),
    ),
    ("timm, EVA-02 S", "blocks.0.mlp.fc1.weight", ()),
    ("timm, EVA-02 B", "blocks.0.mlp.fc2.weight", (64,)),
    ("timm, BEiT v2", "blocks.0.attn.relative_position_bias_table", (5, 5, 2)),
]


@pytest.mark.parametrize(("name", "key", "shape"), OTHER_SHAPES)
def test_other_shapes_are_refused(name: str, key: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    file = made(name)
    assert key in file.tensors
    file.tensors[key] = torch.zeros(shape)
    refused(".", load_model, write_files(file, tmp_path), num_heads=file.num_heads)


def test_open_clip_needs_its_settings(tmp_path: Path) -> None:
    file = made("open_clip")
    file.settings = {}
    refused(r"put the open_clip_config\.json", load_model, write_files(file, tmp_path))


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("visual.trunk.norm.weight", "hf:timm/NAME"),
        ("radio_model.model.norm", r"C-RADIO .* load DINOv3 or SigLIP 2 of a fixed size"),
    ],
)
def test_towers_that_are_not_read_are_refused_by_name(key: str, message: str, tmp_path: Path) -> None:
    torch.save(drawn({key: (4,)}), tmp_path / "model.pth")
    refused(message, load_model, tmp_path / "model.pth")


def test_a_head_for_other_classes_reads_both_poolings(tmp_path: Path) -> None:
    model = load_model(write_files(made("dinov2, classifier"), tmp_path), num_classes=3)
    assert model.state_dict()["head.weight"].shape == (3, 128)
    assert model.features(torch.zeros(2, 3, 32, 32)).shape == (2, 128)
