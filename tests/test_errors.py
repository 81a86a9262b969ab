"""Errors name options in the shell and parameters in Python."""

import pytest

import vitkit
from tests.helpers.refusals import refused
from vitkit.cli.main import run
from vitkit.errors import VitkitError, in_shell


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("Give --image-size, or no --splits.val-fraction.", "Give image_size, or no splits_val_fraction."),
        ("other run:\n  --steps 20 -> 30\nGive --out.", "other run:\n  steps 20 -> 30\nGive out."),
        ("vitkit train --resume a.b --steps 2. Or --out.", "vitkit train --resume a.b --steps 2. Or out."),
        ("runs/--data is no file.", "runs/--data is no file."),
    ],
)
def test_options_are_parameters_outside_of_a_command(message: str, shown: str) -> None:
    error = VitkitError(message)
    assert str(error) == shown
    with in_shell():
        assert str(error) == message
    assert str(error) == shown


def test_the_same_mistake_in_python_and_in_the_shell(capsys: pytest.CaptureFixture[str]) -> None:
    refused(r"^Which images\? Give data: digits", vitkit.train, model="ViT-Ti/16")
    assert run(["train", "--model", "ViT-Ti/16"]) == 1
    assert capsys.readouterr().err.startswith("vitkit: Which images? Give --data: digits")
