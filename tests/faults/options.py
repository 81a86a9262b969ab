"""Every option of every command with odd values, paths of every kind, and odd terminals."""

import contextlib
import json
import os
import re
import signal
import time
from pathlib import Path
from random import Random

from tests.faults.commands import forked, judge, whole
from tests.faults.entry import VERBS
from tests.faults.harness import Kind, Outcome, limit_memory
from tests.faults.small_runs import image_folder, training

VALUES = (
    "nan", "inf", "-inf", "1e308", "-1", "0", "1", "1" + "0" * 30, "0.5", "", " ",
    "\x01", "x" * 100_000, "٣", "²", "½",
    "none", "None", "true", "../..", "/", "/dev/null", "[]", "--", "-", "%s", "é\u202e", "1,2", "0x10",
)  # fmt: skip

PATHS = (
    "missing",
    "missing/deeper",
    "folder",
    "empty",
    "pipe",
    "loop",
    "tty",
    "full",
    "zero",
    "not-utf8-\udcff",
    "run",
    "x.png",
)
"""Names below the shared folder."""

TERMINALS: dict[str, tuple[str, dict[str, str]]] = {
    "stdout closed": ('"$@" >&-', {}),
    "stdin closed": ('"$@" <&-', {}),
    "stderr closed": ('"$@" 2>&-', {}),
    "all closed": ('"$@" <&- >&- 2>&-', {}),
    "a full disk": ('"$@" >/dev/full', {}),
    "a full disk for errors": ('"$@" 2>/dev/full', {}),
    "a reader that has gone": ('set -o pipefail; "$@" | true', {}),
    "a reader of one line": ('set -o pipefail; "$@" | head -n 1', {}),
    "ASCII": ('"$@"', {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}),
    "latin-1": ('"$@"', {"PYTHONIOENCODING": "latin-1"}),
    "no width": ('"$@"', {"COLUMNS": "0", "LINES": "x"}),
    "no home": ('"$@"', {"HOME": "/nonexistent", "XDG_CACHE_HOME": "/dev/null"}),
    "several processes": ('"$@"', {"RANK": "0", "WORLD_SIZE": "y"}),
}
"""How a shell starts a command, and its environment."""


class Options(Kind):
    """Each case is one option with one value, one argument with one path, or one command in one terminal."""

    name, count, limit = "options", 3_000, 90.0
    sample = (*range(1, 6), 20, 40)
    forks_commands = True
    per_process = 100

    def prepare(self, folder: Path) -> None:
        images = image_folder(folder / "folder", 24)
        (images / "light" / "0.png").rename(folder / "x.png")
        (folder / "empty").touch()
        os.mkfifo(folder / "pipe")
        for name, target in (
            ("loop", "loop"),
            ("tty", "/dev/tty"),
            ("full", "/dev/full"),
            ("zero", "/dev/zero"),
        ):
            (folder / name).symlink_to(target)
        ended = forked(training(folder / "run", data=str(images), steps=2, every=2), folder)
        assert ended.code == 0, ended.err
        names = {}
        for verb in VERBS:
            ended = forked([verb, *(["check"] if verb == "data" else []), "--help-all"], folder)
            assert ended.code == 0, ended.err
            names[verb] = sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z0-9.-]+", ended.out)) - {"--help-all"})
        (folder / "options.json").write_text(json.dumps(names))

    def attempt(self, number: int, draw: Random, shared: Path, folder: Path) -> Outcome:
        if number % 10 == 0:
            return self._in_terminal(number // 10, shared, folder)
        options: dict[str, list[str]] = json.loads((shared / "options.json").read_text())
        # Training has most of the options, and every second case.
        verb = "train" if number % 2 else draw.choice(VERBS)
        if number % 10 in (3, 6) and verb not in ("models", "recipes"):
            arguments = _usual(verb, shared, folder, str(shared / draw.choice(PATHS)))
        else:
            arguments = _usual(verb, shared, folder, None)
            if options[verb]:
                value = draw.choice(VALUES)
                arguments += [draw.choice(options[verb]), *([value] * draw.choice((1, 1, 1, 2, 3)))]
        shown = " ".join(argument[:40] for argument in arguments)
        ended = forked(arguments, folder, first=limit_memory, until=_stop_in_time, limit=40)
        # A run of 10^30 steps is a right one, and a benchmark of a minute too: it is stopped after a while,
        # and must end as stopping ends.
        outcome = judge(ended, *((143,) if _began(folder) or verb == "bench" else ()))
        return Outcome(outcome.verdict, f"{outcome.detail} of vitkit {shown}")

    def _in_terminal(self, number: int, shared: Path, folder: Path) -> Outcome:
        name = list(TERMINALS)[number % len(TERMINALS)]
        commands = (
            ["--help"],
            ["--version"],
            ["recipes"],
            ["models"],
            *(_usual(v, shared, folder, None) for v in VERBS),
        )
        arguments = commands[number // len(TERMINALS) % len(commands)]
        shell, environment = TERMINALS[name]
        ended = whole(arguments, folder, limit=80, environment=environment, shell=shell)
        closed = "full" in name or "closed" in name or "reader" in name
        outcome = judge(ended, 120, 141) if closed else judge(ended)
        if closed and outcome.verdict == "wrong":  # nobody could have read the words
            outcome = Outcome("words")
        return Outcome(outcome.verdict, f"{name}: vitkit {' '.join(arguments)[:200]}: {outcome.detail}")


def _usual(verb: str, shared: Path, folder: Path, path: str | None) -> list[str]:
    """A quick command of each kind that works, or has `path` where a path belongs."""
    run, images = str(shared / "run"), str(shared / "folder")
    match verb:
        case "train":
            return training(folder / "out-run", data=path or images, steps=2, every=2)
        case "evaluate":
            return ["evaluate", run, "--data", path or images]
        case "predict":
            return ["predict", run, path or str(shared / "x.png")]
        case "fewshot":
            return ["fewshot", run, "--data", path or images, "--no-cache", "--out", str(folder / "fewshot")]
        case "vtab":
            return ["vtab", run, "--root", path or images, "--out", str(folder / "vtab")]
        case "data":
            return ["data", "check", path or images]
        case "convert":
            return ["convert", path or run, str(folder / "converted.npz")]
        case "export":
            return ["export", path or run, str(folder / "exported")]
        case "inspect":
            return ["inspect", path or run, "--out", str(folder / "pictures")]
        case "bench":
            return ["bench", path or run, "--minutes", "0.01", "--threads", "1"]
        case "report" | "card" | "cost":
            return [verb, path or run]
    return [verb]


def _began(folder: Path) -> bool:
    log = folder / "out-run" / "metrics.jsonl"
    return log.exists() or (folder / "out-run" / "config.json").exists()


def _stop_in_time(process: int) -> None:
    """Ask a command to stop that has not ended after a while."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return
        time.sleep(0.01)
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGTERM)
