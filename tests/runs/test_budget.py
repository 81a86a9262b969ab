"""The length of a run in minutes: fixed once, and never by the clock again."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.jobs.hearing import Hearing
from vitkit.cli.main import run as command
from vitkit.data.config import Preprocessing
from vitkit.errors import VitkitError
from vitkit.evaluation.fewshot.config import FewShotTracking
from vitkit.jobs import train_run as training
from vitkit.jobs.finetune import finetune
from vitkit.listener import SILENT
from vitkit.runs import plan
from vitkit.runs.budget import Pace, measure_pace, steps_within, with_steps
from vitkit.runs.config import Run, StartConfig, model_config_of
from vitkit.runs.folder import kind_of
from vitkit.runs.machine import find_device
from vitkit.runs.plan import choose_length, look_at
from vitkit.runs.series_record import read_series
from vitkit.tasks import find_task
from vitkit.training.config import OptimizerConfig, TrainingConfig
from vitkit.weights.create import create_model
from vitkit.weights.loading import save_model

SMALL = Run(
    data="digits",
    model="ViT-16x1x2/4",
    preprocessing=Preprocessing((8, 8), resize="crop"),
    optimizer=OptimizerConfig(warmup_steps=10),
    training=TrainingConfig(epochs=2, batch_size=16, minutes=0.1),
)
OPTIONS = [
    *("--data", "digits", "--model", "ViT-16x1x2/4", "--image-size", "8"),
    *("--batch-size", "16", "--threads", "1", "--minutes", "0.1"),
]


pytestmark = pytest.mark.usefixtures("without_report")


def set_pace(monkeypatch: pytest.MonkeyPatch, step: float) -> None:
    monkeypatch.setattr(plan, "measure_pace", lambda *_: Pace(step, 0.0))


def test_validations_are_part_of_the_minutes() -> None:
    every = TrainingConfig(batch_size=10, evaluate_every=10)
    assert steps_within(100, Pace(1.0, 0.0), every, 100) == 100
    assert steps_within(100, Pace(1.0, 10.0), every, 100) == 50  # 5 validations of 10 s
    assert steps_within(100, Pace(1.0, 10.0), replace(every, evaluate_every=None), 1000) == 90
    assert steps_within(1, Pace(5.0, 0.0), every, 100) == 1
    # Up to 50 steps each is followed by a validation; from 51 on every second one is, which takes less time:
    # 52 + 26 * 10 s.
    assert steps_within(320, Pace(1.0, 10.0), replace(every, evaluate_every=None), 1) == 52


def test_warm_up_keeps_its_part_of_the_run() -> None:
    run = replace(SMALL, training=TrainingConfig(steps=100, batch_size=16))
    shorter = with_steps(run, 50, 1000)
    assert (shorter.training.steps, shorter.optimizer.warmup_steps) == (50, 5)


def test_the_steps_are_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that has become ten times as fast the same command continues the same run."""
    set_pace(monkeypatch, 1.0)
    training.train_run(SMALL, tmp_path / "run")
    assert kind_of(tmp_path / "run").run().training == replace(SMALL.training, steps=6)
    weights = (tmp_path / "run/model.safetensors").read_bytes()
    set_pace(monkeypatch, 0.1)
    (tmp_path / "run/report.html").unlink()
    training.train_run(SMALL, tmp_path / "run")
    assert (tmp_path / "run/model.safetensors").read_bytes() == weights
    longer = replace(SMALL, training=replace(SMALL.training, minutes=0.2))
    with pytest.raises(
        VitkitError, match=r"(?s)another run:\n  minutes 0.1 -> 0.2\n.*To train it for longer"
    ):
        training.train_run(longer, tmp_path / "run")


@pytest.mark.parametrize("measure_pixels", [False, True])
def test_a_run_without_a_folder_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measure_pixels: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    run = replace(SMALL, start=StartConfig(measure_pixels=measure_pixels))
    set_pace(monkeypatch, 1.0)
    first = training.train_run(run)
    assert (kind_of(first).run().start.image_std is not None) == measure_pixels
    set_pace(monkeypatch, 0.5)
    assert training.train_run(run) == first
    other = replace(run, optimizer=OptimizerConfig(warmup_steps=10, weight_decay=0.0))
    assert training.train_run(other) != first


def test_the_command_keeps_what_is_given_and_refuses_two_lengths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    set_pace(monkeypatch, 1.0)
    out = str(tmp_path / "run")
    assert command(["train", *OPTIONS, "--out", out, "--warmup-steps", "3"]) == 0
    made = kind_of(tmp_path / "run").run()
    assert (made.training.steps, made.training.minutes, made.optimizer.warmup_steps) == (6, 0.1, 3)
    said = capsys.readouterr().out
    assert "0.1 minutes are 6 steps of 1 s" in " ".join(said.split())
    assert command(["train", "--resume", out]) == 0
    for other in (["--steps", "5"], ["--epochs=2"]):
        assert command(["train", *OPTIONS, *other, "--out", out]) == 1
        assert "--minutes chooses the number of steps: give it without --" in capsys.readouterr().err


def test_the_runs_of_a_series_have_the_same_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_pace(monkeypatch, 1.5)
    arguments = ["train", *OPTIONS, "--runs", "2", "--warmup-steps", "0", "--out", str(tmp_path / "runs")]
    assert command(arguments) == 0
    set_pace(monkeypatch, 0.1)
    assert command(arguments) == 0
    series = read_series(tmp_path / "runs")
    assert {kind_of(tmp_path / "runs" / member.folder).run().training.steps for member in series.members} == {
        4
    }


def test_few_shot_accuracy_on_the_way_is_said_not_to_be_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_pace(monkeypatch, 1.0)
    for followed, expected in ((FewShotTracking(data="digits"), 1), (FewShotTracking(), 0)):
        hearing = Hearing()
        run = replace(SMALL, fewshot=followed)
        choose_length(run, tmp_path / "run", look_at(run), listener=hearing)
        assert sum("is not counted in these minutes" in note for note in hearing.notes) == expected


def test_what_takes_too_long_or_does_not_fit_into_memory_is_refused_before_it_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_pace(monkeypatch, 7.0)
    with pytest.raises(VitkitError, match=r"A single step takes 7 s here, longer than 0.1 minutes"):
        training.train_run(SMALL, tmp_path / "run")
    monkeypatch.setattr(plan, "available_memory", lambda: 1000)
    monkeypatch.setattr(plan, "measure_pace", lambda *_: pytest.fail("the model was built"))
    with pytest.raises(VitkitError, match="does not fit into memory"):
        training.train_run(SMALL, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_pace_is_measured_on_a_sample() -> None:
    data = find_task(SMALL.task).learning.open_data(SMALL.data, SMALL.splits, SMALL.preprocessing.decode)
    config = model_config_of(SMALL, len(data.class_names))
    pace = measure_pace(SMALL, data, config, find_device("cpu"), SILENT)
    assert 0 < pace.step < 60 and 0 < pace.validation < 60


def test_a_number_of_threads_that_cannot_be_is_refused_before_it_is_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_model(create_model("ViT-16x1x2/4", num_classes=3, image_size=8), tmp_path / "start")
    for number in (0, -1, 4097):
        with pytest.raises(VitkitError, match="threads is from 1 to 4,096, found"):
            finetune(str(tmp_path / "start"), "digits", tmp_path / "run", minutes=0.1, threads=number)
    for arguments in (["advise", "digits"], ["train", *OPTIONS]):
        assert command([*arguments, "--threads", "0"]) == 1
        assert "threads is from 1 to 4,096, found 0" in capsys.readouterr().err
