"""A failing disk or a kill at any filesystem call of a run: the same command again ends in the same bytes."""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.failing_calls import OPENING
from tests.helpers.command_runs import results
from tests.jobs.forked_runs import Case, Outcome, fork_server
from vitkit.training.checkpoint import survey

FAULTS = ("kill", "ENOSPC", "EIO", "EMFILE")
SECOND_SAVE = "step-00000020"

Runs = Callable[[Case], Outcome]
Calls = list[tuple[str, str]]


@pytest.fixture(scope="module")
def forked() -> Iterator[Runs]:
    with fork_server() as ask:
        yield ask


def train(forked: Runs, run: Path, number: int = -1, fault: str = "kill") -> Outcome:
    """Train a small run in a process in which a filesystem call on its folder fails."""
    model = ["--model", "ViT-16x1x2/2", "--image-size", "8", "--batch-size", "16", "--warmup-steps", "5"]
    model += ["--polyak", "0.99", "--dropout", "0.1", "--mixup", "0.2", "--threads", "1", "--log-every", "3"]
    often = ["--steps", "20", "--evaluate-every", "10", "--checkpoint-every", "10"]
    arguments = ["train", "--data", "digits", "--out", str(run), *model, *often]
    return forked(Case(arguments, moment="nowhere", failing=(str(run), number, fault)))


@pytest.fixture(scope="module")
def whole(forked: Runs, tmp_path_factory: pytest.TempPathFactory) -> tuple[Calls, dict[str, bytes]]:
    """The calls and the results of a run that nothing happened to."""
    run = tmp_path_factory.mktemp("whole") / "run"
    done = train(forked, run)
    assert done.code == 0, done.err
    calls = [json.loads(line) for line in Path(f"{run}.calls").read_text().splitlines()]
    return calls, results(run)


def faults_of(calls: Calls) -> list[tuple[int, str]]:
    """List the calls of the second checkpoint's save with every fault, then the others in a drawn order."""
    save = [number for number, (_, path) in enumerate(calls) if SECOND_SAVE in path]
    rest = [number for number in range(len(calls)) if number not in save]
    random.Random(0).shuffle(rest)
    spread = [number for start in range(7) for number in save[start::7]]  # few of them meet all of the save
    return [
        (number, fault)
        for number in (*spread, *rest)
        for fault in FAULTS
        if fault != "EMFILE" or calls[number][0] in OPENING
    ]


def newest(run: Path) -> int:
    """Return the step of the newest whole checkpoint, -1 if there is none."""
    checkpoint = survey(run).whole if run.is_dir() else None
    return -1 if checkpoint is None else int(checkpoint.name.removeprefix("step-"))


@pytest.mark.parametrize(
    "attempts",
    [slice(0, 14, 7), pytest.param(slice(700), marks=[pytest.mark.slow, pytest.mark.timeout(7200)])],
    ids=["some", "all"],
)
def test_nothing_that_was_committed_is_lost_and_the_run_ends_with_the_same_bytes(
    attempts: slice, forked: Runs, whole: tuple[Calls, dict[str, bytes]], tmp_path: Path
) -> None:
    calls, expected = whole
    run = tmp_path / "run"
    for number, fault in faults_of(calls)[attempts]:
        where = f"{fault} at call {number}, {' '.join(calls[number])}"
        first = train(forked, run, number, fault)
        assert first.code in (0, 1, 137) and "Traceback" not in first.err, f"{where}: {first.err}"
        assert (first.code == 137) == (fault == "kill"), where
        commits = [path for event, path in calls[:number] if event == "close" and path.endswith("/COMMIT")]
        steps = [int(Path(path).parent.name.removeprefix("step-")) for path in commits if "/step-" in path]
        assert newest(run) >= max(steps, default=-1), f"{where}: a committed step is lost"
        again = train(forked, run)
        assert again.code == 0, f"{where}, then resumed: {again.err}"
        assert results(run) == expected, where
        shutil.rmtree(run)
