"""What a configuration answers for its family, so that nothing else has to ask which family it is."""

from dataclasses import replace

import pytest
import torch

from vitkit.errors import VitkitError
from vitkit.models.build import build_empty, build_model
from vitkit.models.config import BackboneConfig, ResNetConfig, ViTConfig
from vitkit.models.zoo import FAMILIES, NAMES, ModelConfig, model_config, vit_config

VIT = vit_config("ViT-16x2x2/4", 5, (16, 12))
HYBRID = replace(vit_config("R26+ViT-16x2x2/32", 5, 64), backbone=BackboneConfig((1, 2), 0.5))
BIT = ResNetConfig((33, 34), (1, 2), 5, 0.5)
AXIAL = replace(BIT, mixing="axial")


@pytest.mark.parametrize("name", NAMES)
def test_the_first_filters_of_every_model_are_known(name: str) -> None:
    config = model_config(name)
    model = build_empty(config)
    filters = [key for key, _ in model.named_parameters() if key in config.first_filters]
    assert len(filters) == 1
    assert dict(model.named_parameters())[filters[0]].shape[1] == config.in_channels
    assert FAMILIES[config.family] is type(config)


def test_layers_are_counted_and_put_into_words() -> None:
    summaries = [config.layer_summary for config in (VIT, HYBRID, BIT)]
    assert summaries == ["2", "1-2 + 2", "1-2"]
    assert [config.num_layers for config in (VIT, HYBRID, BIT)] == [2, 2, 3]


def test_attention_and_tokens_are_known_of_every_family() -> None:
    assert [config.attention for config in (VIT, BIT, AXIAL)] == ["full", "none", "axial"]
    assert [config.num_tokens for config in (VIT, BIT)] == [13, None]


def test_pixels_that_no_token_sees_are_named() -> None:
    assert VIT.cut_off == BIT.cut_off == ""
    uneven = replace(VIT, image_size=(18, 15))
    assert uneven.cut_off == "2 rows below and 3 columns at the right of the images fill no patch"
    cut = replace(HYBRID, patch_size=(3, 8))  # of a feature map of 8x8
    assert (
        cut.cut_off == "2 rows below and 0 columns at the right of the backbone's feature map fill no patch"
    )


def test_a_new_head_is_linear() -> None:
    config = replace(VIT, representation_size=8).with_new_head(3)
    assert (config.num_classes, config.representation_size) == (3, None)
    assert BIT.with_new_head(3) == replace(BIT, num_classes=3)


@pytest.mark.parametrize(("gelu", "form"), [("tanh", "tanh form"), ("erf", "exact"), ("quick", "quick form")])
def test_the_form_of_the_activation_is_named(gelu: str, form: str) -> None:
    assert form in replace(VIT, gelu=gelu).arithmetic[0]  # type: ignore[arg-type]


def test_the_arithmetic_of_a_hybrid_is_that_of_both_its_parts() -> None:
    assert HYBRID.backbone is not None
    assert HYBRID.arithmetic == (*VIT.arithmetic, *HYBRID.backbone.arithmetic)


@pytest.mark.parametrize(
    ("small", "large"),
    [
        (VIT, (24, 20)),
        (replace(VIT, position="learned_2d", position_at="every_layer"), (12, 16)),
        (replace(VIT, position="relative"), (16, 20)),
        (replace(VIT, position="sincos_2d", pool="mean"), (16, 20)),
        (AXIAL, (65, 40)),
    ],
)
def test_positions_alone_are_fitted_to_another_size(small: ModelConfig, large: tuple[int, int]) -> None:
    model, larger = build_model(small), build_model(replace(small, image_size=large))
    tensors = dict(model.named_parameters())
    fitted = larger.fit_positions(tensors, small.position_extent[1], "original")
    changed = {key for key, value in larger.named_parameters() if value.shape != tensors[key].shape}
    assert changed <= fitted.keys()
    assert all(key.startswith("positions.") or "relative" in key for key in fitted)
    larger.load_state_dict({**tensors, **fitted}, strict=True)


def test_a_model_that_no_memory_holds_is_refused_in_words() -> None:
    config = ViTConfig((2**20, 2**20), (2**20, 2**20), 2**20, 1, 1, 1, 1)
    with pytest.raises(VitkitError, match="larger than any memory"):
        build_empty(config)


@pytest.mark.parametrize("config", [VIT, replace(VIT, stem_channels=(8, 16)), HYBRID, BIT, AXIAL])
def test_the_generator_decides_the_weights(config: ModelConfig) -> None:
    weights, same, other = (
        build_model(config, torch.Generator().manual_seed(seed)).state_dict() for seed in (1, 1, 2)
    )
    assert all(torch.equal(weights[key], same[key]) for key in weights)
    drawn = [key for key in weights if "norm" not in key and weights[key].any()]
    assert drawn and not any(torch.equal(weights[key], other[key]) for key in drawn)
