"""torchvision's files without it: names and shapes by hand, there and back, refusals in words."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.helpers.random_models import random_model
from vitkit import load_model
from vitkit.data.config import Preprocessing
from vitkit.errors import VitkitError
from vitkit.models.build import build_model
from vitkit.models.config import ViTConfig
from vitkit.models.zoo import ModelConfig, model_config, vit_config
from vitkit.weights.loading import save_model
from vitkit.weights.model_card import card_of, preprocessing_of

TINY = ViTConfig(
    image_size=(12, 12),
    patch_size=(4, 4),
    width=128,
    depth=2,
    num_heads=2,
    mlp_dim=44,
    num_classes=5,
    gelu="erf",
    image_mean=(0.485, 0.456, 0.406),
    image_std=(0.229, 0.224, 0.225),
)


def state(fc1: str = "0", fc2: str = "3") -> dict[str, Tensor]:
    """A ViT of two layers as torchvision names its tensors."""
    shapes: dict[str, tuple[int, ...]] = {
        "class_token": (1, 1, 128),
        "conv_proj.weight": (128, 3, 4, 4),
        "conv_proj.bias": (128,),
        "encoder.pos_embedding": (1, 10, 128),
        "encoder.ln.weight": (128,),
        "encoder.ln.bias": (128,),
        "heads.head.weight": (5, 128),
        "heads.head.bias": (5,),
    }
    for i in range(2):
        layer = f"encoder.layers.encoder_layer_{i}"
        shapes |= {
            f"{layer}.ln_1.weight": (128,),
            f"{layer}.ln_1.bias": (128,),
            f"{layer}.self_attention.in_proj_weight": (384, 128),
            f"{layer}.self_attention.in_proj_bias": (384,),
            f"{layer}.self_attention.out_proj.weight": (128, 128),
            f"{layer}.self_attention.out_proj.bias": (128,),
            f"{layer}.ln_2.weight": (128,),
            f"{layer}.ln_2.bias": (128,),
            f"{layer}.mlp.{fc1}.weight": (44, 128),
            f"{layer}.mlp.{fc1}.bias": (44,),
            f"{layer}.mlp.{fc2}.weight": (128, 44),
            f"{layer}.mlp.{fc2}.bias": (128,),
        }
    return {name: torch.randn(shape) for name, shape in shapes.items()}


@pytest.mark.parametrize("config", [TINY, replace(TINY, representation_size=7)])
def test_weights_survive_the_way_there_and_back(
    tmp_path: Path, config: ViTConfig, caplog: pytest.LogCaptureFixture
) -> None:
    model = random_model(config)
    with caplog.at_level(logging.WARNING, "vitkit"):
        path = save_model(model, tmp_path / "vit", format="torchvision")
    assert path.name == "vit.pth" and [file.name for file in tmp_path.iterdir()] == ["vit.pth"]
    assert "2 attention heads" in caplog.text and "GELU" not in caplog.text
    again = load_model(path, num_heads=2)
    assert again.config == config
    assert all(torch.equal(value, again.state_dict()[key]) for key, value in model.state_dict().items())


def test_names_and_shapes_are_those_of_torchvision(tmp_path: Path) -> None:
    path = save_model(random_model(TINY), tmp_path / "vit.pth", format="torchvision")
    written = torch.load(path, weights_only=True)
    assert {name: tensor.shape for name, tensor in written.items()} == {
        name: tensor.shape for name, tensor in state().items()
    }


@pytest.mark.parametrize(("fc1", "fc2"), [("0", "3"), ("linear_1", "linear_2")])
def test_both_namings_of_the_mlp_are_read(tmp_path: Path, fc1: str, fc2: str) -> None:
    tensors = state(fc1, fc2)
    torch.save(tensors, tmp_path / "vit.pth")
    model = load_model(tmp_path / "vit.pth", num_heads=2)
    layer = "encoder.layers.encoder_layer_1"
    assert torch.equal(model.state_dict()["blocks.1.mlp.fc2.weight"], tensors[f"{layer}.mlp.{fc2}.weight"])
    assert model.config == TINY
    assert "torchvision's arithmetic" in card_of(model).origin["notes"][0]
    preprocessing = preprocessing_of(model)
    assert preprocessing == Preprocessing((12, 12), "shortest", 1.0, interpolation="bicubic")


def test_heads_that_no_model_of_theirs_has_are_asked_for(tmp_path: Path) -> None:
    torch.save(state(), tmp_path / "vit.pth")
    with pytest.raises(VitkitError, match="num_heads=2"):
        load_model(tmp_path / "vit.pth")


def test_heads_and_crop_are_known_for_their_own_models(tmp_path: Path) -> None:
    config = replace(vit_config("ViT-B/16"), depth=1, num_classes=5, mlp_dim=8, gelu="erf")
    model = load_model(save_model(build_model(config), tmp_path / "vit.pth", format="torchvision"))
    assert model.config.num_heads == 12
    assert preprocessing_of(model) == Preprocessing((224, 224), "shortest", 224 / 256)


def test_what_a_state_dict_does_not_say_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    torch.save(state(), tmp_path / "vit.pth")
    model = load_model(tmp_path / "vit.pth", num_heads=2)
    assert [assumption.what for assumption in card_of(model).assumed] == ["pixel statistics", "resizing"]
    assert "assumed: pixel mean 0.485, 0.456, 0.406" in caplog.text
    assert "resized to 12 by bicubic interpolation" in caplog.text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"conv_proj.conv_bn_relu_0.0.weight": torch.zeros(8, 3, 3, 3)}, "conv_bn_relu_0.*unexpected"),
        ({"conv_proj.weight": None}, "several convolutions"),
        ({"encoder.ln.bias": None}, r"encoder\.ln\.bias: missing"),
        ({"encoder.pos_embedding": torch.zeros(1, 13, 128)}, "no square grid"),
        (
            {"encoder.pos_embedding": torch.tensor(0.0)},
            r"encoder\.pos_embedding: expected an array of 3 axes",
        ),
        ({"encoder.pos_embedding": torch.zeros(128)}, r"encoder\.pos_embedding: expected an array of 3 axes"),
        ({"conv_proj.weight": torch.zeros(128, 48)}, r"conv_proj\.weight: expected an array of 4 axes"),
        ({"conv_proj.weight": torch.zeros(128, 3, 0, 4)}, r"conv_proj\.weight: .*none of them empty"),
        ({"heads.head.bias": torch.tensor(0.0)}, r"heads\.head\.bias: expected an array of 1 axes"),
        ({"heads.pre_logits.bias": torch.tensor(0.0)}, r"pre_logits\.bias: expected an array of 1 axes"),
        (
            {"encoder.layers.encoder_layer_0.mlp.0.bias": torch.tensor(0.0)},
            r"encoder_layer_0\.mlp\.0\.bias: expected an array of 1 axes",
        ),
    ],
)
def test_files_that_are_not_whole_or_not_ours_are_explained(
    tmp_path: Path, change: dict[str, Tensor | None], message: str
) -> None:
    tensors = {name: tensor for name, tensor in {**state(), **change}.items() if tensor is not None}
    torch.save(tensors, tmp_path / "vit.pth")
    with pytest.raises(VitkitError, match=message):
        load_model(tmp_path / "vit.pth", num_heads=2)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (replace(TINY, pool="mean"), "pool mean"),
        (replace(TINY, register_tokens=1), "register_tokens 1"),
        (replace(TINY, image_size=(12, 16)), "rectangular"),
        (replace(TINY, num_classes=0), "without a head"),
        (model_config("BiT-R50x1", image_size=32), "ResNet"),
    ],
)
def test_what_torchvision_cannot_build_is_not_written(
    tmp_path: Path, config: ModelConfig, message: str
) -> None:
    with torch.device("meta"):
        model = build_model(config)
    with pytest.raises(VitkitError, match=message):
        save_model(model, tmp_path / "vit.pth", format="torchvision")
    assert not list(tmp_path.iterdir())


def test_arithmetic_that_torchvision_has_not_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = replace(TINY, gelu="tanh", norm_eps=1e-5, image_mean=(0.5, 0.5, 0.5))
    with caplog.at_level(logging.WARNING, "vitkit"):
        save_model(build_model(config), tmp_path / "vit.pth", format="torchvision")
    for warning in ("GELU in its tanh form", "epsilon 1e-05", "pixel mean (0.5"):
        assert warning in caplog.text
