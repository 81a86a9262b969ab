"""kill -9 of a study at random moments, then the same call again: the same runs, page and result."""

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults.studies import STUDIES, make_shared

KILLS = 5
"""Kills of one study before it is allowed to end."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shared(tmp_path_factory.mktemp("shared"))


def start(name: str, shared: Path, out: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "tests.faults.studies", name, str(shared), str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=Path(__file__).parents[2],
        start_new_session=True,
    )


def ending(process: "subprocess.Popen[str]", out: Path) -> dict[str, str]:
    """Wait for a study; hash the files that it ends with, and add page and result without the folder."""
    said, _ = process.communicate()
    assert process.returncode == 0
    files = [path for path in sorted(out.rglob("*")) if path.name in ("model.safetensors", "metrics.jsonl")]
    files += sorted(path for path in out.rglob("evaluation/*") if path.is_file())
    ends = {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    page = out / "report.html"
    ends["page"] = page.read_text().replace(str(out), "OUT") if page.exists() else ""
    return ends | {"result": said.replace(str(out), "OUT")}


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_that_was_killed_ends_as_one_that_was_left_alone(
    name: str, shared: Path, tmp_path: Path
) -> None:
    began, whole, out = time.monotonic(), tmp_path / "whole", tmp_path / "out"
    expected = ending(start(name, shared, whole), whole)
    seconds, draw, kills = time.monotonic() - began, random.Random(name), 0
    while kills < KILLS:
        process = start(name, shared, out)
        with suppress(subprocess.TimeoutExpired):
            process.wait(draw.uniform(0, seconds))
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            kills += 1
        else:  # it was quicker than the signal: the next kills are those of a new study
            assert ending(process, out) == expected
            shutil.rmtree(out)
    assert ending(start(name, shared, out), out) == expected
