import dataclasses

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from vitkit.analysis import cost
from vitkit.models.vit import ViT, ViTConfig
from vitkit.models.zoo import count_parameters, vit_config

SMALL = vit_config("ViT-24x3x2/8x4", num_classes=7, image_size=(35, 18))
CONFIGS = [
    SMALL,
    dataclasses.replace(SMALL, pool="mean"),
    dataclasses.replace(SMALL, pool="none"),
    dataclasses.replace(SMALL, representation_size=11, class_token_position=False),
    dataclasses.replace(SMALL, in_channels=1, image_mean=(0.5,), image_std=(0.5,), mlp_dim=50),
    vit_config("ViT-Ti/16"),
]


@pytest.mark.parametrize("config", CONFIGS)
def test_against_what_runs(config: ViTConfig) -> None:
    with torch.device("meta"):
        model = ViT(config)
        images = torch.empty(2, config.in_channels, *config.image_size)
    with FlopCounterMode(display=False) as counter:
        model(images)
    assert cost.forward_flops(config, head=True) * 2 == counter.get_total_flops()
    assert cost.parameters(config) == count_parameters(model)


@pytest.mark.parametrize("config", CONFIGS)
def test_training_is_three_forward_passes(config: ViTConfig) -> None:
    assert (
        cost.training_flops(config, 10) == 30 * cost.forward_flops(config) == 60 * cost.forward_macs(config)
    )


@pytest.mark.parametrize(
    ("name", "giga_macs"),
    [
        ("ViT-B/32", 4.408),
        ("ViT-B/16", 17.563),
        ("ViT-L/32", 15.377),
        ("ViT-L/16", 61.554),
        ("ViT-H/14", 167.294),
    ],
)
def test_the_papers_models(name: str, giga_macs: float) -> None:
    assert cost.forward_macs(vit_config(name)) / 1e9 == pytest.approx(giga_macs, abs=5e-4)


@pytest.mark.parametrize(
    ("name", "epochs", "exa_flops"),
    [("ViT-B/16", 7, 224), ("ViT-L/32", 7, 196), ("ViT-L/16", 14, 1567), ("ViT-H/14", 14, 4262)],
)
def test_the_papers_table_6(name: str, epochs: int, exa_flops: float) -> None:
    images = 303_000_000 * epochs
    assert cost.training_flops(vit_config(name), images) / 1e18 == pytest.approx(exa_flops, rel=0.005)
