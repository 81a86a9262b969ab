"""kill -9 of a training run at random moments, then the same command again: the same bytes."""

import contextlib
import json
import os
import shutil
import signal
import time
from pathlib import Path
from random import Random

from tests.faults.commands import forked, judge
from tests.faults.entry import without_pictures
from tests.faults.harness import Kind, Outcome
from tests.faults.small_runs import differences, ended_with, image_folder, newest_step, training

STEPS, EVERY = 120, 10
KILLS = 5
"""Kills of one run before it is allowed to end."""


class Kills(Kind):
    """Forty runs, killed five times each; those of odd number read their images by two workers."""

    name, count, limit = "kills", 40, 300.0
    sample = (1,)
    forks_commands = True
    per_process = 5

    def prepare(self, folder: Path) -> None:
        images = image_folder(folder / "images")
        ended = forked(_arguments(folder / "run", images, 0), folder, first=without_pictures)
        assert ended.code == 0, ended.err
        (folder / "expected.json").write_text(json.dumps(ended_with(folder / "run")))
        (folder / "seconds").write_text(str(ended.seconds))

    def attempt(self, number: int, draw: Random, shared: Path, folder: Path) -> Outcome:
        run, workers = folder / "run", 2 * (number % 2)
        arguments = _arguments(run, shared / "images", workers)
        whole_run = float((shared / "seconds").read_text()) + 2 * workers
        kill = 0
        while kill < KILLS:
            before = newest_step(run)
            aimed = draw.random() < 0.5
            moment = draw.uniform(0, whole_run / 2)

            def strike(process: int, moment: float = moment, aimed: bool = aimed) -> None:
                _strike(process, run / "checkpoints", moment, aimed)

            ended = forked(arguments, folder, first=without_pictures, until=strike)
            outcome = judge(ended)
            if ended.code not in (0, -signal.SIGKILL):
                return Outcome(
                    outcome.verdict if outcome.verdict != "words" else "wrong",
                    f"kill {kill}: {outcome.detail}",
                )
            if newest_step(run) < before:
                return Outcome("lost", f"kill {kill}: step {before} was committed, now {newest_step(run)}")
            if ended.code == 0:  # it was quicker than the signal: the next kills are those of a new run
                other = differences(run, json.loads((shared / "expected.json").read_text()))
                if other:
                    return Outcome("wrong", f"before kill {kill}: another {', '.join(sorted(other))}")
                shutil.rmtree(run)
            else:
                kill += 1
        ended = forked(arguments, folder, first=without_pictures if number % 8 else None)
        if ended.code != 0:
            outcome = judge(ended)
            return Outcome(
                outcome.verdict if outcome.verdict != "words" else "wrong", f"resumed: {outcome.detail}"
            )
        other = differences(run, json.loads((shared / "expected.json").read_text()))
        return Outcome("wrong", f"another {', '.join(sorted(other))}") if other else Outcome("right")


def _arguments(run: Path, images: Path, workers: int) -> list[str]:
    options = ("--memory-gib", "0", "--workers", str(workers))
    return training(run, *options, data=str(images), steps=STEPS, every=EVERY)


def _strike(process: int, checkpoints: Path, moment: float, aimed: bool) -> None:
    """Kill a process group at a moment; `aimed`: not before a save is under way, by its hidden folder."""
    end = time.monotonic() + moment
    while time.monotonic() < end + (30 if aimed else 0) and not _ended(process):
        if aimed and time.monotonic() >= end and _saving(checkpoints):
            break
        time.sleep(0.001)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)


def _ended(process: int) -> bool:
    """Whether a child is a zombie: its end is left to be waited for."""
    return os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _saving(checkpoints: Path) -> bool:
    try:
        return any(path.name.startswith(".") for path in checkpoints.iterdir())
    except FileNotFoundError:
        return False
