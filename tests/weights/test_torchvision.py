"""torchvision's files without it: names and shapes by hand, there and back, refusals in words."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.helpers.random_models import random_model
from tests.helpers.refusals import refused
from vitkit import load_model
from vitkit.data.config import Preprocessing
from vitkit.models.build import build_model
from vitkit.models.config import ViTConfig
from vitkit.models.zoo import vit_config
from vitkit.weights.loading import save_model
from vitkit.weights.model_card import card_of, preprocessing_of

PLAIN = ViTConfig((12, 12), (4, 4), width=128, depth=2, num_heads=2, mlp_dim=44, num_classes=5, gelu="erf")
TINY = replace(PLAIN, image_mean=(0.485, 0.456, 0.406), image_std=(0.229, 0.224, 0.225))


def state(fc1: str = "0", fc2: str = "3") -> dict[str, Tensor]:
    """A ViT of two layers as torchvision names its tensors."""
    layers = {"conv_proj.": (128, 3, 4, 4), "encoder.ln.": (128,), "heads.head.": (5, 128)}
    for i in range(2):
        layer = f"encoder.layers.encoder_layer_{i}"
        layers |= {f"{layer}.ln_1.": (128,), f"{layer}.ln_2.": (128,)}
        layers |= {f"{layer}.self_attention.in_proj_": (384, 128)}
        layers |= {f"{layer}.self_attention.out_proj.": (128, 128)}
        layers |= {f"{layer}.mlp.{fc1}.": (44, 128), f"{layer}.mlp.{fc2}.": (128, 44)}
    tensors = {"class_token": torch.randn(1, 1, 128), "encoder.pos_embedding": torch.randn(1, 10, 128)}
    for name, shape in layers.items():
        tensors |= {f"{name}weight": torch.randn(shape), f"{name}bias": torch.randn(shape[:1])}
    return tensors


def test_names_and_shapes_are_those_of_torchvision(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = save_model(random_model(TINY), tmp_path / "vit", format="torchvision")
    assert path.name == "vit.pth" and [file.name for file in tmp_path.iterdir()] == ["vit.pth"]
    assert "2 attention heads" in caplog.text and "GELU" not in caplog.text
    written = torch.load(path, weights_only=True)
    assert {key: tensor.shape for key, tensor in written.items()} == {
        key: tensor.shape for key, tensor in state().items()
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


def test_what_no_tensor_says_is_asked_for_or_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    torch.save(state(), tmp_path / "vit.pth")
    refused("num_heads=2", load_model, tmp_path / "vit.pth")
    model = load_model(tmp_path / "vit.pth", num_heads=2)
    assert [assumption.what for assumption in card_of(model).assumed] == ["pixel statistics", "resizing"]
    assert "assumed: pixel mean 0.485, 0.456, 0.406" in caplog.text
    assert "resized to 12 by bicubic interpolation" in caplog.text
    # Heads and crop are known for their own models.
    config = replace(vit_config("ViT-B/16"), depth=1, num_classes=5, mlp_dim=8, gelu="erf")
    model = load_model(save_model(build_model(config), tmp_path / "vit.pth", format="torchvision"))
    assert model.config.num_heads == 12
    assert preprocessing_of(model) == Preprocessing((224, 224), "shortest", 224 / 256)


@pytest.mark.parametrize(
    ("key", "tensor", "message"),
    [
        ("conv_proj.conv_bn_relu_0.0.weight", torch.zeros(8, 3, 3, 3), r"relu_0\.0\.weight: .*unexpected"),
        ("conv_proj.weight", None, "several convolutions"),
        ("encoder.ln.bias", None, r"encoder\.ln\.bias: .*missing"),
        ("encoder.pos_embedding", torch.zeros(1, 13, 128), "no square grid"),
        ("conv_proj.weight", torch.zeros(128, 48), r"conv_proj\.weight: .*an array of 4 axes"),
        ("heads.pre_logits.bias", torch.tensor(0.0), r"pre_logits\.bias: .*an array of 1 axes"),
    ],
)
def test_files_not_whole_are_explained(tmp_path: Path, key: str, tensor: Tensor | None, message: str) -> None:
    tensors = {name: value for name, value in {**state(), key: tensor}.items() if value is not None}
    torch.save(tensors, tmp_path / "vit.pth")
    refused(message, load_model, tmp_path / "vit.pth", num_heads=2)
