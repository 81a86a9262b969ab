"""kill -9 at any moment: the finished run is the same bits. Real processes, real signals."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from vitkit.training.checkpoint import find_checkpoint

SMALL = [
    *(
        "--model",
        "ViT-16x1x2/2",
        "--image-size",
        "8",
        "--batch-size",
        "16",
        "--steps",
        "120",
        "--warmup-steps",
        "5",
    ),
    *(
        "--evaluate-every",
        "20",
        "--checkpoint-every",
        "5",
        "--log-every",
        "3",
        "--polyak",
        "0.99",
        "--threads",
        "1",
    ),
    *("--dropout", "0.1", "--mixup", "0.2", "--no-flip", "--crop-area", "0.5", "1.0"),
]


def command(out: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "vitkit", "train", "--out", str(out), *options, *SMALL]


def finish(out: Path, *options: str) -> None:
    result = subprocess.run(command(out, *options), capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "not whole" not in result.stderr and "set aside" not in result.stderr


def results(run: Path) -> dict[str, bytes]:
    """Everything a run ends with: weights, optimiser, average, progress, log, finished model."""
    checkpoint, rejected = find_checkpoint(run)
    assert checkpoint is not None and not rejected
    names = ("model.safetensors", "average.safetensors", "optimizer.safetensors", "state.json")
    found = {name: (checkpoint / name).read_bytes() for name in names}
    found |= {name: (run / name).read_bytes() for name in ("metrics.jsonl",)}
    return found | {"finished": (run / "model.safetensors").read_bytes()}


def kill_once(out: Path, draw: random.Random, aimed: bool, options: tuple[str, ...]) -> bool:
    """Start or continue a run and kill it with its children; returns whether it finished first.

    Aimed: the moment is when a save is under way, seen by its hidden folder. Otherwise any moment, from the
    start of the process on.
    """
    process = subprocess.Popen(
        command(out, *options),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        text=True,
    )
    try:
        assert process.stdout is not None
        if aimed or draw.random() < 0.8:
            for line in process.stdout:  # the first screen's last line: training begins
                if line.startswith("time"):
                    break
        deadline = time.monotonic() + draw.uniform(0.0, 1.0)
        checkpoints = out / "checkpoints"
        while time.monotonic() < deadline or aimed:
            if process.poll() is not None:
                break
            if aimed and any(name.startswith(".") for name in _names(checkpoints)):
                time.sleep(draw.uniform(0, 0.01))
                break
        finished = process.poll() is not None
        if finished:
            assert process.returncode == 0, "it failed by itself"
        else:
            os.killpg(process.pid, signal.SIGKILL)
    finally:
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    return finished


def _names(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return []


def check(tmp_path: Path, kills: int, seed: int, *options: str) -> None:
    finish(tmp_path / "whole", *options)
    expected = results(tmp_path / "whole")
    draw, chain = random.Random(seed), 0
    for number in range(kills):
        if kill_once(tmp_path / f"run{chain}", draw, number % 2 == 0, options):
            chain += 1
    for i in range(chain + 1):
        run = tmp_path / f"run{i}"
        finish(run, *options)
        for name, content in results(run).items():
            assert content == expected[name], f"{name} of run {i} differs after kills with seed {seed}"


def test_kills(tmp_path: Path) -> None:
    """One of them aimed at a save; a hundred are among the slow tests."""
    check(tmp_path, 2, 1, "--data", "digits")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    for number in range(60):
        path = tmp_path / "images" / ("dark" if number % 2 else "light") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 128, (9 + number % 5, 11, 3)) + 120 * (number % 2)
        Image.fromarray(pixels.astype(np.uint8)).save(path)
    return tmp_path / "images"


@pytest.mark.slow
def test_kills_with_worker_processes_and_another_number_of_them(tmp_path: Path, folder: Path) -> None:
    """Not kept in memory, read by workers: their number changes nothing either."""
    options = ("--data", str(folder), "--memory-gib", "0")
    finish(tmp_path / "whole", *options, "--workers", "0")
    for number in range(2):
        kill_once(tmp_path / "run", random.Random(number), number == 1, (*options, "--workers", "2"))
    finish(tmp_path / "run", *options, "--workers", "1")
    assert results(tmp_path / "run") == results(tmp_path / "whole")


@pytest.mark.slow
def test_kills_while_fine_tuning_with_frozen_layers_and_the_head_first(tmp_path: Path) -> None:
    """Before the start is read, while the head learns alone, and after."""
    start = tmp_path / "start"
    finish(start, "--data", "digits")
    careful = ("--freeze-layers", "1", "--layer-decay", "0.8", "--head-first", "100")
    check(tmp_path / "tuned", 2, 4, "--data", "digits", "--start", str(start), "--head", "new", *careful)
    before, after = (load_file(run / "model.safetensors") for run in (start, tmp_path / "tuned" / "whole"))
    same = {name for name in after if torch.equal(before[name], after[name])}
    assert same == {
        name for name in after if name not in ("norm.weight", "norm.bias", "head.weight", "head.bias")
    }


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_100_kills(tmp_path: Path) -> None:
    check(tmp_path, 100, 3, "--data", "digits")


@pytest.mark.parametrize(
    ("number", "code"),
    # tests/jobs/test_signals.py sends SIGTERM too.
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)],
)
def test_asked_to_stop_it_commits_and_says_how_to_go_on(tmp_path: Path, number: int, code: int) -> None:
    run = tmp_path / "run"
    options = (
        "--data",
        "digits",
        "--checkpoint-every",
        "1000",
        "--evaluate-every",
        "1000",
        "--steps",
        "100000",
    )
    process = subprocess.Popen(
        [*command(run), *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("time"):
            break
    while not (run / "metrics.jsonl").exists() or not (run / "metrics.jsonl").stat().st_size:
        time.sleep(0.02)
    process.send_signal(number)
    _, errors = process.communicate(timeout=1800)
    assert process.returncode == code
    assert f"vitkit train --resume {run}" in errors and "Traceback" not in errors
    checkpoint, _ = find_checkpoint(run)
    assert checkpoint is not None and not (run / "model.safetensors").exists()


@pytest.mark.slow
def test_two_processes_cannot_train_in_one_folder(tmp_path: Path) -> None:
    first = subprocess.Popen(
        [*command(tmp_path / "run"), "--data", "digits", "--steps", "100000"],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert first.stdout is not None
        for line in first.stdout:
            if line.startswith("time"):
                break
        second = subprocess.run(
            [*command(tmp_path / "run"), "--data", "digits", "--steps", "100000"],
            capture_output=True,
            text=True,
        )
        assert second.returncode == 1
        assert "Another process is training" in second.stderr and "Traceback" not in second.stderr
    finally:
        first.kill()
        first.communicate()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", [("--precision", "bfloat16"), ("--exact",)])
def test_kills_however_the_model_computes(tmp_path: Path, way: tuple[str, ...]) -> None:
    """bfloat16 brings explicit attention with it; the other tests here have the class token's shortcut."""
    check(tmp_path, 2, 4, "--data", "digits", *way)
