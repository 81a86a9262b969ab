"""A few cases of every kind of fault; all of them: `scripts/test-faults`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.harness import read_record


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "kinds",
    [
        ("images", "checkpoints", "engine_bundles", "archives"),
        # tests/runs damages the files of run folders.
        pytest.param(("run_folders",), marks=pytest.mark.slow),
        # tests/training/test_checkpoint_faults.py fails each call, tests/jobs/test_unkillable.py kills.
        pytest.param(("filesystem", "kills", "study_kills"), marks=pytest.mark.slow),
        # tests/jobs/test_signals.py stops runs in the same ways.
        pytest.param(("signals",), marks=pytest.mark.slow),
    ],
    ids=["files", "folders", "disks", "signals"],
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


def test_the_record_of_an_earlier_call_is_read_back(tmp_path: Path) -> None:
    record = tmp_path / "images-0.jsonl"
    lines = [
        {"number": 3, "verdict": "hang", "detail": "60 s", "seconds": 60.0, "growth": 0},
        {"number": 3, "verdict": "right", "detail": "", "seconds": 0.1, "growth": 7},
        {"number": 4, "verdict": "words", "detail": "no image", "seconds": 0.2, "growth": 0},
    ]
    record.write_text("".join(json.dumps(line) + "\n" for line in lines))
    outcomes = read_record(record)
    assert sorted(outcomes) == [3, 4] and outcomes[3].verdict == "right" and outcomes[3].growth == 7
    (tmp_path / "begun.jsonl").touch()
    for name in ("none", "begun"):
        assert read_record(tmp_path / f"{name}.jsonl") == {}
