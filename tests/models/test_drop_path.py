"""Stochastic depth."""

import dataclasses
from pathlib import Path

import pytest
import torch

from tests.helpers.tiny_models import TINY, model_with_random_head
from vitkit import load_model
from vitkit.errors import VitkitError
from vitkit.models.parts import drop_path
from vitkit.weights.loading import save_model

DEEP = dataclasses.replace(TINY, depth=5, drop_path=0.4)


def test_rates_rise_evenly_from_none_to_that_of_the_last_block() -> None:
    model = model_with_random_head(DEEP)
    assert [block.drop_path for block in model.blocks] == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])
    (only,) = model_with_random_head(dataclasses.replace(DEEP, depth=1)).blocks
    assert only.drop_path == 0


def test_an_image_keeps_a_branch_whole_or_not_at_all() -> None:
    torch.manual_seed(0)
    dropped = drop_path(torch.ones(4000, 3, 2), 0.4)
    by_image = dropped.flatten(1)
    assert torch.equal(by_image, by_image[:, :1].expand(-1, 6))
    assert set(by_image[:, 0].tolist()) == {0.0, torch.tensor(1 / 0.6).item()}
    assert dropped.mean().item() == pytest.approx(1, abs=0.04)  # five standard deviations of the mean


def test_it_acts_in_training_alone() -> None:
    model, plain = (
        model_with_random_head(DEEP),
        model_with_random_head(dataclasses.replace(DEEP, drop_path=0.0)),
    )
    images = torch.randint(0, 256, (8, 3, 12, 16), dtype=torch.uint8)
    with torch.no_grad():
        assert torch.equal(model.eval()(images), plain.eval()(images))
        assert not torch.equal(model.train()(images), plain.train()(images))


def test_the_generators_seed_decides_who_skips() -> None:
    model = model_with_random_head(DEEP).train()
    images = torch.randint(0, 256, (8, 3, 12, 16), dtype=torch.uint8)

    def logits(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        with torch.no_grad():
            return model(images)  # type: ignore[no-any-return]

    assert torch.equal(logits(1), logits(1))
    assert not torch.equal(logits(1), logits(2))


def test_without_it_nothing_is_drawn() -> None:
    model = model_with_random_head(dataclasses.replace(DEEP, drop_path=0.0)).train()
    torch.manual_seed(3)
    model(torch.zeros(2, 3, 12, 16))
    drawn = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(1))


def test_both_branches_are_dropped() -> None:
    block = model_with_random_head(dataclasses.replace(DEEP, drop_path=0.9)).blocks[-1].train()
    taps: dict[str, torch.Tensor] = {}
    tokens = torch.randn(200, 4, TINY.width)
    torch.manual_seed(0)
    block(tokens, taps, "b")
    for name in ("b/attention", "b/mlp"):
        zero = (taps[name].flatten(1) == 0).all(1)
        assert 150 < zero.sum() < 198


def test_timm_is_told_the_rate_and_tells_it(tmp_path: Path) -> None:
    folder = save_model(model_with_random_head(DEEP), tmp_path / "timm", "timm")
    assert load_model(folder).config.drop_path == 0.4
    plain = save_model(model_with_random_head(TINY), tmp_path / "plain", "timm")
    assert "drop_path_rate" not in (plain / "config.json").read_text()  # as before there was such a rate


def test_impossible_rates_are_explained() -> None:
    with pytest.raises(VitkitError, match="drop_path is a number from 0 to below 1"):
        dataclasses.replace(TINY, drop_path=1.0)
    with pytest.raises(VitkitError, match="leave out drop_path"):
        dataclasses.replace(TINY, attention="axial", pool="mean", drop_path=0.1)
