"""`vitkit finetune PHOTOS`: a start is chosen, and a person is asked before it is fetched."""

import io
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.cli import Cli
from tests.helpers.photos import image_folder, saved
from vitkit.cli.main import run
from vitkit.jobs import finetune as default_start
from vitkit.models.zoo import ModelConfig
from vitkit.runs.budget import Cost
from vitkit.runs.config import Run
from vitkit.runs.folder import kind_of
from vitkit.weights.files import download
from vitkit.weights.files.download import Fetched

pytestmark = pytest.mark.usefixtures("without_report")

NAME = "vit-s16-augreg-in21k"
QUICK = ["--steps", "2", "--batch-size", "8", "--threads", "1"]


@pytest.fixture(autouse=True)
def _machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which the default starts take 19, 38 and 77 minutes, and nothing is fetched yet."""

    def measure(run: Run, data: object, config: ModelConfig, *_: object) -> Cost:
        return Cost(run, run.training.total_steps(28), 6 * config.width, 10**6, 1.0)

    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(default_start, "measure_cost", measure)
    monkeypatch.setattr("vitkit.weights.files.download._list_files", lambda address: {})


@pytest.fixture(autouse=True)
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Somewhere else, from where every address is answered with a tiny model; the addresses that were asked
    for."""
    elsewhere = Path(saved("ViT-16x1x1/4", 3, tmp_path / "elsewhere", size=8))
    addresses: list[str] = []

    def fetch(address: str, _: Any) -> Fetched:
        addresses.append(address)
        return Fetched(elsewhere, {"source": address})

    monkeypatch.setattr(download, "from_hub", fetch)
    return addresses


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return image_folder(tmp_path / "my photos", 40)


class Terminal(io.StringIO):
    """A stream that says a person looks at it."""

    def isatty(self) -> bool:
        return True


def test_without_a_terminal_the_command_that_allows_it_is_named(
    photos: Path, tmp_path: Path, mirror: list[str], cli: Cli
) -> None:
    said = cli(["finetune", str(photos), *QUICK], 1)
    assert f"{NAME}: ViT-S/16 at 224 pixels, trained on ImageNet-21k (AugReg)" in said.text
    assert "2 steps of 8 images, about 38 min" in said.text
    assert f"{NAME} is not on this machine" in said.text
    assert "chosen" in cli(["finetune", str(photos), *QUICK, "--dry-run"]).out
    typed = said.text.partition("To fetch it: ")[2].partition(". To begin")[0]
    assert mirror == [] and not (tmp_path / "runs").exists()
    # The command that it names does it.
    assert typed.startswith("vitkit finetune ") and typed.endswith(" --yes")
    assert run(shlex.split(typed)[1:]) == 0
    assert len(mirror) > 0 and "vit_small_patch16_224" in mirror[0]
    assert kind_of(tmp_path / "runs" / "my photos-ViT").run().start.start == NAME


@pytest.mark.parametrize("word", ["y\n", "YES\n", "\n", "n\n", "", "what?\n"])
def test_a_person_is_asked_once_and_gets_nothing_without_agreeing(
    photos: Path, mirror: list[str], word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, agrees = Terminal(), word.lower().startswith("y")
    monkeypatch.setattr("sys.stdin", Terminal(word))
    monkeypatch.setattr("sys.stderr", shown)
    out = tmp_path / "run"
    assert run(["finetune", str(photos), "--out", str(out), *QUICK]) == (0 if agrees else 1)
    assert shown.getvalue().count(f"Fetch {NAME}, about 120 MB? [y/N]") == 1
    assert ("fetching it was not allowed" in shown.getvalue()) != agrees
    assert bool(mirror) == out.exists() == agrees
    assert not agrees or kind_of(out).run().start.start == NAME


def test_a_folder_of_both_is_asked_about(photos: Path, tmp_path: Path, cli: Cli) -> None:
    saved("ViT-16x1x1/4", 3, photos, size=8)
    said = cli(["finetune", str(photos), *QUICK], 1).text
    quoted = shlex.quote(str(photos))
    assert f"To begin from its weights: vitkit finetune {quoted} PATH." in said
    assert f"To train on its images: vitkit finetune --data {quoted}." in said
    # Both commands that it names are understood.
    assert run(["finetune", str(photos), "--data", str(photos), "--out", "one", *QUICK]) == 0
    assert kind_of(Path("one")).run().start.start == str(photos)
    assert run(["finetune", "--data", str(photos), "--out", "two", "--yes", *QUICK]) == 0
    assert kind_of(Path("two")).run().start.start == NAME
