"""kill -9 at any moment: the finished run is the same bits. Real processes, real signals."""

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.command_runs import children, command, finish, results
from tests.helpers.guard import background_saves
from vitkit.cli.main import run

SECONDS = 600.0
"""After which processes are given up; a machine under load is slow."""


def kill_once(
    out: Path, draw: random.Random, aimed: bool, options: tuple[str, ...], whom: str = "group"
) -> bool:
    """Start or continue a run and kill it with its children; returns whether it finished first.

    Aimed: the moment is when a save is under way, seen by its hidden folder. Otherwise any moment, from the
    start of the process on. Where torchrun starts the processes, `whom` says which are killed: "one" of them,
    "torchrun" alone, or "all".
    """
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    process = subprocess.Popen(command(out, *options), start_new_session=True, **streams)
    assert process.stdout is not None
    try:
        if aimed or draw.random() < 0.8:
            for line in process.stdout:  # the first screen's last line: training begins
                if line.startswith("time"):
                    break
        deadline = time.monotonic() + draw.uniform(0.0, 1.0)
        while time.monotonic() < deadline or aimed:
            if process.poll() is not None:
                break
            if aimed and any((out / "checkpoints").glob(".*")):
                time.sleep(draw.uniform(0, 0.01))
                break
        finished = process.poll() is not None
        if finished:
            assert process.returncode == 0, "it failed by itself"
        elif whom == "group":
            os.killpg(process.pid, signal.SIGKILL)
        else:
            kill_processes(process, whom, draw)
    finally:
        process.wait()
        process.stdout.close()
    return finished


def kill_processes(torchrun: "subprocess.Popen[str]", whom: str, draw: random.Random) -> None:
    """Kill some of the processes that a command has started by torchrun, and wait until all have ended."""
    started = children(torchrun.pid)
    victims = [torchrun.pid, *started] if whom == "all" else [torchrun.pid]
    if whom == "one" and started:
        victims = [draw.choice(started)]
    for victim in victims:
        with contextlib.suppress(ProcessLookupError):  # it ended by itself, as the others do
            os.killpg(victim, signal.SIGKILL)  # with the processes that load its images
    assert torchrun.wait(SECONDS) != 0
    end = time.monotonic() + SECONDS
    while any(Path(f"/proc/{number}").exists() for number in started):
        assert time.monotonic() < end
        time.sleep(0.05)


def check(tmp_path: Path, kills: int, seed: int, *options: str, whom: Sequence[str] = ("group",)) -> None:
    finish(tmp_path / "whole", *options)
    expected = results(tmp_path / "whole")
    draw, chain = random.Random(seed), 0
    for number in range(kills):
        victim = whom[number // 2 % len(whom)]
        if kill_once(tmp_path / f"run{chain}", draw, number % 2 == 0, options, victim):
            chain += 1
    for i in range(chain + 1):
        finish(tmp_path / f"run{i}", *options)
        contents = results(tmp_path / f"run{i}")
        assert contents.keys() == expected.keys()
        for name, content in contents.items():
            assert content == expected[name], f"{name} of run {i} differs after kills with seed {seed}"


DIGITS = ("--data", "digits")
THREE = (*DIGITS, "--processes", "3")
"""The sum of two numbers is the same in either order, which would hide a fault; that of three is not."""


@pytest.mark.usefixtures("without_report")
def test_a_run_that_was_killed_in_a_save_ends_with_the_bits_of_one_that_was_not(tmp_path: Path) -> None:
    """A hundred kills are among the slow tests; tests/cli/test_processes.py kills one of two processes."""
    kill_once(tmp_path / "killed", random.Random(1), True, DIGITS)
    for name in ("killed", "whole"):
        assert run(command(tmp_path / name, *DIGITS)[3:]) == 0
    assert results(tmp_path / "killed") == results(tmp_path / "whole")


ALL = ("one", "all", "torchrun")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("kills", "options", "whom", "background"),
    [
        (100, DIGITS, ("group",), False),
        (20, DIGITS, ("group",), True),
        (50, THREE, ALL, True),
        (10, (*THREE, "--sharding", "fsdp"), ALL, False),  # each has a part of the weights
        # bfloat16 brings explicit attention with it; the others have the class token's shortcut.
        (2, (*DIGITS, "--precision", "bfloat16"), ("group",), False),
        (2, (*DIGITS, "--exact"), ("group",), False),
    ],
    ids=lambda value: "three processes" if "--processes" in str(value) else None,
)
def test_many_kills_however_a_run_saves_and_computes(
    kills: int,
    options: tuple[str, ...],
    whom: tuple[str, ...],
    background: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if background:
        monkeypatch.setenv(background_saves.VARIABLE, "1")
    check(tmp_path, kills, 3, *options, whom=whom)


@pytest.mark.slow
def test_kills_while_fine_tuning_with_frozen_layers(tmp_path: Path) -> None:
    """Before the start is read, and after."""
    start = tmp_path / "start"
    finish(start, *DIGITS)
    careful = ("--freeze-layers", "1", "--layer-decay", "0.8", "--select", "last")
    check(tmp_path / "tuned", 2, 4, *DIGITS, "--start", str(start), "--head", "new", *careful)
