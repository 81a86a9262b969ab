"""Runs whose number of processes changes, by real processes, against a run that was left alone."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers import recorded_run
from tests.helpers.processes import Processes
from tests.helpers.recorded_run import BATCH, IMAGES, STEPS, configuration, losses, read_records, write_images

CHANGES = ((1, 2), (3, 4), (2, 5), (1, 7), (2, 9), (3, STEPS))
"""The number of processes, and the step after which they are stopped: within an epoch each time."""
SECONDS = 300.0
"""After which processes are given up; a machine under load is slow."""


def new_folder(path: Path) -> Path:
    path.mkdir()
    write_images(path)
    return path


@pytest.mark.parametrize("workers", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_images_order_and_pixels_stay_the_same_while_the_number_of_processes_changes(
    processes: Processes, tmp_path: Path, workers: int
) -> None:
    """Over three epochs and five changes: what is read, what models are given after mixup, and the losses."""
    assert STEPS * BATCH > 3 * IMAGES
    assert all(stop * BATCH % IMAGES for _, stop in CHANGES)
    alone, changed = new_folder(tmp_path / "alone"), new_folder(tmp_path / "changed")
    # Stopped before their end, because the report of a finished run takes longer than these steps.
    processes.run(1, recorded_run.train, alone, configuration(alone, 0, STEPS + 1), STEPS)
    for size, stop in CHANGES:
        processes.run(size, recorded_run.train, changed, configuration(changed, workers, STEPS + 1), stop)
    read, given = read_records(alone)
    assert read.keys() == {(step, place) for step in range(STEPS) for place in range(BATCH)}
    assert all(images.total() == BATCH for images in given.values())
    assert read_records(changed) == (read, given)
    assert losses(changed) == pytest.approx(losses(alone), abs=1e-4)


def start(folder: Path, count: int, steps: int) -> "subprocess.Popen[str]":
    torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}")
    return subprocess.Popen(
        [sys.executable, *torchrun, "-m", "tests.helpers.recorded_run", str(folder), str(steps)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=Path(__file__).parents[2],  # tests run elsewhere
    )


@pytest.mark.slow
def test_two_processes_go_on_with_the_same_pixels_after_one_of_three_was_killed(
    processes: Processes, tmp_path: Path
) -> None:
    steps = 60
    alone, killed = new_folder(tmp_path / "alone"), new_folder(tmp_path / "killed")
    processes.run(1, recorded_run.train, alone, configuration(alone, workers=0, steps=steps))
    process = start(killed, 3, steps)
    end = time.monotonic() + SECONDS
    while not (killed / "run" / "checkpoints" / "step-00000020" / "COMMIT").exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.005)
    members = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(members[-1]), signal.SIGKILL)
    process.communicate(timeout=SECONDS)
    assert process.returncode
    assert not (killed / "run" / "report.html").exists()
    process = start(killed, 2, steps)
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, err
    read, given = read_records(alone)
    again, more = read_records(killed)
    assert again == read
    # Steps after the last checkpoint are made once more, by other processes.
    assert {step: images.keys() for step, images in more.items()} == {
        step: images.keys() for step, images in given.items()
    }
    assert sum(images.total() for images in more.values()) >= steps * BATCH
    assert losses(killed) == pytest.approx(losses(alone), abs=1e-4)
