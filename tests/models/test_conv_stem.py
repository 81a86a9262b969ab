"""The convolutional stem."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from tests.helpers.random_models import same_bits
from vitkit import load_model
from vitkit.data.config import Preprocessing
from vitkit.errors import VitkitError
from vitkit.models.build import build_model
from vitkit.models.config import ViTConfig
from vitkit.models.parts import ConvStem
from vitkit.models.vit import ViT
from vitkit.models.zoo import model_config, vit_config
from vitkit.runs.config import Architecture, Run
from vitkit.weights.create import create_model
from vitkit.weights.loading import save_model

SMALL = vit_config("ViT-32x2x2/4-conv", num_classes=5, image_size=(18, 23))


def stem_of(config: ViTConfig, seed: int = 0) -> ConvStem:
    stem = build_model(config, torch.Generator().manual_seed(seed)).stem
    assert isinstance(stem, ConvStem)
    return stem


def test_a_name_chooses_the_channels_that_double_up_to_the_width() -> None:
    assert SMALL.stem_channels == (16, 32)
    assert vit_config("ViT-Ti/16-conv").stem_channels == (24, 48, 96, 192)  # ViT-C of 1 and 4 GF
    assert vit_config("ViT-S/16-conv-gap").stem_channels == (48, 96, 192, 384)
    assert vit_config("ViT-S/16").stem_channels == ()


@pytest.mark.parametrize(
    "name", ["ViT-B/14-conv", "ViT-20x2x2/4-conv", "ViT-32x2x2/1-conv", "R50+ViT-B/16-conv"]
)
def test_a_name_without_such_channels_is_explained(name: str) -> None:
    with pytest.raises(VitkitError, match="stem"):
        vit_config(name, 5, 64)
    with pytest.raises(VitkitError, match="stem"):
        ViT(SMALL)  # it asks for the part


def test_it_makes_a_patch_of_each_position_and_sees_no_pixel_beyond_them() -> None:
    stem = stem_of(SMALL)
    images = torch.randn(2, 3, 18, 23)
    patches = stem(images)
    assert patches.shape == (2, 4 * 5, 32)
    images[:, :, 16:], images[:, :, :, 20:] = 9.0, 9.0
    assert torch.equal(stem(images), patches)


def test_it_is_convolutions_norms_and_relus_then_a_projection() -> None:
    stem = stem_of(dataclasses.replace(SMALL, stem_channels=(8, 16, 24), image_size=(16, 16)))
    images = torch.randn(2, 3, 16, 16)
    x = images
    for number, stride in enumerate((1, 2, 2)):
        x = F.conv2d(x, stem.get_parameter(f"convolutions.{number}.weight"), stride=stride, padding=1)
        x = F.relu(F.group_norm(x, x.shape[1] // 8))
    weight, bias = (stem.get_parameter(f"projection.{part}") for part in ("weight", "bias"))
    expected = torch.einsum("bchw,dc->bhwd", x, weight[:, :, 0, 0]).reshape(2, 16, 32) + bias
    torch.testing.assert_close(stem(images), expected)


def test_strides_stand_where_they_are_given_and_else_at_the_end() -> None:
    deep = dataclasses.replace(SMALL, stem_channels=(8, 16, 16, 24))
    images = torch.randn(2, 3, 16, 16)
    spread = stem_of(dataclasses.replace(deep, stem_strides=(2, 1, 2, 1)))
    sides = []
    for convolution in spread.convolutions:
        convolution.register_forward_hook(lambda _, __, map: sides.append(map.shape[2]))
    assert spread(images).shape == (2, 16, 32)
    assert sides == [8, 8, 4, 4]
    last, left_out = (
        stem_of(dataclasses.replace(deep, stem_strides=strides))(images) for strides in ((1, 1, 2, 2), ())
    )
    assert torch.equal(last, left_out)
    assert not torch.allclose(spread(images), last)


def test_an_image_does_not_depend_on_the_others_of_its_batch() -> None:
    stem, images = stem_of(SMALL).train(), torch.randn(4, 3, 16, 20)
    torch.testing.assert_close(stem(images)[:1], stem(images[:1]))


def test_it_is_trained_saved_and_read_back_like_any_other(tmp_path: Path) -> None:
    model = create_model("ViT-32x2x2/4-conv", 5, 16)
    images = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)
    model(images).sum().backward()
    folder = save_model(model, tmp_path / "model")
    again = load_model(folder)
    assert again.config == model.config and same_bits(again, model)
    # A model written before strides were chosen is read.
    described = json.loads((folder / "model.json").read_text())
    assert described["architecture"].pop("stem_strides") == []
    (folder / "model.json").write_text(json.dumps(described))
    assert load_model(folder).config == model.config


def test_a_run_chooses_it_by_name_or_by_channels_and_strides(tmp_path: Path) -> None:
    config = Architecture(stem_channels=(8, 16)).build_config("ViT-32x2x2/4", 5, Run().preprocessing)
    assert config == dataclasses.replace(model_config("ViT-32x2x2/4", 5, 224), stem_channels=(8, 16))  # type: ignore[arg-type]
    changes = Architecture(stem_channels=(8, 8, 16), stem_strides=(2, 1, 2))
    config = changes.build_config("ViT-32x2x2/4", 5, Preprocessing(image_size=(16, 16)))
    again = load_model(save_model(build_model(config), tmp_path / "model"))
    assert again.config == config and again.config.stem_strides == (2, 1, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stem_channels": (12, 16)}, "multiples of 8"),
        ({"stem_channels": (0, 16)}, "multiples of 8"),
        ({"stem_channels": (16,)}, "2 convolutions of stride 2"),
        ({"stem_strides": (2,)}, "a 1 or a 2 for each of the 2 stem_channels"),
        ({"stem_strides": (1, 2)}, "2 times a 2 for patches of 4"),
        ({"stem_strides": (4, 1)}, "a 1 or a 2 for each"),
        ({"stem_channels": (), "stem_strides": (2, 2)}, "give both or neither"),
        ({"patch_size": (6, 6)}, "1, 2, 4, 8"),
        ({"patch_size": (4, 8)}, "1, 2, 4, 8"),
    ],
)
def test_impossible_stems_are_explained(changes: dict[str, tuple[int, ...]], message: str) -> None:
    with pytest.raises(VitkitError, match=message):
        dataclasses.replace(SMALL, **changes)  # type: ignore[arg-type]
