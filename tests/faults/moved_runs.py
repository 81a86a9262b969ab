"""The folder of a run is moved, replaced or removed while it trains: no second half, and the same bytes."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.faults.commands import forked, judge
from tests.faults.entry import without_pictures
from tests.faults.harness import Kind, Outcome
from tests.faults.small_runs import differences, ended_with, image_folder, training

STEPS, EVERY = 120, 10
HOWS = ("moved", "replaced", "removed")


class MovedRuns(Kind):
    """Thirty runs; the folder goes at a random moment after its configuration was written."""

    name, count, limit = "moved_runs", 30, 240.0
    sample = (0, 1)
    forks_commands = True
    per_process = 5

    def prepare(self, folder: Path) -> None:
        images = image_folder(folder / "images")
        ended = forked(_arguments(folder / "run", images), folder, first=without_pictures)
        assert ended.code == 0, ended.err
        (folder / "expected.json").write_text(json.dumps(ended_with(folder / "run")))
        (folder / "seconds").write_text(str(ended.seconds))

    def attempt(self, number: int, draw: Random, shared: Path, folder: Path) -> Outcome:
        run, moved, how = folder / "run", folder / "moved", HOWS[number % len(HOWS)]
        moment = draw.uniform(0, float((shared / "seconds").read_text()))
        arguments = _arguments(run, shared / "images")
        ended = forked(arguments, folder, first=without_pictures, until=_moving(run, moved, how, moment))
        outcome = judge(ended)
        if outcome.verdict not in ("words", "right"):
            return Outcome(outcome.verdict, f"{how} after {moment:.2f} s: {outcome.detail}")
        left = sorted(str(path.relative_to(run)) for path in run.rglob("*"))
        if left:
            return Outcome("wrong", f"{how} after {moment:.2f} s: at the old place are {', '.join(left[:5])}")
        if how == "removed":
            return outcome
        again = forked(["train", "--resume", str(moved)], folder, first=without_pictures)
        other = differences(moved, json.loads((shared / "expected.json").read_text()))
        if again.code != 0 or other:
            detail = f"resumed, exit code {again.code}, other {', '.join(sorted(other))}"
            return Outcome("wrong", f"{how} after {moment:.2f} s: {detail}")
        return outcome


def _arguments(run: Path, images: Path) -> list[str]:
    options = ("--memory-gib", "0", "--workers", "0")
    return training(run, *options, data=str(images), steps=STEPS, every=EVERY)


def _moving(run: Path, moved: Path, how: str, moment: float) -> Callable[[int], None]:
    """Return what takes the folder away some seconds after the run has written its configuration."""

    def move(_process: int) -> None:
        end = time.monotonic() + 60
        while not (run / "config.json").exists() and time.monotonic() < end:
            time.sleep(0.001)
        time.sleep(moment)
        run.rename(moved)
        if how == "replaced":
            run.mkdir()
        if how == "removed":
            shutil.rmtree(moved)

    return move
