"""ResNets of other channels and groups than BiT's: the formats that can say them carry them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.helpers.random_models import random_model
from vitkit import load_model
from vitkit.errors import VitkitError
from vitkit.models.config import ResNetConfig
from vitkit.weights.format_names import Format
from vitkit.weights.loading import save_model

UNITS = (3, 4, 6, 3)
"""Of resnetv2_50x1_bit: timm has no architecture without units of its own."""
NARROW = ResNetConfig(
    (32, 48),
    UNITS,
    num_classes=5,
    root_width=32,
    stage_widths=(128, 256, 128, 384),
    standardization_eps=1e-8,
)


@pytest.mark.parametrize(
    ("format", "config"),
    [
        ("timm", NARROW),
        ("huggingface", NARROW),
        ("huggingface", replace(NARROW, layers=(1, 2), stage_widths=(64, 96), groups=8)),
        ("huggingface", ResNetConfig((32, 32), (1, 1), 5, 0.5, groups=16, standardization_eps=1e-8)),
        ("timm", ResNetConfig((32, 32), UNITS, 5, width_factor=0.5, standardization_eps=1e-8)),
    ],
    ids=["timm", "huggingface", "groups and units", "groups alone", "a width factor without a name"],
)
def test_channels_and_groups_survive_the_way_there_and_back(
    format: Format, config: ResNetConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = random_model(config)
    again = load_model(save_model(model, tmp_path / "theirs", format))
    assert again.config == config and not caplog.text
    images = torch.randn(2, 3, *config.image_size)
    with torch.no_grad():
        torch.testing.assert_close(again(images), model(images), rtol=0, atol=0)


def test_usual_channels_are_said_by_the_width_factor(tmp_path: Path) -> None:
    """`root_width` and `stage_widths` that are the usual ones need no place of their own."""
    config = ResNetConfig((32, 32), (1, 1), 5, root_width=32, stage_widths=(128, 256))
    formats: tuple[Format, ...] = ("official", "huggingface")
    for format in formats:
        folder = save_model(random_model(config), tmp_path / format, format)
        again = load_model(folder, image_size=32).config
        assert isinstance(again, ResNetConfig)
        assert (again.width_factor, again.root_width, again.stage_widths) == (0.5, None, None)


def test_the_settings_are_those_of_the_libraries(tmp_path: Path) -> None:
    model = random_model(NARROW)
    save_model(model, tmp_path / "timm", "timm")
    described = json.loads((tmp_path / "timm" / "config.json").read_text())
    assert described["architecture"] == "resnetv2_50x1_bit"
    assert described["model_args"]["channels"] == [128, 256, 128, 384]
    assert described["model_args"]["stem_chs"] == 32
    save_model(random_model(replace(NARROW, groups=16)), tmp_path / "theirs", "huggingface")
    described = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert described["embedding_size"] == 32 and described["hidden_sizes"] == [128, 256, 128, 384]
    assert described["num_groups"] == 16


@pytest.mark.parametrize(
    ("format", "config", "message"),
    [
        ("official", replace(NARROW, stage_widths=(128, 256, 512, 1280)), "stage_widths"),
        ("official", ResNetConfig((32, 32), (1,), 5, groups=16), "groups 16"),
        ("timm", replace(NARROW, groups=16), "groups 16"),
        ("timm", replace(NARROW, layers=(1, 1, 1, 1)), r"units \(only"),
        ("big_vision", NARROW, "ResNets"),
        ("torchvision", NARROW, "ResNets"),
        (
            "huggingface",
            replace(NARROW, stage_widths=(16, 32, 64, 128), groups=4),
            "multiples of 8 and of 32",
        ),
        ("huggingface", ResNetConfig((32, 32), (1,), 5, root_width=128, stage_widths=(128,)), "as the root"),
    ],
)
def test_what_a_format_cannot_say_is_refused_by_name(
    format: Format, config: ResNetConfig, message: str, tmp_path: Path
) -> None:
    with pytest.raises(VitkitError, match=message):
        save_model(random_model(config), tmp_path / "theirs", format)
