"""`vitkit advise` as people call it."""

import html
import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.small_runs import image_folder
from tests.helpers.photos import saved
from vitkit.cli.main import run
from vitkit.jobs import finetune as default_start
from vitkit.weights.published import default_starts

pytestmark = pytest.mark.usefixtures("without_report")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    small = tuple(replace(start, model="ViT-8x1x1/112") for start in default_starts()[:1])
    monkeypatch.setattr(default_start, "default_starts", lambda: small)


@pytest.fixture
def start(tmp_path: Path) -> str:
    return saved("ViT-16x1x2/4", 10, tmp_path / "start", size=8)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return image_folder(tmp_path / "photos")


def test_advice_is_followed(
    photos: Path, start: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert run(["advise", str(photos), start, "--no-cache", "--go", "--out", str(out), "--threads", "1"]) == 0
    shown = capsys.readouterr().out
    assert f"Next: open {out / 'advice.html'} in a browser\n      open {out / 'report.html'} in" in shown
    for text in (shown, html.unescape((out / "advice.html").read_text())):
        assert "The start's frozen features tell" in " ".join(text.split())
    assert json.loads((out / "config.json").read_text())["command"].startswith("vitkit advise ")


def test_without_a_start_it_names_one(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["advise", str(photos), "--json"]) == 0
    advice = json.loads(capsys.readouterr().out)
    assert advice["chosen"] is None and advice["images"] == 42
    assert run(["advise", str(photos)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert advice["default"] == "vit-ti16-augreg-in21k" and advice["default"] in shown.partition("-- ")[0]
    assert f"Begin from {advice['default']}, the largest of 1 size that this machine fine-tunes" in shown
    assert f"Next: vitkit finetune {photos} (from {advice['default']})" in shown
    assert run(["advise", str(photos), "--go"]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert "do not train from scratch" in said
    assert f"Give one: vitkit advise {photos} {advice['default']} --go." in said


def last_line(error: str) -> str:
    """The last line of what was printed, which begins as every refusal does; there is no traceback."""
    assert "Traceback" not in error
    line = error.strip().splitlines()[-1]
    assert line.startswith("vitkit: ")
    return line


def test_a_bad_start_and_bad_data_end_in_one_line(
    photos: Path, start: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("no weights")
    (photos / "empty").mkdir()
    for start_given, name in ((str(tmp_path / "notes.txt"), "notes.txt"), (start, "empty")):
        assert run(["advise", str(photos), start_given, "--no-cache"]) == 1
        assert name in last_line(capsys.readouterr().err)


def test_fine_tuning_says_where_to_ask(
    photos: Path, start: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--data", str(photos), "--steps", "2", "--threads", "1", "--out", str(tmp_path / "run")]
    assert run(["finetune", start, *options]) == 0
    shown = "".join(capsys.readouterr().out.split())
    where = "".join(f"What its features tell: vitkit advise {photos} {start}".split())
    # A full stop behind it would be copied as a part of the path.
    assert where in shown and f"{where}." not in shown
