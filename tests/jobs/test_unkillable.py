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

from tests.helpers.command_runs import command, finish, results
from tests.helpers.found_checkpoint import find_checkpoint
from tests.helpers.guard import background_saves
from tests.helpers.photos import noise_images

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


def children(process: int) -> list[int]:
    """List the processes that a process has started."""
    with contextlib.suppress(FileNotFoundError):
        text = Path(f"/proc/{process}/task/{process}/children").read_text()
        return [int(number) for number in text.split()]
    return []


def check(tmp_path: Path, kills: int, seed: int, *options: str, whom: Sequence[str] = ("group",)) -> None:
    finish(tmp_path / "whole", *options)
    expected = results(tmp_path / "whole")
    draw, chain = random.Random(seed), 0
    for number in range(kills):
        victim = whom[number // 2 % len(whom)]
        if kill_once(tmp_path / f"run{chain}", draw, number % 2 == 0, options, victim):
            chain += 1
    for i in range(chain + 1):
        run = tmp_path / f"run{i}"
        finish(run, *options)
        contents = results(run)
        assert contents.keys() == expected.keys()
        for name, content in contents.items():
            assert content == expected[name], f"{name} of run {i} differs after kills with seed {seed}"


DIGITS = ("--data", "digits")
THREE = (*DIGITS, "--processes", "3")
"""The sum of two numbers is the same in either order, which would hide a fault; that of three is not."""


@pytest.mark.parametrize(("options", "victim"), [(DIGITS, "group"), (THREE, "one")])
def test_kills_of_one_process_and_of_three(tmp_path: Path, options: tuple[str, ...], victim: str) -> None:
    """One of two is aimed at a save; a hundred are among the slow tests."""
    check(tmp_path, 2, 1, *options, whom=(victim,))


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
def test_kills_with_worker_processes_and_another_number_of_them(tmp_path: Path) -> None:
    """Not kept in memory, read by workers: their number changes nothing either."""
    options = ("--data", str(noise_images(tmp_path / "images", 30)), "--memory-gib", "0")
    finish(tmp_path / "whole", *options, "--workers", "0")
    for number in range(2):
        kill_once(tmp_path / "run", random.Random(number), number == 1, (*options, "--workers", "2"))
    finish(tmp_path / "run", *options, "--workers", "1")
    assert results(tmp_path / "run") == results(tmp_path / "whole")


"""The sum of two numbers is the same in either order, which would hide a fault; that of three is not."""


@pytest.mark.slow
def test_kills_while_fine_tuning_with_frozen_layers(tmp_path: Path) -> None:
    """Before the start is read, and after."""
    start = tmp_path / "start"
    finish(start, *DIGITS)
    careful = ("--freeze-layers", "1", "--layer-decay", "0.8", "--select", "last")
    check(tmp_path / "tuned", 2, 4, *DIGITS, "--start", str(start), "--head", "new", *careful)


def test_asked_to_stop_it_commits_and_says_how_to_go_on(tmp_path: Path) -> None:
    """By SIGINT; tests/jobs/test_signals.py sends the others."""
    run, rare = tmp_path / "run", ("--checkpoint-every", "1000", "--evaluate-every", "1000")
    line = [*command(run), *DIGITS, *rare, "--steps", "100000"]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (run / "metrics.jsonl").exists() or not (run / "metrics.jsonl").stat().st_size:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=1800)
    assert process.returncode == 130
    assert f"vitkit train --resume {run}" in errors and "Traceback" not in errors
    checkpoint, _ = find_checkpoint(run)
    assert checkpoint is not None and not (run / "model.safetensors").exists()
