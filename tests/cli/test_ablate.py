"""`vitkit ablate`: what is left out, a study that has ended, and what is printed."""

import json
from pathlib import Path

import pytest

from tests.helpers.cli import Capture, Cli
from vitkit.cli import console
from vitkit.cli.main import run
from vitkit.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("without_report")


def test_what_is_left_out_suits_the_start_and_a_finished_study_writes_its_page_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    """The base fine-tunes as vitkit finetune would: with the start's model and a rate for it."""
    tiny = "--data digits --image-size 8 --steps 2 --batch-size 16 --warmup-steps 0 --threads 1"
    assert run(f"train --model ViT-16x1x2x32/4 {tiny} --out {tmp_path}/start".split()) == 0
    study = f"ablate paper --start {tmp_path}/start --vary head=keep --fixed-rate --seeds 1 {tiny}"
    line = [*study.split(), "--out", str(tmp_path / "study")]
    assert run(line) == 0
    base, other = json.loads((tmp_path / "study/study.json").read_text())["arms"]
    assert base["run"]["model"] == "ViT-16x1x2x32/4" and base["run"]["start"]["head"] == "new"
    assert other["folder"] == "head-keep" and other["run"]["start"]["head"] == "keep"
    monkeypatch.setattr(Trainer, "launch", None)  # nothing is trained
    (tmp_path / "study/report.html").unlink()
    assert run(line) == 0
    page = (tmp_path / "study/report.html").read_text()
    assert "vitkit ablate paper --start" in page and "<svg" in page
    assert "--steps 2 -> 20" in cli([*line, "--steps", "20"], 1).err


@pytest.mark.parametrize("width", [80, 200])
def test_a_table_of_arms_loses_no_word(width: int, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    headings = ("arm", "learning rate", "difference", "95 % interval", "p by Holm", "mean, detectable")
    row = ("without pre-training", "0.001", "+15.34", "+13.77 to +16.91", "below 0.001", "72.78 %, 2.17")
    monkeypatch.setattr(console.out, "width", width)
    console.print_table(headings, [row])
    shown = capsys.readouterr().out
    assert all(word in shown for cell in (*headings, *row) for word in cell.split())
    assert max(map(len, shown.splitlines())) <= width
