"""`--dry-run` says what a run would do, and does nothing of it."""

import re
import shlex
from pathlib import Path

import pytest

from tests.faults.small_runs import image_folder
from tests.helpers.photos import saved
from vitkit.cli.main import run
from vitkit.jobs import finetune as default_start
from vitkit.runs.budget import Cost
from vitkit.runs.config import Run

pytestmark = pytest.mark.usefixtures("without_report")

QUICK = ["--steps", "3", "--batch-size", "8", "--threads", "1"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with photos and weights, in which the commands are given; the cache is in it too."""
    image_folder(tmp_path / "photos", 40)
    saved("ViT-16x1x1/4", 3, tmp_path / "start", size=8)
    monkeypatch.setenv("VITKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def names(folder: Path) -> set[str]:
    """The files that a command may have made, without kernels, which are compiled once for a machine."""
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return {name for name in files if not name.startswith("cache/compiled")}


def command_of(said: str) -> list[str]:
    return shlex.split(said.strip().splitlines()[-1])[1:]


@pytest.mark.parametrize(
    "line",
    [
        "finetune start --data photos --steps 3 --batch-size 8",
        "finetune start --data photos --out mine --minutes 0.02",
        "train --data photos --model ViT-16x1x1/4 --image-size 8 --steps 3 --batch-size 8",
        "pretrain photos --model ViT-16x1x1/4 --image-size 8 --steps 3 --batch-size 8",
    ],
)
def test_nothing_is_written_and_the_last_line_does_it(
    line: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = names(home)
    assert run([*line.split(), "--threads", "1", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert names(home) == before
    (folder,) = re.findall(r"^folder +(\S+)", said, re.MULTILINE)
    # The command that it ends with makes the folder that it names.
    assert run(command_of(said)) == 0
    assert (home / folder / "model.safetensors").exists()


def test_what_would_be_refused_is_refused(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = names(home)
    train = "train --data photos --model ViT-16x1x1/4 --image-size 8 --dry-run"
    for arguments, message in (
        ("--patience 2 --splits.val-fraction 0", "there are no validation"),
        ("--out photos", "photos is there already and holds no run"),
        ("--runs 2", "--dry-run shows a single run"),
        ("--start vit-ti16-augreg-in21k", "--dry-run fetches nothing"),
    ):
        assert run(f"{train} {arguments}".split()) == 1
        said = " ".join(capsys.readouterr().err.split())
        assert message in said and "Traceback" not in said
    assert names(home) == before


def test_a_start_that_would_be_chosen_is_shown_and_not_fetched(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(run: Run, *_: object) -> Cost:
        return Cost(run, 10, 60.0, 10**6, 1.0)

    monkeypatch.setattr(default_start, "measure_cost", measure)
    monkeypatch.setattr(default_start, "require_answer", lambda name: None)  # as with a network
    before = names(home)
    assert run(["finetune", "photos", "--dry-run", *QUICK]) == 0
    said = capsys.readouterr().out
    assert "chosen    vit-b16-augreg-in21k: ViT-B/16 at 224 pixels" in said and "about 1 min" in said
    assert "train 28 · val 4 · test 8 images" in said and "10 steps of" in said
    assert command_of(said) == ["finetune", "photos", *QUICK, "--yes"]
    assert names(home) == before
