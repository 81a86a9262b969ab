"""The record of a series: what it may say, what of it is never trusted, and what is counted from it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import vitkit
from tests.helpers.small_digits import small_run
from vitkit.config import to_json
from vitkit.errors import VitkitError
from vitkit.evaluation.intervals import binomial_interval
from vitkit.jobs.report import write_report
from vitkit.jobs.series.report import conclusions
from vitkit.jobs.series.series import train_series
from vitkit.runs.series_options import SeriesOptions
from vitkit.runs.series_record import (
    Member,
    Score,
    Series,
    choose_rate,
    new_series,
    plan_members,
    read_series,
    summarise,
    write_series,
)

RUN = small_run(4)
RATES = (0.001, 0.02)
RUNS, FOLDS = SeriesOptions(runs=2), SeriesOptions(cross_validate=3)
SWEEP = SeriesOptions(sweep_rates=RATES, runs=2)
# Its rates come from the recipe: the record alone names them.
RECIPE_SWEEP = SeriesOptions(sweep=True, runs=2)


def series_of(options: SeriesOptions, counts: tuple[int, ...] = (), right: tuple[int, ...] = ()) -> Series:
    """A series in which as many runs have finished as there are counts of images, and of right answers."""
    tried = options.sweep_rates or (RATES if options.sweeps else ())
    rates, members = plan_members(RUN, options, tried, RUN.optimizer.learning_rate)
    series = new_series("", RUN, options, rates, members, False)
    for number, (count, correct) in enumerate(zip(counts, right, strict=True)):
        split = "val" if number < len(rates) else "test"
        score = Score(split, correct / count, binomial_interval(correct, count), 1.0, count)
        ended = replace(series.all_members[number], score=score, finished=True)
        these = [ended if member.folder == ended.folder else member for member in series.all_members]
        series = replace(series, rates=tuple(these[: len(rates)]), members=tuple(these[len(rates) :]))
        if number == len(rates) - 1:
            series = choose_rate(series)
    return series


def written(folder: Path, series: Series) -> Path:
    folder.mkdir(parents=True)
    write_series(folder, series)
    return folder


def rewritten(folder: Path, *place: Any, value: Any) -> Path:
    """Put a value at a place of a record."""
    path = folder / "series.json"
    record = json.loads(path.read_text())
    inside = record
    for key in place[:-1]:
        inside = inside[key]
    inside[place[-1]] = value
    path.write_text(json.dumps(record))
    return folder


@pytest.mark.parametrize(
    "series",
    [
        series_of(RUNS),
        series_of(RUNS, (9, 9), (3, 4)),
        series_of(FOLDS, (8, 8, 8), (1, 0, 2)),
        series_of(SWEEP),
        series_of(SWEEP, (9,), (3,)),
        series_of(SWEEP, (9, 9, 20), (3, 4, 9)),
    ],
)
def test_what_is_written_is_read_again(series: Series, tmp_path: Path) -> None:
    restored = read_series(written(tmp_path / "series", series))
    assert replace(restored, spread=None) == series
    assert restored.spread == (summarise(series) if series.ended else None)


def victim(root: Path) -> dict[str, bytes]:
    """Somebody's run, with a checkpoint that a series must not remove."""
    checkpoint = root / "mine/checkpoints/step-00000004"
    checkpoint.mkdir(parents=True)
    for name in ("COMMIT", "manifest.json", "state.json"):
        (checkpoint / name).write_text("{}")
    return contents(root / "mine")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "name", ["ABSOLUTE", "../mine", "x/../../mine", ".", "", "seed-2", "seed-1/", "mine"]
)
@pytest.mark.parametrize("finished", [True, False])
def test_folders_of_members_are_the_names_of_the_plan_and_never_paths(
    name: str, finished: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = victim(tmp_path)
    folder = written(tmp_path / "given", series_of(RUNS, (9, 9), (3, 4)))
    name = str(tmp_path / "mine") if name == "ABSOLUTE" else name
    rewritten(folder, "members", 1, "folder", value=name)
    rewritten(folder, "members", 1, "finished", value=finished)
    rewritten(folder, "members", 1, "score", value=None)
    given = contents(folder)
    uses: list[Any] = [
        read_series,
        write_report,
        vitkit.load_model,
        lambda path: train_series(RUN, path, RUNS, resume=True),
    ]
    for use in uses:
        with pytest.raises(VitkitError, match="names of folders are never paths"):
            use(folder)
    assert contents(tmp_path / "mine") == before and contents(folder) == given
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "given"}


