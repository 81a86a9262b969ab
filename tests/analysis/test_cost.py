import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode
from vitkit.models.resnet_cost import convolution_cost

from vitkit.analysis import cost
from vitkit.errors import VitkitError
from vitkit.models.build import build_model
from vitkit.models.image_model import ImageModel
from vitkit.models.measure import count_parameters
from vitkit.models.resnet import StdConv2d
from vitkit.models.resnet_config import BackboneConfig, ResNetConfig
from vitkit.models.vit_config import EVA02_ROTARY, ViTConfig
from vitkit.models.zoo import NAMES, ModelConfig, model_config, vit_config

SMALL = vit_config("ViT-24x3x2/8x4", num_classes=7, image_size=(35, 18))
CONFIGS = [
    SMALL,
    dataclasses.replace(SMALL, pool="mean", register_tokens=3),
    dataclasses.replace(SMALL, pool="none", position="relative"),
    dataclasses.replace(SMALL, pool="map", num_classes=0),
    dataclasses.replace(SMALL, representation_size=11, class_token_position=False),
    dataclasses.replace(SMALL, pool="max", layer_scale=0.1, norm_before_blocks=True),
    dataclasses.replace(SMALL, rotary=EVA02_ROTARY, extra_class_token=True, pool="mean"),
    vit_config("ViT-32x3x2/4-conv", num_classes=7, image_size=(35, 18)),
    dataclasses.replace(vit_config("ViT-32x3x2/4", 7, (35, 18)), stem_channels=(8, 16, 8, 24), pool="mean"),
    dataclasses.replace(
        vit_config("ViT-32x3x2/4", 7, (35, 18)), stem_channels=(8, 16, 8, 24), stem_strides=(2, 1, 2, 1)
    ),
    dataclasses.replace(SMALL, in_channels=1, image_mean=(0.5,), image_std=(0.5,), mlp_dim=50),
]


def on_meta(config: ModelConfig) -> ImageModel:
    with torch.device("meta"):
        return build_model(config)


def counted(config: ModelConfig, model: ImageModel) -> int:
    """FLOPs as PyTorch counts them, the padding of convolutions among them."""
    images = torch.empty(1, config.in_channels, *config.image_size, device="meta")
    with FlopCounterMode(display=False) as counter:
        model(images)
    return int(counter.get_total_flops())


@pytest.mark.parametrize(
    "config", [*CONFIGS, *map(model_config, NAMES)], ids=[*map(str, range(len(CONFIGS))), *NAMES]
)
def test_against_what_runs(config: ModelConfig) -> None:
    model = on_meta(config)
    assert cost.parameters(config) == count_parameters(model)
    assert cost.forward_flops(config, head=True, padding=True) == counted(config, model)


@st.composite
def vits(draw: st.DrawFn) -> ViTConfig:
    side = st.integers(1, 3)
    backbone = draw(
        st.none()
        | st.builds(
            BackboneConfig, st.lists(st.integers(1, 2), max_size=3).map(tuple), st.sampled_from([1.0, 1.5])
        )
    )
    patch = (draw(side), draw(side))
    stride = backbone.stride if backbone else 1
    smallest = (patch[0] * stride, patch[1] * stride)
    pool: Any = draw(st.sampled_from(["token", "mean", "map", "none"]))
    everywhere = ["every_layer", "every_layer_shared"]
    return ViTConfig(
        image_size=(draw(st.integers(smallest[0], 70)), draw(st.integers(smallest[1], 70))),
        patch_size=patch,
        width=16,
        depth=draw(st.integers(1, 2)),
        num_heads=draw(st.sampled_from([1, 2, 4])),
        mlp_dim=draw(st.integers(1, 40)),
        num_classes=draw(st.integers(0, 5)),
        backbone=backbone,
        pool=pool,
        register_tokens=draw(st.integers(0, 2)),
        class_token_position=draw(st.booleans()),
        position=draw(st.sampled_from(["learned", "learned_2d", "relative", "sincos_2d", "none"])),
        position_at=draw(st.sampled_from(["stem", *everywhere])),
        attention=draw(st.sampled_from(["full", "axial"])),
        representation_size=draw(st.sampled_from([None, 6])),
    )


resnets = st.builds(
    ResNetConfig,
    # At least two positions a line in the last unit: PyTorch counts no product where there is one.
    image_size=st.tuples(st.integers(17, 70), st.integers(17, 70)),
    layers=st.lists(st.integers(1, 2), min_size=1, max_size=3).map(tuple),
    num_classes=st.integers(0, 5),
    width_factor=st.sampled_from([1.0, 1.5]),
    mixing=st.sampled_from(["convolution", "axial"]),
    num_heads=st.sampled_from([2, 4]),
)


@st.composite
def models(draw: st.DrawFn) -> ModelConfig:
    """Any configuration that is not refused."""
    for _ in range(20):
        try:
            return draw(st.one_of(vits(), resnets))
        except VitkitError:
            continue
    return SMALL


