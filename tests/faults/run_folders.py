"""Damaged run folders: every file and every field, under every command that reads them."""

import json
import shutil
from pathlib import Path
from random import Random

import numpy as np
from PIL import Image

from tests.faults.commands import Ended, forked, judge, without_override
from tests.faults.entry import without_pictures
from tests.faults.filesystem import FailingCalls, read_trace
from tests.faults.harness import Kind, Outcome
from tests.faults.mutate import damage, edit
from tests.faults.small_runs import differences, ended_with, newest_step, training

VERBS = ("train", "report", "evaluate", "predict")


class RunFolders(Kind):
    """500 damages under each of four commands: words or the right result, and no whole checkpoint is lost."""

    name, count, limit = "run_folders", 2_000, 120.0
    sample = tuple(range(5))
    forks_commands = True
    per_process = 100

    def prepare(self, folder: Path) -> None:
        finished, half, trace = folder / "finished", folder / "half", folder / "trace"
        assert forked(training(finished), folder).code == 0
        calls = FailingCalls(half, None, "kill", trace)
        assert forked(training(half), folder, first=calls.install).code == 0
        # COMMIT is written under another name, and renamed: that call is the last of its own.
        last = max(i for i, (_, name) in enumerate(read_trace(trace)) if "10/.COMMIT." in name)
        shutil.rmtree(half)
        assert forked(training(half), folder, first=FailingCalls(half, last + 5, "kill").install).code == 137
        assert newest_step(half) == 10 and newest_step(finished) == 20
        (folder / "expected.json").write_text(json.dumps(ended_with(finished)))
        Image.fromarray(np.full((8, 8, 3), 90, np.uint8)).save(folder / "x.png")
        for verb in ("evaluate", "predict"):
            (folder / verb).mkdir()
            ended = forked(_command(verb, finished, folder), folder / verb)
            assert ended.code == 0, ended.err

    def attempt(self, number: int, draw: Random, shared: Path, folder: Path) -> Outcome:
        verb, turn = VERBS[number % len(VERBS)], number // len(VERBS)
        run = folder / "run"
        shutil.copytree(shared / ("half" if verb == "train" else "finished"), run)
        files = sorted(path for path in run.rglob("*") if path.is_file())
        described = [path for path in files if path.suffix in (".json", ".jsonl")]
        path = draw.choice((described, files)[turn % 2])
        done = (edit, damage)[turn % 2](path, draw)
        whole_step = newest_step(run)
        ended = forked(_command(verb, run, shared), folder, first=_prepared, limit=60)
        outcome = judge(ended)
        if newest_step(run) < whole_step:
            outcome = Outcome(
                "lost", f"step {whole_step} was whole before, the newest now is {newest_step(run)}"
            )
        elif outcome.verdict == "right":
            outcome = _right(verb, ended, run, shared, path)
        return Outcome(outcome.verdict, f"{verb}, {done}: {outcome.detail}")


def _prepared() -> None:
    """Make mode 000 mean something to root, and training's end quick; `vitkit report` draws in full."""
    without_override()
    without_pictures()


def _command(verb: str, run: Path, shared: Path) -> list[str]:
    return {
        "train": ["train", "--resume", str(run), "--threads", "1"],
        "report": ["report", str(run)],
        "evaluate": ["evaluate", str(run), "--json"],
        "predict": ["predict", str(run), str(shared / "x.png"), "--json"],
    }[verb]


def _right(verb: str, ended: Ended, run: Path, shared: Path, damaged: Path) -> Outcome:
    """Whether a command that says it succeeded has the right result."""
    if verb == "train":
        other = set(differences(run, json.loads((shared / "expected.json").read_text())))
        # A log that is damaged or gone is told, and another begun: nothing else may differ then.
        if "damaged-metrics.jsonl" in ended.err or "metrics.jsonl is gone" in ended.err:
            other = {name for name in other if name != "metrics.jsonl" and not name.endswith("/state.json")}
        return Outcome("wrong", f"another {', '.join(sorted(other))}") if other else Outcome("right")
    if verb == "report":
        page = run / "report.html"
        return Outcome("right") if page.is_file() and page.stat().st_size else Outcome("wrong", "no report")
    try:
        for line in ended.out.splitlines() if verb == "predict" else [ended.out]:
            json.loads(line, parse_constant=int)  # which refuses NaN
    except ValueError as error:
        return Outcome("wrong", f"what --json prints is no JSON: {error}")
    # Who edits model.json or the data's description asks for something else; who damages weights does not.
    expected = (shared / verb / "out").read_text().replace(str(shared / "finished"), str(run))
    if damaged.suffix == ".safetensors" and ended.out != expected:
        return Outcome("wrong", "exit code 0, but other numbers")
    return Outcome("right")
