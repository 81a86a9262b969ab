"""A series of runs: what follows from its record, and what is counted from its runs."""

from dataclasses import replace
from pathlib import Path

import pytest

import vitkit
from tests.helpers.small_digits import small_run
from vitkit.config import to_json, write
from vitkit.errors import VitkitError
from vitkit.evaluation.statistics import binomial_interval
from vitkit.jobs.report import write_report
from vitkit.runs import series_record
from vitkit.runs.config import Run
from vitkit.runs.records import Divergence
from vitkit.runs.run_options import SeriesOptions
from vitkit.runs.series_record import (
    Member,
    Score,
    Series,
    SeriesRecord,
    conclusions,
    plan_series,
    read_series,
    summarise,
)
from vitkit.training.checkpoint import Ended

RUN = small_run(4)
RUNS, FOLDS = SeriesOptions(runs=2), SeriesOptions(cross_validate=3)
SWEEP = SeriesOptions(sweep_rates=(0.02, 0.001), runs=2)


def score(split: str, right: int, count: int) -> Score:
    return Score(split, right / count, binomial_interval(right, count), 1.0, count)


def planned(options: SeriesOptions, right: tuple[int, ...] = (), count: int = 20) -> Series:
    """A series whose members, without a sweep, have as many right answers on the test images."""
    series = plan_series(SeriesRecord("0.1", "", RUN, options, False))
    members = (
        replace(member, score=score("test", number, count), finished=True)
        for member, number in zip(series.members, right, strict=False)
    )
    return replace(series, members=(*members, *series.members[len(right) :]))


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a series whose runs are said to be as right as the names of their folders."""

    def read_score(folder: Path, split: str, run: Run) -> Score | None:
        assert run.training.select == ("last" if split == "val" else RUN.training.select)
        right = {"rate-0.001": 3, "rate-0.02": 4, "seed-0": 9, "seed-1": 11}[folder.name]
        return score(split, right, 20)

    monkeypatch.setattr(series_record, "read_score", read_score)
    write(tmp_path / "series.json", SeriesRecord("0.1", "vitkit train", RUN, SWEEP, False))
    return tmp_path


def end(folder: Path) -> None:
    folder.mkdir()
    write(folder / "ended.json", Ended(4, {}))


def test_what_came_out_is_read_from_the_runs(sweep: Path) -> None:
    series = read_series(sweep)
    assert [member.folder for member in series.all_members] == ["rate-0.001", "rate-0.02", "seed-0", "seed-1"]
    assert (series.chosen, series.ended, series.spread) == (None, False, None)
    end(sweep / "rate-0.02")
    assert [member.ended for member in read_series(sweep).rates] == [False, True]
    assert read_series(sweep).chosen is None  # before all rates have ended
    end(sweep / "rate-0.001")
    series = read_series(sweep)
    assert series.chosen == 0.02 and [member.learning_rate for member in series.members] == [0.02, 0.02]
    assert series.reasons[0] == "Learning rate 0.02 is the best on 20 held-out images: 20.00%."
    end(sweep / "seed-0")
    end(sweep / "seed-1")
    series = read_series(sweep)
    assert series.ended and series.spread == summarise(series)
    assert series.spread is not None and series.spread.mean == 0.5


def test_rates_that_all_diverged_choose_nothing(sweep: Path) -> None:
    for name in ("rate-0.001", "rate-0.02"):
        (sweep / name).mkdir()
        write(sweep / name / "diverged.json", Divergence("infinite loss"))
    series = read_series(sweep)
    assert [member.diverged for member in series.rates] == ["infinite loss"] * 2
    assert series.chosen is None and not series.ended


def test_the_record_names_no_folder_and_no_result(sweep: Path) -> None:
    """Somebody who gives a series away cannot have another's checkpoints removed."""
    given = SeriesRecord("0.1", "", RUN, SWEEP, False)
    assert to_json(given).keys() == {"vitkit_version", "command", "run", "options", "validates"}
    (sweep / "series.json").write_text('{"members": [{"folder": "../mine"}]}')
    for use in (read_series, write_report, vitkit.load_model):
        with pytest.raises(VitkitError, match=r"series\.json: unknown key 'members'"):
            use(sweep)


def test_a_single_rate_is_that_of_the_members_and_rates_do_not_share_a_folder() -> None:
    series = planned(SeriesOptions(sweep_rates=(0.5,)))
    assert series.rates == () and series.chosen == 0.5 == series.members[0].learning_rate
    with pytest.raises(VitkitError, match="agree in six digits"):
        SeriesOptions(sweep_rates=(0.12345671, 0.12345672))


def test_folds_are_pooled_beside_their_mean() -> None:
    ended = planned(FOLDS, (1, 3, 4))
    ended = replace(
        ended, members=(*ended.members[:2], replace(ended.members[2], score=score("test", 4, 10)))
    )
    spread = summarise(ended)
    assert spread is not None and spread.pooled is not None
    assert spread.mean == pytest.approx((0.05 + 0.15 + 0.4) / 3)
    assert (spread.pooled.right, spread.pooled.images) == (8, 50)
    assert spread.pooled.interval == binomial_interval(8, 50)
    said = conclusions(replace(ended, spread=spread))
    assert said[0].startswith("20.00% accuracy on test images, the mean of 3 folds; standard deviation")
    assert said[1:] == [
        "Of the 50 tested images together 8 are right: 16.00% (95 % interval 7.2% to 29.1%, over other "
        "images like these and not over other trainings).",
        "Each of 50 images was tested once, by a run that had not trained on it.",
    ]
    seeds = summarise(planned(RUNS, (1, 3)))
    assert seeds is not None and seeds.pooled is None  # the same images twice
    # Nor is a metric that counts no images.
    spread = summarise(replace(planned(FOLDS, (1, 3, 4)), run=replace(RUN, task="multi-label")))
    assert spread is not None and spread.pooled is None


def test_the_images_of_folds_that_diverged_are_not_counted() -> None:
    series = planned(FOLDS, (1, 3, 4))
    lost = Member("fold-2", 0.01, 0, 2, diverged="infinite loss")
    series = replace(series, members=(*series.members[:2], lost))
    said = conclusions(replace(series, spread=summarise(series)))
    assert "Of the 40 tested images together 4 are right" in said[1]
    assert said[2].startswith("Each of 40 images")
    assert said[3] == "Training diverged in 1 of 3 runs, which the mean leaves out."
