"""A few cases of every kind of fault; all of them: `scripts/test-faults`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "kinds",
    [("images", "checkpoints", "evaluations"), ("run_folders", "filesystem", "signals", "options", "kills")],
    ids=["files", "commands"],
)
def test_nothing_of_a_sample_breaks(kinds: tuple[str, ...], tmp_path: Path) -> None:
    """In an interpreter of its own: the attack forks, which a process with threads must not."""
    only = [argument for kind in kinds for argument in ("--only", kind)]
    result = subprocess.run(
        [sys.executable, "-m", "tests.faults", "--sample", *only, "--jobs", "1", "--work", tmp_path],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"PYTHONWARNINGS": "ignore"},
    )
    assert result.returncode == 0, result.stdout + result.stderr
