"""The closing line of a command names what can follow: commands that exist, as they would be typed."""

import shlex
from pathlib import Path

import pytest

from tests.helpers.cli import Cli
from tests.helpers.photos import saved
from vitkit.cli.help import VERBS


def following(cli: Cli, *arguments: str) -> list[str]:
    """Run a command and return the commands that its last lines name, with the remarks behind them."""
    _, named, closing = cli(arguments).out.rpartition("Next: ")
    assert named
    return [line.strip() for line in closing.splitlines()]


@pytest.fixture
def model(tmp_path: Path) -> str:
    return saved("ViT-16x1x1/4", 2, tmp_path / "model", size=8)


def test_what_follows_is_a_command(
    model: str, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for line in (
        *("recipes", "starts", "starts vit-ti16-augreg-in21k", "models", "data check digits"),
        *(f"card {model}", f"inspect {model} --out pictures", f"convert {model} other"),
    ):
        for named in following(cli, *line.split()):
            command, _, remark = named.partition("   (")
            assert not remark or remark.endswith(")")
            if command.startswith("vitkit."):  # from Python
                continue
            program, verb, *operands = shlex.split(command)
            assert (program, verb in VERBS) == ("vitkit", True), command
            # A word that must be filled in is in capitals; sentences would be taken for arguments.
            there = (model, "digits", "other")
            assert all(word.isupper() or not word.isalpha() or word in there for word in operands)


def test_after_the_digits_come_photos_of_your_own(tmp_path: Path, cli: Cli) -> None:
    """They are looked at first: that says whether there are enough of them to train from scratch."""
    made = ["--model", "ViT-16x1x1/4", "--image-size", "8", "--steps", "1", "--out", str(tmp_path / "run")]
    lines = following(cli, "train", "--data", "digits", *made, "--threads", "1")
    assert lines[-1] == "vitkit data check FOLDER_OF_YOUR_CLASS_FOLDERS"
