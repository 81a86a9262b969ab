"""The rate that a sweep chooses, and the sentences about what came out."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.series import SMALL, swept
from tests.jobs.hearing import Hearing
from vitkit.errors import VitkitError
from vitkit.jobs.recipes import recipe, sweep_rates
from vitkit.jobs.series import train_series
from vitkit.runs.series_options import SeriesOptions
from vitkit.runs.series_record import Member, Score, choose_rate, conclusions, read_series, summarise
from vitkit.training.checkpoint import read_ended

pytestmark = pytest.mark.usefixtures("without_report")


def test_a_rate_that_diverges_is_told_and_not_chosen(tmp_path: Path) -> None:
    """It keeps its checkpoints. Where all rates diverge, nothing is chosen."""
    wild = replace(SMALL, optimizer=replace(SMALL.optimizer, warmup_steps=0))
    hearing = Hearing()
    out = train_series(wild, tmp_path / "sweep", SeriesOptions(sweep_rates=(0.001, 1e36)), listener=hearing)
    series = read_series(out)
    assert series.chosen == 0.001
    assert "Step" in series.rates[1].diverged and series.rates[1].score is None
    assert read_ended(out / "rate-1e+36") is None
    assert any("training diverged" in said for said in hearing.warnings)
    assert "With 1e+36 training diverged." in series.reasons
    assert "diverged" in (out / "report.html").read_text()
    with pytest.raises(VitkitError, match=r"None of the learning rates 1e[+]35, 1e[+]36 led to a model"):
        train_series(wild, tmp_path / "none", SeriesOptions(sweep_rates=(1e36, 1e35)))
    assert not (tmp_path / "none/final").exists()


@pytest.mark.parametrize(
    ("results", "chosen"),
    [
        ([(0.1, 0.5, 1.0), (0.2, 0.6, 9.0)], 0.2),
        ([(0.1, 0.6, 1.0), (0.2, 0.6, 0.9)], 0.2),  # the lower loss
        ([(0.1, 0.6, 1.0), (0.2, 0.6, 1.0)], 0.1),  # the lower rate
        ([(0.1, None, None), (0.2, 0.1, 2.0)], 0.2),
        ([(0.1, float("nan"), 1.0), (0.2, 0.1, float("nan"))], 0.2),
    ],
)
def test_ties_and_scores_that_are_none(results: list[Any], chosen: float) -> None:
    series = choose_rate(swept(*results))
    assert series.chosen == chosen == series.members[0].learning_rate


def test_what_came_out_is_said() -> None:
    ties = choose_rate(swept((0.1, 0.6, 1.0), (0.2, 0.6, 2.0))).reasons
    assert [line for line in ties if "same" in line] == [
        "0.2 scored the same: the lower loss decided, then the lower rate."
    ]
    with pytest.raises(VitkitError, match=r"have no labels to score by: give a higher splits_val_fraction"):
        choose_rate(swept((0.1, None, None), (0.2, None, None)))
    begun = swept((0.1, 0.5, 1.0))
    assert conclusions(begun) == ["Not all runs have ended yet: vitkit train --resume continues the series."]
    chosen = replace(begun, chosen=0.1)
    unscored = Member("final", 0.1, 0, score=Score("test", None, None, None, 10), finished=True)
    ended = replace(chosen, members=(unscored,))
    assert conclusions(replace(ended, spread=summarise(ended))) == [
        "The learning rate is 0.1.",
        "Accuracy is not defined on the test images: they have no labels.",
    ]
    lost = Member("seed-0", 0.1, 0, diverged="Step 3: loss nan")
    finished = Member("seed-1", 0.1, 1, finished=True)
    assert conclusions(replace(chosen, members=(lost, replace(lost, folder="seed-1"))))[1:] == [
        "Training diverged in 2 of 2 runs."
    ]
    assert conclusions(replace(chosen, members=(lost, finished)))[1:] == [
        "Training diverged in 1 of 2 runs.",
        "There are no test images, so the final model is not evaluated.",
    ]


def test_the_rates_are_those_of_table_4() -> None:
    assert sweep_rates(recipe("finetune-imagenet")) == (0.003, 0.01, 0.03, 0.06)
    for name in ("finetune-cifar10", "finetune-cifar100", "finetune-pets", "finetune-flowers", "paper"):
        assert sweep_rates(recipe(name)) == (0.001, 0.003, 0.01, 0.03)
    assert sweep_rates(recipe("finetune-vtab")) == (0.01,)
    shares = {
        name: recipe(f"finetune-{name}").splits.val_fraction for name in ("imagenet", "cifar10", "pets")
    }
    assert shares == {"imagenet": 0.01, "cifar10": 0.02, "pets": 0.1}
    assert sweep_rates(SMALL) == (0.001, 0.003, 0.01, 0.03)
