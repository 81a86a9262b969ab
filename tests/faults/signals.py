"""Signals to a training run: it commits a checkpoint, says how to go on, exits with 128 + their number."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

from tests.faults.commands import Ended, forked, judge
from tests.faults.entry import without_pictures
from tests.faults.harness import Kind, Outcome
from tests.faults.small_runs import differences, ended_with, image_folder, newest_step, training

SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGINT)
MOMENTS = ("training", "starting", "saving", "importing")
STEPS, EVERY = 500, 100
"""Long enough that the run is still going when the signal comes."""

CASES = tuple(itertools.product((False, True), MOMENTS, (0, 2), ("group", "process"), SIGNALS))
"""Once or twice, when, workers, to whom, which."""


class Signals(Kind):
    """Every signal to the process and its group, with and without workers, once and twice, at four moments.

    While Python and PyTorch are still being imported there is nothing to commit, and the signal's own default
    may end the process.
    """

    name, count, limit = "signals", len(CASES), 180.0
    sample = (1, 11)
    forks_commands = True
    per_process = 4

    def prepare(self, folder: Path) -> None:
        images = image_folder(folder / "images")
        ended = forked(_arguments(folder / "run", images, 0), folder, first=without_pictures, limit=250)
        assert ended.code == 0, ended.err
        (folder / "expected.json").write_text(json.dumps(ended_with(folder / "run")))

    def total(self, shared: Path) -> int:
        return len(CASES)

    def attempt(self, number: int, draw: Random, shared: Path, folder: Path) -> Outcome:
        twice, moment, workers, target, sent = CASES[number]
        run = folder / "run"
        arguments = _arguments(run, shared / "images", workers)
        what = f"{sent.name}{' twice' if twice else ''} to the {target}, {workers} workers, {moment}"
        ended = _signalled(arguments, folder, run, moment, draw, target, [sent] * (1 + twice))
        outcome = judge(ended, 128 + sent)
        if moment == "importing" and ended.code == -sent and not run.exists():
            return Outcome("words")
        if outcome.verdict not in ("words", "right"):
            return Outcome(outcome.verdict, f"{what}: {outcome.detail}")
        if ended.code != 128 + sent:
            return Outcome("wrong", f"{what}: exit code {ended.code}, expected {128 + sent}")
        if moment in ("training", "saving") and newest_step(run) < 0:
            return Outcome("lost", f"{what}: no checkpoint was committed")
        if number % 8 == 0:  # it goes on to the same end
            last = forked(arguments, folder, first=without_pictures, limit=120)
            other = differences(run, json.loads((shared / "expected.json").read_text()))
            if last.code != 0 or other:
                return Outcome(
                    "wrong", f"{what}: resumed, exit code {last.code}, other {', '.join(sorted(other))}"
                )
        return outcome


def _arguments(run: Path, images: Path, workers: int) -> list[str]:
    options = ("--memory-gib", "0", "--workers", str(workers))
    return training(run, *options, data=str(images), steps=STEPS, every=EVERY)


def _signalled(
    arguments: list[str], folder: Path, run: Path, moment: str, draw: Random, target: str, signals: list[int]
) -> Ended:
    """Start a run as a person does, and send it signals when the moment has come."""
    start = time.monotonic()
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        command = [sys.executable, "-m", "vitkit", *arguments]
        process = subprocess.Popen(command, stdout=out, stderr=err, start_new_session=True)
        reached: dict[str, Callable[[], bool]] = {
            "importing": lambda: time.monotonic() - start > draw_moment,
            "starting": lambda: (run / "config.json").exists(),
            "training": lambda: (
                (run / "metrics.jsonl").exists() and bool((run / "metrics.jsonl").stat().st_size)
            ),
            "saving": lambda: (run / "checkpoints").exists(),
        }
        draw_moment = draw.uniform(0.05, 1.0)
        while not reached[moment]() and process.poll() is None and time.monotonic() - start < 100:
            time.sleep(0.002)
        time.sleep(draw.uniform(0, 0.05))
        for number in signals:
            try:
                (os.killpg if target == "group" else os.kill)(process.pid, number)
            except ProcessLookupError:
                break
            time.sleep(draw.uniform(0, 0.1))
        try:
            code: int | None = process.wait(60)
        except subprocess.TimeoutExpired:
            code = None
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # its workers, too
        process.wait()
    said, errors = ((folder / name).read_text(errors="replace") for name in ("out", "err"))
    return Ended(code, said, errors, time.monotonic() - start)
