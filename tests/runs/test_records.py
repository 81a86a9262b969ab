"""Run folders that were edited or damaged: reports and evaluations say so in words."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vitkit
from tests.helpers.cli import Cli
from tests.helpers.damage import as_a_huge_file
from tests.helpers.photos import image_folder
from tests.helpers.refusals import refused
from tests.helpers.small_digits import small_run
from vitkit.cli.main import run
from vitkit.config import to_json, write
from vitkit.evaluation.statistics import binomial_interval
from vitkit.jobs.report import write_report
from vitkit.runs import series_record
from vitkit.runs.config import Run
from vitkit.runs.records import read_log
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
from vitkit.runs.steps import speed_log
from vitkit.runs.trained_model import read_evaluations, write_evaluation
from vitkit.tasks import answering_of
from vitkit.training.checkpoint import Ended

TRAIN = {"kind": "train", "step": 10, "epoch": 0.5, "loss": 2.0, "learning_rate": 1e-3}
VALIDATION = {"kind": "validation", "step": 10, "epoch": 0.5, "loss": 2.0, "accuracy": 0.5}
SPEED = {"step": 10, "images_per_second": 100.0, "seconds": 5.0, "memory_bytes": 10**9}
DEEP = b"[" * 100_000


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sigmoid run of six small pictures in each of two classes."""
    root = tmp_path_factory.mktemp("trained")
    image_folder(root / "images", 16)
    options = ["--model", "ViT-8x1x2/4", "--image-size", "8", "--batch-size", "4", "--warmup-steps", "0"]
    options += ["--epochs", "2", "--log-every", "1", "--loss", "sigmoid", "--label-smoothing", "0.1"]
    assert run(["train", "--data", str(root / "images"), "--out", str(root / "run"), *options]) == 0
    return root / "run"


