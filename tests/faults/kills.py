"""kill -9 of a run or a study at random moments, then the same command again: the same bytes and table."""

import contextlib
import hashlib
import json
import os
import shutil
import signal
import time
from functools import partial
from pathlib import Path
from random import Random

from tests.faults.commands import Ended, forked, judge
from tests.faults.entry import STUDIES, complete_study, without_pictures
from tests.faults.harness import Kind, Outcome
from tests.faults.small_runs import differences, ended_with, image_folder, newest_step, training
from tests.vtab_layout import small_task

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
            if ended.code not in (0, -signal.SIGKILL):
                return _failed(ended, f"kill {kill}")
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
            return _failed(ended, "resumed")
        other = differences(run, json.loads((shared / "expected.json").read_text()))
        return Outcome("wrong", f"another {', '.join(sorted(other))}") if other else Outcome("right")


def _failed(ended: Ended, when: str) -> Outcome:
    """Judge a command that had nothing to refuse."""
    outcome = judge(ended)
    return Outcome("wrong" if outcome.verdict == "words" else outcome.verdict, f"{when}: {outcome.detail}")


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


class StudyKills(Kind):
    """Each kind of study four times, killed five times each."""

    name, count, limit = "study_kills", 4 * len(STUDIES), 600.0
    sample = (0,)
    forks_commands = True
    per_process = 7

    def prepare(self, folder: Path) -> None:
        for name, seed in (("first", "0"), ("second", "1")):
            options = ("--model", "ViT-16x1x2/4", "--seed", seed)
            assert forked(training(folder / name, *options), folder, first=without_pictures).code == 0
        for number, task in enumerate(("clevr_count", "pets")):
            small_task(folder / "tasks" / task, classes=3, seed=number)
        for name in STUDIES:
            ended = forked([], folder, first=partial(complete_study, name, folder, folder / name))
            assert ended.code == 0, (name, ended.err)
            (folder / f"{name}.json").write_text(json.dumps(_hashes(folder / name, ended.out)))
            (folder / f"{name}.seconds").write_text(str(ended.seconds))

    def attempt(self, number: int, draw: Random, shared: Path, folder: Path) -> Outcome:
        name = STUDIES[number % len(STUDIES)]
        out = folder / name
        seconds = float((shared / f"{name}.seconds").read_text())
        expected = json.loads((shared / f"{name}.json").read_text())
        kill = 0
        while True:
            moment = draw.uniform(0, seconds / 2)

            def strike(process: int, moment: float = moment) -> None:
                _strike(process, out, moment, aimed=False)

            last = kill == KILLS
            ended = forked(
                [],
                folder,
                limit=200,
                first=partial(complete_study, name, shared, out),
                until=None if last else strike,
            )
            if ended.code not in (0, -signal.SIGKILL) or (last and ended.code):
                return Outcome("wrong", f"{name}, kill {kill}: {judge(ended).detail}")
            if ended.code:
                kill += 1
                continue
            ends = _hashes(out, ended.out)
            other = sorted(key for key in ends.keys() | expected if ends.get(key) != expected.get(key))
            if other:
                return Outcome("wrong", f"{name}, kill {kill}: another {', '.join(other)}")
            if last:
                return Outcome("right")
            shutil.rmtree(out)  # it was quicker than the signal


def _hashes(out: Path, said: str) -> dict[str, str]:
    """Hash the files that a study ends with, and add its page and its result with the folder masked."""
    files = [path for path in sorted(out.rglob("*")) if path.name in ("model.safetensors", "metrics.jsonl")]
    files += sorted(path for path in out.rglob("evaluation/*") if path.is_file())
    ends = {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    page = out / "report.html"
    ends["page"] = page.read_text().replace(str(out), "OUT") if page.exists() else ""
    return ends | {"result": said.replace(str(out), "OUT")}