@pytest.mark.parametrize(
    ("options", "place", "value", "message"),
    [
        (RUNS, ("metric",), "loss", "metric: expected accuracy"),
        (RUNS, ("options", "runs"), 10**9, "options: runs is at least 1 and at most 1,000, found 1000000000"),
        (RUNS, ("options", "runs"), 900, "members: expected 900, found 2"),
        (RUNS, ("options", "runs"), 2.5, "options: runs: expected int"),
        (RUNS, ("options", "cross_validate"), 2, "give one of the two"),
        (RUNS, ("chosen",), 0.5, "chosen: expected the learning rate of the members, 0.01, found 0.5"),
        (RUNS, ("chosen",), None, "chosen: expected the learning rate"),
        (RUNS, ("members", 0, "learning_rate"), 0.5, "expected 'seed-0' at rate 0.01"),
        (RUNS, ("members", 0, "learning_rate"), float("nan"), "expected 'seed-0' at rate 0.01"),
        (RUNS, ("members", 0, "seed"), 7, "expected 'seed-0' at rate 0.01, seed 0, found .* seed 7"),
        (RUNS, ("members", 0, "fold"), 0, "found 'seed-0' at rate 0.01, seed 0, fold 0"),
        (RUNS, ("members", 0, "folder"), 3, "folder: expected str"),
        (RUNS, ("members", 0, "diverged"), "yes", "seed-0: expected a run that has finished or diverged"),
        (RUNS, ("members", 0, "finished"), False, "seed-0: expected no score before it has finished"),
        (RUNS, ("members", 0, "score", "split"), "train", "seed-0: score: expected images that the run is"),
        (RUNS, ("members", 0, "score", "split"), "val", "scores on the images of one split"),
        (RUNS, ("members", 0, "score", "value"), 1.5, "expected a value from 0 to 1, found 1.5"),
        (RUNS, ("members", 0, "score", "value"), float("nan"), "expected a value from 0 to 1"),
        (RUNS, ("members", 0, "score", "interval"), [0.9, 0.1], "expected an interval"),
        (RUNS, ("members", 0, "score", "count"), -1, "expected a number of images, found -1"),
        (RUNS, ("members", 0, "score", "count"), 10**400, "expected a number of images, found 1000"),
        (RUNS, ("members",), [], "members: expected 2, found 0"),
        (FOLDS, ("members", 2, "fold"), 1, "expected 'fold-2' at rate 0.01, seed 0, fold 2"),
        (FOLDS, ("members", 0, "score", "split"), "val", "whose images chose its weights"),
        (SWEEP, ("rates", 0, "folder"), "../rate-0.001", "names of folders are never paths"),
        (SWEEP, ("rates", 0, "learning_rate"), 0.002, "rates: expected .0.001, 0.02."),
        (SWEEP, ("rates",), [], "rates: expected .0.001, 0.02., found"),
        (SWEEP, ("rates", 0, "score", "split"), "test", "expected images that the run is judged by"),
        (SWEEP, ("rates", 0, "score", "value"), 0.9, "expected the rate that scored best, 0.001, found 0.02"),
        (SWEEP, ("chosen",), None, "expected 'seed-0' at rate 0.01"),
        (SWEEP, ("chosen",), 0.5, "expected 'seed-0' at rate 0.5"),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(
    options: SeriesOptions, place: tuple[Any, ...], value: Any, message: str, tmp_path: Path
) -> None:
    series = (
        series_of(options, (9, 9, 9), (3, 4, 5)) if options is not RUNS else series_of(RUNS, (9, 9), (3, 4))
    )
    folder = rewritten(written(tmp_path / "series", series), *place, value=value)
    with pytest.raises(VitkitError, match=message):
        read_series(folder)


@pytest.mark.parametrize("order", [(1, 0), (0, 0), (0,)])
def test_rates_that_do_not_rise_are_refused(order: tuple[int, ...], tmp_path: Path) -> None:
    series = series_of(RECIPE_SWEEP)
    read_series(written(tmp_path / "rising", series))
    shuffled = replace(series, rates=tuple(series.rates[number] for number in order))
    with pytest.raises(VitkitError, match=r"rates: expected several rising numbers above 0, found"):
        read_series(written(tmp_path / "others", shuffled))


def test_a_choice_before_all_rates_have_ended_is_refused(tmp_path: Path) -> None:
    begun = series_of(SWEEP, (9,), (3,))
    rated = replace(
        begun, chosen=0.001, members=tuple(replace(m, learning_rate=0.001) for m in begun.members)
    )
    with pytest.raises(VitkitError, match=r"expected none before all rates have ended, found 0\.001"):
        read_series(written(tmp_path / "series", rated))


def test_what_was_found_is_counted_and_not_read(tmp_path: Path) -> None:
    folder = written(tmp_path / "series", series_of(SWEEP, (9, 9, 20, 20), (3, 4, 9, 9)))
    rewritten(folder, "reasons", value=["It is the best there is."])
    rewritten(folder, "spread", value=to_json(right := summarise(read_series(folder))))
    rewritten(folder, "spread", "mean", value=0.99)
    restored = read_series(folder)
    assert restored.spread == right and restored.spread is not None and restored.spread.mean == 0.45
    assert "best there is" not in " ".join(restored.reasons)


def test_rates_that_would_share_a_folder_are_refused() -> None:
    with pytest.raises(VitkitError, match="agree in six digits"):
        SeriesOptions(sweep_rates=(0.12345671, 0.12345672))


def test_folds_are_pooled_beside_their_mean(tmp_path: Path) -> None:
    ended = series_of(FOLDS, (20, 20, 10), (1, 3, 4))
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
    folder = written(tmp_path / "folds", ended)
    assert "8 are right: 16.00%" in write_report(folder).read_text()
    seeds = summarise(series_of(RUNS, (20, 20), (1, 3)))
    assert seeds is not None and seeds.pooled is None  # the same images twice


def test_a_metric_that_counts_no_images_is_not_pooled() -> None:
    labels = replace(series_of(FOLDS, (20, 20, 10), (1, 3, 4)), run=replace(RUN, task="multi-label"))
    spread = summarise(labels)
    assert spread is not None and spread.pooled is None


def test_the_images_of_folds_that_diverged_are_not_counted() -> None:
    series = series_of(FOLDS, (20, 20, 10), (1, 3, 4))
    lost = Member("fold-2", 0.01, 0, 2, diverged="infinite loss")
    series = replace(series, members=(*series.members[:2], lost))
    said = conclusions(replace(series, spread=summarise(series)))
    assert "Of the 40 tested images together 4 are right" in said[1]
    assert said[2].startswith("Each of 40 images")
    assert said[3] == "Training diverged in 1 of 3 runs, which the mean leaves out."
