"""Signals that ask a run to stop: whenever they come, to whomever, nothing is lost. Real processes."""

import itertools
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.helpers.command_runs import results
from tests.helpers.photos import noise_images
from tests.jobs.forked_runs import Case, Outcome, fork_server
from vitkit.training.checkpoint import survey

SMALL = [
    *("--model", "ViT-16x1x2/4", "--image-size", "8", "8", "--batch-size", "8", "--steps", "12"),
    *("--warmup-steps", "2", "--evaluate-every", "6", "--checkpoint-every", "12", "--log-every", "2"),
    *("--threads", "1", "--memory-gib", "0", "--no-flip", "--crop-area", "0.5", "1.0", "--dropout", "0.1"),
]
TERM, HUP, USR1, INT = signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGINT
MATRIX = list(itertools.product([TERM, HUP, USR1, INT], [False, True], [0, 2], [False, True]))
SAMPLE = [(TERM, True, 2, True), (USR1, False, 0, True), (INT, True, 2, True)]

Runs = Callable[[Case], Outcome]


@pytest.fixture(scope="module")
def forked() -> Iterator[Runs]:
    with fork_server() as ask:
        yield ask


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return noise_images(tmp_path_factory.mktemp("signals") / "images", 30)


@pytest.fixture(scope="module")
def whole(forked: Runs, images: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The results of a run that nothing happened to."""
    return finish(forked, images, tmp_path_factory.mktemp("whole") / "run")


def arguments(images: Path, out: Path, workers: int = 0) -> list[str]:
    return ["train", "--data", str(images), "--out", str(out), "--workers", str(workers), *SMALL]


def assert_stopped(done: Outcome, number: int) -> None:
    """It ended by its own will and left nothing running, and no word that a user need not read."""
    assert done.code == 128 + number, done.err
    assert "Traceback" not in done.err and "Exception ignored" not in done.err, done.err
    messages = [line for line in done.err.splitlines() if not line.startswith("training ")]  # its progress
    assert len(messages) == 1 and messages[0].startswith("vitkit: "), done.err
    assert not done.survivors and not done.shared_memory


def finish(forked: Runs, images: Path, out: Path) -> dict[str, bytes]:
    """Train, or go on, to the end; returns the results."""
    done = forked(Case(arguments(images, out), moment="nowhere"))
    assert done.code == 0, done.err
    return results(out)


@pytest.mark.parametrize(
    "combination",
    [*SAMPLE, *(pytest.param(other, marks=pytest.mark.slow) for other in MATRIX if other not in SAMPLE)],
    ids=str,
)
def test_stopped_in_a_step_it_goes_on_to_the_same_bits(
    forked: Runs,
    images: Path,
    tmp_path: Path,
    whole: dict[str, bytes],
    combination: tuple[signal.Signals, bool, int, bool],
) -> None:
    (number, group, workers, twice), out = combination, tmp_path / "run"
    command = arguments(images, out, workers)
    done = forked(Case(command, (number,) * (1 + twice), group=group, again=twice))
    assert_stopped(done, number)
    assert done.workers == workers
    assert f"at step 2 of 12, which is committed (stopped by {number.name})" in done.err
    assert f"vitkit train --resume {out} --threads 1" in done.err
    checkpoint = survey(out).whole
    assert checkpoint is not None and checkpoint.name == "step-00000002"
    assert finish(forked, images, out) == whole


# Where a run is at, and the step that a checkpoint holds after the signal.
SAVED_STEP = {
    "listing": None,
    "building": None,
    "reading": None,
    "validation": 6,
    "save": 7,  # the step after it
    "evaluation": 12,
    "report": 12,
}


# One moment before the first step, one between steps, one after the last; the others take the same ways.
QUICK = ("reading", "save", "evaluation")


@pytest.mark.parametrize(
    "moment",
    [moment if moment in QUICK else pytest.param(moment, marks=pytest.mark.slow) for moment in SAVED_STEP],
)
def test_stopped_anywhere_nothing_is_lost(
    forked: Runs, images: Path, tmp_path: Path, whole: dict[str, bytes], moment: str
) -> None:
    """To the group, twice in a row, with workers wherever there are some."""
    run = tmp_path / "run"
    done = forked(Case(arguments(images, run, 2), (TERM, TERM), moment, group=True))
    assert_stopped(done, TERM)
    assert "stopped by SIGTERM" in done.err
    assert ("vitkit train --resume" in done.err) or ("run the same command again" in done.err)
    assert (done.workers > 0) == (moment in ("validation", "save", "evaluation"))
    checkpoint = survey(run).whole
    step = SAVED_STEP[moment]
    assert (checkpoint and checkpoint.name) == (None if step is None else f"step-{step:08d}")
    assert not (run / "report.html").exists()
    if step is not None:  # else it is a new run
        assert finish(forked, images, run) == whole
    assert not list(run.rglob("*.tmp"))


def test_a_second_ctrl_c_does_not_wait_for_the_end_of_the_step(
    forked: Runs, images: Path, tmp_path: Path, whole: dict[str, bytes]
) -> None:
    command = arguments(images, tmp_path / "run", 2)
    for moment, said in (
        ("step", "before the first checkpoint was committed"),
        ("evaluation", "after the last step, which is committed"),
    ):
        done = forked(Case(command, (INT, INT), moment, group=True, same_seconds=0.0))
        assert_stopped(done, INT)
        assert said in done.err
        assert (survey(tmp_path / "run").whole is None) == (moment == "step")
    assert finish(forked, images, tmp_path / "run") == whole


def test_what_was_ignored_stays_ignored(forked: Runs, images: Path, tmp_path: Path) -> None:
    """`nohup` ignores SIGHUP, `trap '' TERM` ignores SIGTERM."""
    command = arguments(images, tmp_path / "run", 2)
    assert_stopped(forked(Case(command, (HUP, TERM, USR1), group=True, ignored=(HUP, TERM))), USR1)


def test_a_lost_terminal_keeps_no_checkpoint_from_being_written(
    forked: Runs, images: Path, tmp_path: Path, whole: dict[str, bytes]
) -> None:
    """Every line printed after that is refused by the system, and SIGHUP comes by itself."""
    command = arguments(images, tmp_path / "run", 2)
    done = forked(Case(command, lost_terminal=True))
    assert done.code == 128 + HUP
    assert not done.survivors and not done.shared_memory
    checkpoint = survey(tmp_path / "run").whole
    assert checkpoint is not None and checkpoint.name <= "step-00000003"
    assert finish(forked, images, tmp_path / "run") == whole


def test_a_worker_that_does_not_answer_or_is_killed_is_named(
    forked: Runs, images: Path, tmp_path: Path
) -> None:
    command = [*arguments(images, tmp_path / "run", 2), "--worker-timeout", "1"]
    command[command.index("--steps") + 1] = "60"  # more batches than workers load ahead
    late = r"Batch \d+ did not come within 1 s: the data loading process \d+ hangs"
    for number, said in (
        (signal.SIGSTOP, f"{late}.*run the same command again.*--worker-timeout"),
        (signal.SIGKILL, "A data loading process died.*by SIGKILL"),
    ):
        done = forked(Case(command, worker_signal=number))
        assert done.code == 1 and re.search(said, done.err, re.DOTALL), done.err
        assert "Traceback" not in done.err and not done.survivors and not done.shared_memory


def test_other_commands_end_at_once(forked: Runs, images: Path, tmp_path: Path) -> None:
    """And workers end with a parent that is killed."""
    run = tmp_path / "run"
    finish(forked, images, run)
    for command, moment in (
        (["data", "check", str(images)], "vitkit.jobs.data_show.check_data"),
        (["evaluate", str(run), "--workers", "2"], "evaluation"),
    ):
        done = forked(Case(command, (HUP, HUP), moment, group=True))
        assert_stopped(done, HUP)
        assert "stopped by SIGHUP" in done.err and not done.out
    done = forked(Case(arguments(images, tmp_path / "killed", 2), (signal.SIGKILL,)))
    assert done.code == -signal.SIGKILL and done.workers == 2
    assert not done.survivors and not done.shared_memory
