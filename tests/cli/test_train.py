"""The options of `vitkit train`: those of a run, and nothing of the parser in a run."""

import dataclasses
import subprocess
import sys

import pytest

import vitkit
from vitkit.cli.train import RunOptions
from vitkit.runs.config import Run


@pytest.mark.parametrize("run", [Run(), vitkit.recipe("digits"), vitkit.recipe("imagenet-vit-b16")])
def test_options_stand_for_the_run_that_they_were_made_of(run: Run) -> None:
    assert RunOptions() == RunOptions.from_run(Run())
    assert RunOptions.from_run(run).run() == run
    assert [one.name for one in dataclasses.fields(RunOptions)] == [
        one.name for one in dataclasses.fields(Run)
    ]


def test_a_run_needs_no_option_parser() -> None:
    code = "import sys, vitkit.runs.config; sys.exit('tyro' in sys.modules or 'rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_is_trained_is_said_before_torch_is_imported() -> None:
    """A person who waits for imports and images knows for what."""
    code = """
import sys

class NoTorch:
    def find_spec(self, name, path, target=None):
        if name == "torch":
            sys.exit(77)

sys.meta_path.insert(0, NoTorch())
from vitkit.cli.main import run
sys.exit(run(["train", "--recipe", "digits", "--out", "here"]))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 77
    assert " ".join(result.stdout.split()) == "run ViT-64x4x4/4 at 16x16 is trained on digits, in here"
