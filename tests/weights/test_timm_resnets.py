"""timm's ResNets: BiT by its name, others by the arguments in their config.json."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.helpers.random_models import random_model
from vitkit import load_model
from vitkit.errors import VitkitError
from vitkit.models.build import build_model
from vitkit.models.config import ResNetConfig
from vitkit.models.image_model import ImageModel
from vitkit.weights.loading import save_model
from vitkit.weights.model_card import card_of

BIT = ResNetConfig((32, 48), (3, 4, 6, 3), num_classes=5, standardization_eps=1e-8)


@pytest.mark.parametrize(
    ("key", "shape", "message"),
    [
        ("stem.conv.weight", (64,), "4 axes"),
        ("head.fc.weight", (5, 2048), "4 axes"),
        ("head.fc.weight", (5, 2048, 2, 1), "1x1 pixels"),
    ],
)
def test_misshapen_tensors_of_bit_are_named(
    tmp_path: Path, key: str, shape: tuple[int, ...], message: str
) -> None:
    save_model(random_model(BIT), tmp_path, format="timm")
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, key: torch.zeros(shape)}, tmp_path / "model.safetensors")
    with pytest.raises(VitkitError, match=f"{key}: .*{message}"):
        load_model(tmp_path)


def test_a_resnet_that_is_no_bit_is_refused_and_its_size_asked_for(tmp_path: Path) -> None:
    save_model(random_model(BIT), tmp_path, format="timm")
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
    renames = (
        ("root.", "stem.conv."),
        (".proj.", ".downsample.conv."),
        ("head.", "head.fc."),
        *(
            (f"stages.{stage}.{unit}.", f"stages.{stage}.blocks.{unit}.")
            for stage in (0, 1)
            for unit in (0, 1)
        ),
    )
    tensors = {}
    for key, tensor in model.state_dict().items():
        for ours, theirs in renames:
            key = key.replace(ours, theirs)
        tensors[key] = (tensor[:, :, None, None] if key == "head.fc.weight" else tensor).contiguous()
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
def test_a_resnet_of_other_arithmetic_is_refused_by_name(
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