@given(models())
@settings(deadline=None, max_examples=40)
def test_against_any_configuration(config: ModelConfig) -> None:
    model = on_meta(config)
    assert cost.parameters(config) == count_parameters(model)
    assert cost.forward_flops(config, head=True, padding=True) == counted(config, model)
    assert cost.forward_macs(config) <= cost.forward_macs(config, padding=True)


def test_a_model_larger_than_any_memory_is_refused_in_words() -> None:
    config = vit_config("ViT-1048576x1x1x1/1048576", image_size=2**20)
    with pytest.raises(VitkitError, match="larger than any memory"):
        cost.parameters(config)


@pytest.mark.parametrize("where", ["every_layer", "every_layer_shared"])
def test_attention_pooling_with_positions_at_every_layer(where: Any) -> None:
    config = dataclasses.replace(SMALL, pool="map", position_at=where)
    assert cost.parameters(config) == count_parameters(on_meta(config))


@given(st.integers(1, 40), st.sampled_from([1, 3, 7]), st.sampled_from([1, 2]), st.booleans())
@settings(deadline=None)
def test_taps_that_meet_the_image(size: int, kernel: int, stride: int, symmetric: bool) -> None:
    """A convolution of ones with an image of ones counts them."""
    places = -(-size // stride)
    total = 2 * (kernel // 2) if symmetric else max((places - 1) * stride + kernel - size, 0)
    before = kernel // 2 if symmetric else total // 2
    line = torch.nn.functional.pad(torch.ones(1, 1, size), (before, total - before))
    taps = torch.nn.functional.conv1d(line, torch.ones(1, 1, kernel), stride=stride).sum().item()
    with torch.device("meta"):
        padding: Any = "symmetric" if symmetric else "same"
        square = StdConv2d(2, 5, kernel, stride, padding=padding, standardization="std", eps=0.0)
    assert convolution_cost(square, (size, size)).macs == 10 * taps**2


@pytest.mark.parametrize("config", CONFIGS)
def test_training_is_three_forward_passes(config: ViTConfig) -> None:
    assert (
        cost.training_flops(config, 10) == 30 * cost.forward_flops(config) == 60 * cost.forward_macs(config)
    )


# vision_transformer `models_test.py:25-57`, with 1000 classes at 224 pixels.
PUBLISHED = {
    "ViT-Ti/16": 5_717_416,
    "ViT-S/16": 22_050_664,
    "ViT-S/32": 22_878_952,
    "ViT-B/8": 86_576_872,
    "ViT-B/16": 86_567_656,
    "ViT-B/32": 88_224_232,
    "ViT-L/16": 304_326_632,
    "ViT-L/32": 306_535_400,
    "ViT-H/14": 632_045_800,
    "ViT-S/16-gap": 22_049_896,
    "ViT-S/32-gap": 22_878_184,
    "ViT-B/16-gap": 86_566_120,
    "ViT-B/32-gap": 88_222_696,
    "R+ViT-Ti/16": 6_337_704,
    "R26+ViT-S/32": 36_431_912,
    "R26+ViT-B/32": 101_383_976,
    "R50+ViT-B/16": 98_659_112,
    "R50+ViT-L/32": 328_994_856,
}


@pytest.mark.parametrize(("name", "count"), PUBLISHED.items())
def test_parameters_as_published(name: str, count: int) -> None:
    assert cost.parameters(model_config(name)) == count


@pytest.mark.parametrize(
    ("name", "giga_macs"),
    [
        ("ViT-B/32", 4.408),
        ("ViT-B/16", 17.563),
        ("ViT-L/32", 15.377),
        ("ViT-L/16", 61.554),
        ("ViT-H/14", 167.294),
        ("BiT-R50x1", 4.087),
    ],
)
def test_the_papers_models(name: str, giga_macs: float) -> None:
    assert cost.forward_macs(model_config(name), padding=True) / 1e9 == pytest.approx(giga_macs, abs=6e-4)


@pytest.mark.parametrize("row", cost.table6(), ids=lambda row: f"{row.model}-{row.epochs}")
def test_the_papers_table_6(row: cost.Table6Row) -> None:
    known = {("ViT-B/32", 7): (2.0, 2.1), ("R50+ViT-L/16", 7): (-3.15, -3.0)}
    low, high = known.get((row.model, row.epochs), (-1.0, 1.0))
    assert low <= 100 * (row.ratio - 1) <= high


def test_table_6_has_every_row_of_the_paper() -> None:
    assert len(cost.table6()) == 18


def test_the_padding_is_what_tells_our_resnets_from_the_papers() -> None:
    config = model_config("BiT-R50x1")
    exa = [
        cost.training_flops(config, 7 * cost.JFT_IMAGES, padding=padding) / 1e18 for padding in (False, True)
    ]
    assert exa == [pytest.approx(50.2, abs=0.05), pytest.approx(52.0, abs=0.05)]
