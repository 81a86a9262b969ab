"""load -> save -> load gives the same bits, for every model of the zoo in every layout that carries it."""

import dataclasses
from pathlib import Path
from typing import get_args

import pytest
import torch

from vitkit import load_model
from vitkit.models.build import build_model
from vitkit.models.config import ResNetConfig
from vitkit.models.image_model import ImageModel
from vitkit.models.measure import count_parameters
from vitkit.models.zoo import NAMES, ModelConfig, model_config
from vitkit.weights.format_names import Format
from vitkit.weights.loading import save_model
from vitkit.weights.table import find_format

FORMATS: tuple[Format, ...] = get_args(Format)
LARGEST = 700_000_000
"""Parameters of the largest model that is tried in full: two of them are in memory."""


def drawn(config: ModelConfig) -> ImageModel:
    """A model with every number drawn, the zeros of new heads and norms too."""
    with torch.device("meta"):
        model = build_model(config)
    model.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.1, 0.1, generator=generator)
    model.compute_buffers()
    return model.eval()


def shrunk(name: str) -> ModelConfig:
    """The shapes of a model that names and layouts depend on, with few numbers in it."""
    config = model_config(name, 3, 64)
    if isinstance(config, ResNetConfig):
        return dataclasses.replace(config, layers=(2, 1), width_factor=0.5)
    return dataclasses.replace(config, width=24, depth=2, num_heads=3, mlp_dim=40)


def check(model: ImageModel, format: Format, folder: Path) -> None:
    """The first file may say less than the model; from then on nothing changes."""
    heads = getattr(model.config, "num_heads", None)
    size = model.config.image_size
    first = load_model(save_model(model, folder / "first", format), image_size=size, num_heads=heads)
    second = load_model(save_model(first, folder / "second", format), image_size=size, num_heads=heads)
    assert second.config == first.config
    state = second.state_dict()
    for key, value in first.state_dict().items():
        assert torch.equal(state.pop(key), value), key
    assert not state
    if format != "big_vision":  # which adds the class token's position to it, once
        for key, value in model.state_dict().items():
            assert torch.equal(first.state_dict()[key], value), key


@pytest.mark.parametrize(
    ("name", "format"),
    [(name, f) for name in NAMES for f in FORMATS if not find_format(f).unsupported(shrunk(name))],
)
def test_every_model_in_every_layout_in_small(name: str, format: Format, tmp_path: Path) -> None:
    check(drawn(shrunk(name)), format, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_model_in_every_layout(name: str, tmp_path: Path) -> None:
    config = model_config(name)
    with torch.device("meta"):
        if count_parameters(build_model(config)) > LARGEST:
            pytest.skip(f"more than {LARGEST:,} parameters")
    model = drawn(config)
    for format in FORMATS:
        if not find_format(format).unsupported(config):
            check(model, format, tmp_path / format)
            for path in sorted(tmp_path.rglob("*"), reverse=True):
                path.unlink() if path.is_file() else path.rmdir()
