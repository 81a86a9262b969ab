"""`--dry-run` says what a run would do, and does nothing of it."""

import re
import shlex
from pathlib import Path

import pytest

from tests.helpers.cli import Cli
from tests.helpers.photos import image_folder, saved
from vitkit.cli.main import run

pytestmark = pytest.mark.usefixtures("without_report")


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


@pytest.mark.parametrize(
    "line",
    [
        "finetune start --data photos --steps 3 --batch-size 8",
        "finetune start --data photos --out mine --minutes 0.02",
        "train --data photos --model ViT-16x1x1/4 --image-size 8 --steps 3 --batch-size 8",
        "pretrain photos --model ViT-16x1x1/4 --image-size 8 --steps 3 --batch-size 8",
    ],
)
def test_nothing_is_written_and_the_last_line_does_it(line: str, home: Path, cli: Cli) -> None:
    before = names(home)
    said = cli([*line.split(), "--threads", "1", "--dry-run"]).out
    assert names(home) == before
    (folder,) = re.findall(r"^folder +(\S+)", said, re.MULTILINE)
    # The command that it ends with makes the folder that it names.
    assert run(shlex.split(said.strip().splitlines()[-1])[1:]) == 0
    assert (home / folder / "model.safetensors").exists()
    again = cli([*line.split(), "--threads", "1", "--dry-run"]).out
    assert f"{folder} holds this run already: the command goes on with it" in again


def test_what_would_be_refused_is_refused(home: Path, cli: Cli) -> None:
    before = names(home)
    train = "train --data photos --model ViT-16x1x1/4 --image-size 8 --dry-run"
    for arguments, message in (
        ("--patience 2 --splits.val-fraction 0", "there are no validation"),
        ("--out photos", "photos is there already and holds no run"),
        ("--runs 2", "--dry-run shows a single run"),
        ("--start vit-ti16-augreg-in21k", "--dry-run fetches nothing"),
    ):
        said = cli(f"{train} {arguments}".split(), 1).text
        assert message in said and "Traceback" not in said
    assert names(home) == before