@pytest.fixture
def copied(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def lines(*written: Any) -> bytes:
    return b"".join(
        line + b"\n" if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in written
    )


WRONG_LINES: list[Any] = [
    b"{",
    b"no JSON",
    b"\xff\xfe",
    DEEP,
    b'{"a":' * 5000,
    b"9" * 5000,
    b" " * 70_000 + b"1",
    None,
    [],
    3,
    "text",
    {},
    {**TRAIN, "step": None},
    {**TRAIN, "step": 1.5},
    {**TRAIN, "step": True},
    {**TRAIN, "step": 10**400},
    {**TRAIN, "loss": float("nan")},
    {**TRAIN, "loss": float("inf")},
    {**TRAIN, "loss": None},
    {**TRAIN, "loss": "2.0"},
    {**TRAIN, "loss": [2.0]},
    {**TRAIN, "learning_rate": {}},
    {**TRAIN, "kind": "other"},
    {**TRAIN, "kind": []},
    {key: value for key, value in TRAIN.items() if key != "epoch"},
    b'{"kind": "train", "step": 1, "epoch": 0.1, "loss": 1e999}',
]


def test_damaged_lines_of_a_log_are_left_out_and_counted(tmp_path: Path) -> None:
    for wrong in WRONG_LINES:
        (tmp_path / "metrics.jsonl").write_bytes(lines(TRAIN, wrong, b"", VALIDATION))
        log = read_log(tmp_path / "metrics.jsonl")
        assert log.lines == [TRAIN, VALIDATION], wrong
        said = "metrics.jsonl: 1 line of 3 cannot be read and is left out; the first is line 2."
        assert log.left_out == said


def test_whole_logs_are_read_whole(tmp_path: Path) -> None:
    """With lines that the report does not draw: another evaluator's, and the first of a log begun anew."""
    drift = {"kind": "evaluation", "evaluator": "drift", "step": 5, "epoch": 0.2, "distance": 1.5}
    metrics, speed = tmp_path / "metrics.jsonl", tmp_path / "speed.jsonl"
    assert read_log(tmp_path / "metrics.jsonl").lines == read_log(tmp_path / "speed.jsonl").lines == []
    metrics.write_bytes(lines({"kind": "restart", "step": 8}, drift, TRAIN, VALIDATION))
    speed.write_bytes(lines(SPEED, b"", SPEED))
    assert read_log(metrics).lines == [TRAIN, VALIDATION] and not read_log(metrics).left_out
    assert read_log(speed).lines == [SPEED, SPEED] and not read_log(speed).left_out
    metrics.write_bytes(lines({**drift, "distance": None}, {**drift, "step": "5"}, TRAIN))
    assert "2 lines of 3 cannot be read" in read_log(metrics).left_out
    speed.write_bytes(lines(SPEED, TRAIN) + b'{"step": 20, "images_')
    assert read_log(speed).lines == [SPEED]
    assert "2 lines of 3 cannot be read and are left out" in read_log(speed).left_out


def test_a_speed_log_that_was_cut_short_loses_no_line_after_it(tmp_path: Path) -> None:
    whole = {key: value for key, value in SPEED.items() if key != "seconds"}
    with speed_log(tmp_path) as log:
        log(dict(whole))
    assert (tmp_path / "speed.jsonl").read_bytes()[:1] == b"{"  # no empty line at the beginning
    with (tmp_path / "speed.jsonl").open("ab") as file:
        file.write(b'{"step": 20, "images_')
    with speed_log(tmp_path) as log:
        log(dict(whole))
    assert [line["step"] for line in read_log(tmp_path / "speed.jsonl").lines] == [SPEED["step"]] * 2
    assert "1 line of 3" in read_log(tmp_path / "speed.jsonl").left_out


def test_a_log_that_is_no_file_is_left_out(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    for make in (os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero"), as_a_huge_file):
        make(log)
        read = read_log(log)
        assert read.lines == [] and read.left_out.startswith("metrics.jsonl is left out: ")
        log.rmdir() if log.is_dir() else log.unlink()


def test_what_is_left_out_is_said_on_the_screen_and_the_page(copied: Path, cli: Cli) -> None:
    for name in ("metrics.jsonl", "speed.jsonl"):
        with (copied / name).open("ab") as file:
            file.write(lines(b"\xff" * 20, {"kind": "train"}))
    screen, page = cli(["report", str(copied)]).text, (copied / "report.html").read_text()
    for name in ("metrics.jsonl", "speed.jsonl"):
        assert f"{name}: 2 lines of" in page and f"{name}: 2 lines of" in screen


def set_field(path: Path, *keys: Any, value: Any) -> None:
    record = inner = json.loads(path.read_text())
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    path.write_text(json.dumps(record))


def test_numbers_are_counted_from_the_predictions(copied: Path) -> None:
    answering = answering_of(vitkit.load_model(copied).card)
    whole = read_evaluations(copied, answering)["test"][0]
    for keys, value in (
        (("count",), 10**6),
        (("correct",), 1),
        (("accuracy",), 0.0),
        (("calibration",), []),
        (("per_class", 0, "correct"), 9),
        (("confusion_cells", 0), [0, 9, 1]),
    ):
        set_field(copied / "evaluation/test.json", *keys, value=value)
        assert read_evaluations(copied, answering)["test"][0] == whole
    set_field(copied / "evaluation/test.json", "per_class", value=[])
    refused(r"test\.json: expected numbers of 2 classes .*found 0 classes", write_report, copied)


def test_numbers_stand_only_beside_the_predictions_that_they_are_counted_from(copied: Path) -> None:
    """However a kill comes between two of the files."""
    evaluations = copied / "evaluation"
    answering = answering_of(vitkit.load_model(copied).card)
    result, predictions = answering.read_evaluation(evaluations / "test.json")

    class Killed:
        def save(self, path: Path) -> None:
            np.save(path.with_suffix(".labels.npy"), predictions.labels[::-1])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_evaluation(copied, "test", result, Killed())
    assert "test" not in read_evaluations(copied, answering)
    write_evaluation(copied, "test", result, predictions)
    assert read_evaluations(copied, answering)["test"][0] == result


def test_a_report_has_no_pictures_of_other_images_and_none_without_a_record_of_the_data(
    copied: Path, cli: Cli
) -> None:
    path = copied / "evaluation" / "test.ids.npy"
    whole = path.read_bytes()
    np.save(path, np.load(path) + 50)
    refused(r"predictions of test in .*: expected ids of the \d+ images", write_report, copied)
    path.write_bytes(whole)
    set_field(copied / "model.json", "data", value=None)
    said = "Without pictures of images: The model does not say which data"
    assert said in cli(["report", str(copied)]).err
    before = (copied / "report.html").read_bytes()
    (copied / "model.json").write_text("[3]")
    assert "is no JSON object" in cli(["report", str(copied)], 1).err
    assert (copied / "report.html").read_bytes() == before


# A sigmoid model from its training to its pages


def test_a_sigmoid_run_is_scored_as_it_was_trained(trained: Path, copied: Path, cli: Cli) -> None:
    metrics = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in metrics if line["kind"] == "validation"][-1]
    validation = json.loads((trained / "evaluation" / "val.json").read_text())
    assert validation["loss_function"] == "sigmoid"
    assert last["loss"] > 1.1  # two classes: softmax near 0.69, two binary cross entropies near 1.39
    printed = cli(["evaluate", str(copied), "--json"]).out
    evaluation = json.loads(printed, parse_constant=lambda name: pytest.fail(name))
    assert evaluation["loss_function"] == "sigmoid"


# A series: what follows from its record, and what is counted from its runs

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


def test_the_record_names_no_folder_and_no_result(sweep: Path) -> None:
    """Somebody who gives a series away cannot have another's checkpoints removed."""
    given = SeriesRecord("0.1", "", RUN, SWEEP, False)
    assert to_json(given).keys() == {"vitkit_version", "command", "run", "options", "validates"}
    (sweep / "series.json").write_text('{"members": [{"folder": "../mine"}]}')
    for use in (read_series, write_report, vitkit.load_model):
        refused(r"series\.json: unknown key 'members'", use, sweep)


def test_a_single_rate_is_that_of_the_members_and_rates_do_not_share_a_folder() -> None:
    series = planned(SeriesOptions(sweep_rates=(0.5,)))
    assert series.rates == () and series.chosen == 0.5 == series.members[0].learning_rate
    refused("agree in six digits", SeriesOptions, sweep_rates=(0.12345671, 0.12345672))


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
