"""Damaged run folders: every file and every field, under every command that reads them."""

import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from PIL import Image

from tests.faults.commands import Ended, forked, judge, without_override
from tests.faults.entry import without_pictures
from tests.faults.filesystem import FailingCalls
from tests.faults.harness import Kind, Outcome
from tests.faults.mutate import REPLACEMENTS, json_text, leaves, replaced
from tests.faults.small_runs import differences, ended_with, newest_step, training

VERBS = ("train", "report", "evaluate", "predict")
STEPS = 20


def _swap(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "removed": lambda path: path.unlink(),
    "emptied": lambda path: path.write_bytes(b""),
    "cut in half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "no UTF-8": lambda path: path.write_bytes(b"\xff\xfe" + path.read_bytes()),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "one flipped bit": lambda path: path.write_bytes(_flipped(path.read_bytes())),
    "other lines": lambda path: path.write_text('[]\n3\n"x"\n{"step": {}}\n'),
    "null": lambda path: path.write_text("null"),
    "100,000 deep": lambda path: path.write_text("[" * 100_000),
    "doubled": lambda path: path.write_bytes(path.read_bytes() * 2),
    "a pipe": partial(_swap, make=os.mkfifo),
    "a folder": partial(_swap, make=Path.mkdir),
    "a link to itself": lambda path: _swap(path, lambda p: p.symlink_to(p)),
    "a link to /dev/zero": lambda path: _swap(path, lambda p: p.symlink_to("/dev/zero")),
    "not to be read": lambda path: path.chmod(0),
    "not to be written": lambda path: path.chmod(0o444),
}


def _flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :] if data else data


def damages(run: Path) -> list[tuple[str, str, Any]]:
    """(file, field or "", damage) of everything that can be damaged in a run folder."""
    cases: list[tuple[str, str, Any]] = []
    for path in sorted(path for path in run.rglob("*") if path.is_file()):
        name = str(path.relative_to(run))
        cases += [(name, "", damage) for damage in DAMAGES]
        lines = path.suffix == ".jsonl"
        if path.suffix == ".json" or lines:
            text = path.read_text()
            data = json.loads(text.splitlines()[-1] if lines else text)
            for field in leaves(data):
                cases += [(name, json.dumps(field), number) for number in range(len(REPLACEMENTS))]
    return cases


def apply(run: Path, name: str, field: str, damage: Any) -> str:
    """Damage one file; returns what was done in words."""
    path = run / name
    if not field:
        DAMAGES[damage](path)
        return f"{name} {damage}"
    *before, last = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    data = replaced(json.loads(last), tuple(json.loads(field)), REPLACEMENTS[damage])
    path.write_text("\n".join([*before, json_text(data)]) + "\n")
    shown = json.dumps(REPLACEMENTS[damage], default=lambda value: "deep or removed")
    return f"{name}, {'.'.join(map(str, json.loads(field)))} = {shown[:40]}"


class RunFolders(Kind):
    """500 damages under each of four commands: words or the right result, and no whole checkpoint is lost."""

    name, count, limit = "run_folders", 2_000, 120.0
    sample = tuple(range(5))
    forks_commands = True
    per_process = 100

    def prepare(self, folder: Path) -> None:
        finished, half = folder / "finished", folder / "half"
        trace = folder / "trace"
        assert forked(training(finished, steps=STEPS), folder).code == 0
        arguments = training(half, steps=STEPS)
        calls = FailingCalls(half, None, "kill", trace)
        assert forked(arguments, folder, first=calls.install).code == 0
        made = [json.loads(line) for line in trace.read_text().splitlines()]
        # COMMIT is written under another name, and renamed: that call is the last of its own.
        last = max(i for i, (_, name) in enumerate(made) if "10/.COMMIT." in name)
        shutil.rmtree(half)
        assert forked(arguments, folder, first=FailingCalls(half, last + 5, "kill").install).code == 137
        assert newest_step(half) == 10 and newest_step(finished) == STEPS
        (folder / "expected.json").write_text(json.dumps(ended_with(finished)))
        for name, run in (("finished", finished), ("half", half)):
            (folder / f"{name}.json").write_text(json.dumps(damages(run)))
        Image.fromarray(np.full((8, 8, 3), 90, np.uint8)).save(folder / "x.png")
        for verb in ("evaluate", "predict"):
            (folder / verb).mkdir()
            ended = forked(_command(verb, finished, folder), folder / verb)
            assert ended.code == 0, ended.err

    def attempt(self, number: int, draw: Random, shared: Path, folder: Path) -> Outcome:
        verb = VERBS[number % len(VERBS)]
        base = "half" if verb == "train" else "finished"
        plan = json.loads((shared / f"{base}.json").read_text())
        whole_files, fields = [d for d in plan if not d[1]], [d for d in plan if d[1]]
        Random(0).shuffle(whole_files)
        Random(0).shuffle(fields)
        turn = number // len(VERBS)
        damage = (whole_files, fields)[turn % 2][turn // 2 % len((whole_files, fields)[turn % 2])]
        run = folder / "run"
        shutil.copytree(shared / base, run)
        done = f"{verb}: {apply(run, *damage)}"
        before = newest_step(run)
        ended = forked(_command(verb, run, shared), folder, first=prepared, limit=60)
        outcome = judge(ended)
        if newest_step(run) < before:
            outcome = Outcome("lost", f"step {before} was whole before, the newest now is {newest_step(run)}")
        elif outcome.verdict == "right":
            outcome = _right(verb, ended, run, shared, damage)
        return Outcome(outcome.verdict, f"{done}: {outcome.detail}")


def prepared() -> None:
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


def _right(verb: str, ended: Ended, run: Path, shared: Path, damage: tuple[str, str, Any]) -> Outcome:
    """Whether a command that says it succeeded has the right result."""
    if verb == "train":
        other = set(differences(run, json.loads((shared / "expected.json").read_text())))
        # A log that is damaged or gone is told, and another begun: nothing else may differ then.
        if "damaged-metrics.jsonl" in ended.err or "metrics.jsonl is gone" in ended.err:
            other = {name for name in other if name != "metrics.jsonl" and not name.endswith("/state.json")}
        return (
            Outcome("wrong", f"exit code 0, but another {', '.join(sorted(other))}")
            if other
            else Outcome("right")
        )
    if verb == "report":
        page = run / "report.html"
        return Outcome("right") if page.is_file() and page.stat().st_size else Outcome("wrong", "no report")
    try:
        for line in ended.out.splitlines() if verb == "predict" else [ended.out]:
            json.loads(line, parse_constant=lambda name: _refuse(name))
    except ValueError as error:
        return Outcome("wrong", f"what --json prints is no JSON: {error}")
    # Who edits model.json or the data's description asks for something else; who damages weights does not.
    expected = (shared / verb / "out").read_text().replace(str(shared / "finished"), str(run))
    if damage[0].endswith(".safetensors") and ended.out != expected:
        return Outcome("wrong", "exit code 0, but other numbers")
    return Outcome("right")


def _refuse(name: str) -> None:
    raise ValueError(name)
