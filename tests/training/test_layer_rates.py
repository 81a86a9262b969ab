"""Which layers learn how fast, and what is frozen."""

import dataclasses
from pathlib import Path

import pytest
import torch

from tests.helpers.tiny_models import TINY
from tests.training.small_run import OPTIMIZER, small_trainer
from vitkit.errors import VitkitError
from vitkit.models.build import build_model
from vitkit.training.config import OptimizerConfig
from vitkit.training.optim import decay_groups, rate_scales
from vitkit.weights.create import create_model


def scales_by_name(name: str, config: OptimizerConfig) -> dict[str, float]:
    model = create_model(name, num_classes=3, image_size=32)
    scales = rate_scales(model, config)
    return {key: scales[parameter] for key, parameter in model.named_parameters()}


def test_rates_fall_from_the_head_to_the_patches_as_in_mae() -> None:
    """MAE `util/lr_decay.py`: layer 0 the embedding, block i is i + 1, the rest the last, scale 1."""
    scales = scales_by_name("ViT-16x3x2/8", OptimizerConfig(layer_decay=0.5))
    assert {scales[key] for key in ("head.weight", "head.bias", "norm.weight", "norm.bias")} == {1.0}
    for block in range(3):
        own = {value for key, value in scales.items() if key.startswith(f"blocks.{block}.")}
        assert own == {0.5 ** (3 - block)}
    first = [key for key in scales if key.startswith(("stem.", "class_token", "positions."))]
    assert len(first) == 4 and {scales[key] for key in first} == {0.5**4}


def test_the_head_has_a_factor_of_its_own() -> None:
    """The norm before it learns as fast as without the factor, and so do the layers."""
    config = OptimizerConfig(layer_decay=0.5, head_rate=6.0)
    scales = scales_by_name("ViT-16x3x2/8", config)
    others = scales_by_name("ViT-16x3x2/8", dataclasses.replace(config, head_rate=1.0))
    assert {scales.pop(key) for key in ("head.weight", "head.bias")} == {6.0}
    assert scales == {key: others[key] for key in scales}
    frozen = scales_by_name("ViT-16x3x2/8", dataclasses.replace(config, freeze="trunk"))
    assert {frozen.pop(key) for key in ("head.weight", "head.bias")} == {6.0}
    assert {*frozen.values()} == {0.0}


@pytest.mark.parametrize(
    ("name", "frozen", "moving"),
    [
        ("ViT-16x3x2/8", ("stem.", "class_token", "positions.", "blocks.0.", "blocks.1."), "blocks.2."),
        ("Axial-ViT-16x3x2/8", ("stem.", "positions.", "blocks.0.", "blocks.1."), "blocks.2."),
        ("R+ViT-Ti/16", ("stem.", "class_token", "positions.", "blocks.0.", "blocks.1."), "blocks.2."),
        ("BiT-R26x1", ("root.", "stages.0."), "stages.1."),
    ],
)
def test_frozen_layers_are_the_first_of_every_family(name: str, frozen: tuple[str, ...], moving: str) -> None:
    scales = scales_by_name(name, OptimizerConfig(freeze_layers=2))
    assert {value for key, value in scales.items() if key.startswith(frozen)} == {0.0}
    assert {value for key, value in scales.items() if not key.startswith(frozen)} == {1.0}
    assert any(key.startswith(moving) for key in scales)


def test_a_frozen_trunk_leaves_the_head() -> None:
    config = dataclasses.replace(TINY, representation_size=6)
    model = build_model(config)
    scales = rate_scales(model, OptimizerConfig(freeze="trunk", layer_decay=0.5, freeze_layers=1))
    moving = {name for name, parameter in model.named_parameters() if scales[parameter]}
    assert moving == {"head.weight", "head.bias", "pre_logits.weight", "pre_logits.bias"}


def test_what_cannot_be_frozen_is_said() -> None:
    with pytest.raises(VitkitError, match="The model has 3 layers, so freeze_layers is from 0 to 3, found 4"):
        scales_by_name("ViT-16x3x2/8", OptimizerConfig(freeze_layers=4))
    headless = create_model("ViT-16x3x2/8", num_classes=0, image_size=32)
    with pytest.raises(VitkitError, match="no head that could be trained alone"):
        rate_scales(headless, OptimizerConfig(freeze="trunk"))


def test_groups_have_their_rates_and_frozen_parameters_none() -> None:
    model = create_model("ViT-16x2x2/8", num_classes=3, image_size=16)
    config = OptimizerConfig(layer_decay=0.5, freeze_layers=1, weight_decay=0.3)
    scales = rate_scales(model, config)
    groups = decay_groups(model, config, scales)
    assert [(group["scale"], group["weight_decay"]) for group in groups] == [
        (1.0, 0.3),
        (1.0, 0.0),
        (0.5, 0.3),
        (0.5, 0.0),
    ]
    grouped = [parameter for group in groups for parameter in group["params"]]
    assert len(grouped) == len({*grouped}) == sum(scale > 0 for scale in scales.values())
    # Without them, parameters have the numbers and groups that they had in the checkpoints of before.
    plain = decay_groups(model, OptimizerConfig(), rate_scales(model, OptimizerConfig()))
    assert [group["scale"] for group in plain] == [1.0, 1.0]


def test_a_slower_layer_moves_less_by_the_factor(tmp_path: Path) -> None:
    """After one step of SGD without clipping, each layer has moved by its factor times what it would have."""
    plain = OptimizerConfig(optimizer="sgd", learning_rate=0.1, weight_decay=0.0, clip_norm=None)
    moved = []
    for config in (plain, dataclasses.replace(plain, layer_decay=0.5)):
        trainer = small_trainer(tmp_path / str(config.layer_decay), optimizer=config)
        model = trainer.state.model
        head = model.get_parameter("head.weight")  # zeros would send no gradient below it
        torch.nn.init.normal_(head, generator=torch.Generator().manual_seed(0))
        before = {name: value.clone() for name, value in model.state_dict().items()}
        next(trainer.fit())
        moved.append({name: value - before[name] for name, value in model.state_dict().items()})
    depth = TINY.depth
    for name, factor in (
        ("head.weight", 1.0),
        (f"blocks.{depth - 1}.mlp.fc1.weight", 0.5),
        ("stem.weight", 0.5 ** (depth + 1)),
    ):
        assert moved[0][name].abs().max() > 1e-5
        torch.testing.assert_close(moved[1][name], moved[0][name] * factor, rtol=1e-3, atol=1e-7)


def test_frozen_weights_keep_their_bits_and_get_no_gradient(tmp_path: Path) -> None:
    """Also in the Polyak average, and also with decay."""
    careful = dataclasses.replace(OPTIMIZER, freeze_layers=1, layer_decay=0.5)
    trainer = small_trainer(tmp_path, optimizer=careful)
    frozen = ("stem.", "class_token", "positions.", "blocks.0.")
    before = {name: value.clone() for name, value in trainer.state.model.state_dict().items()}
    list(trainer.fit())
    for model in (trainer.state.model, trainer.state.average):
        assert model is not None
        after = model.state_dict()
        for name in after:
            assert torch.equal(after[name], before[name]) == name.startswith(frozen), name
    for name, parameter in trainer.state.model.named_parameters():
        assert (parameter.grad is None) == name.startswith(frozen)
