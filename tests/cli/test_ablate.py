"""`vitkit ablate`: what it prints, and that a study which is killed goes on to the same table and bits."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.cli import Cli
from vitkit.cli import console
from vitkit.cli.main import run
from vitkit.data.stream.loader import Batch
from vitkit.runs.budget import Pace
from vitkit.training.trainer import StepNumbers, Trainer

LINE = """ablate digits --vary position=learned,none --seeds 2 --rates 0.001,0.01 --threads 1
--model ViT-16x1x2x32/4 --image-size 8 --batch-size 16 --steps 6 --warmup-steps 2 --evaluate-every 3
--checkpoint-every 2 --dropout 0.1"""
ABLATION = LINE.split()
MEMBERS = ("rate-0.001", "rate-0.01", "seed-0", "seed-1")
ARMS = ("base", "position-none")

pytestmark = pytest.mark.usefixtures("without_report")


def results(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The logs of all runs, the weights of those that are kept, and every number of the table."""
    capsys.readouterr()
    assert run([*ABLATION, "--out", str(folder), "--json"]) == 0  # it has ended: nothing is trained for it
    contents: dict[str, Any] = {
        f"{arm}/{member}/{name}": (folder / arm / member / name).read_bytes()
        for arm in ARMS
        for member in MEMBERS
        for name in ("model.safetensors", "metrics.jsonl")
        if name == "metrics.jsonl" or member.startswith("seed")
    }
    return contents | {"comparison": json.loads(capsys.readouterr().out)["comparison"]}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ablation that nothing stopped."""
    folder = tmp_path_factory.mktemp("ablations") / "whole"
    assert run([*ABLATION, "--out", str(folder)]) == 0
    return folder


def test_an_ablation_that_was_killed_goes_on_to_the_same_table_and_bits(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    launch, steps = Trainer.launch, 0

    def killed(self: Trainer, batch: Batch, step: int, rate: float) -> StepNumbers:
        nonlocal steps
        steps += 1
        if steps in (5, 41):  # in the sweep of the first arm, and in a seed of the second one
            raise KeyError("killed")
        return launch(self, batch, step, rate)

    # Steps that are only timed are not counted.
    monkeypatch.setattr(
        "vitkit.jobs.study.study.measure_paces", lambda runs, *_: dict.fromkeys(runs, Pace(0.01, 0.1))
    )
    monkeypatch.setattr(Trainer, "launch", killed)
    folder = tmp_path / "killed"
    for place in ("base/rate-0.001", "position-none/seed-0"):
        with pytest.raises(KeyError, match="killed"):
            run([*ABLATION, "--out", str(folder)])
        assert (folder / place).is_dir() and not (folder / place / "model.safetensors").exists()
    assert run([*ABLATION, "--out", str(folder)]) == 0
    assert results(folder, capsys) == results(whole, capsys)


def test_a_finished_ablation_trains_nothing_and_writes_its_page_again(
    whole: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trainer, "launch", None)
    (whole / "report.html").unlink()
    assert run([*ABLATION, "--out", str(whole)]) == 0
    page = (whole / "report.html").read_text()
    assert "vitkit ablate digits --vary" in page and "<svg" in page
    assert "--steps 6 -> 20" in cli([*ABLATION, "--steps", "20", "--out", str(whole)], 1).err


def test_what_is_left_out_suits_the_start(whole: Path, tmp_path: Path) -> None:
    """The base fine-tunes as vitkit finetune would: with the start's model and a rate for it."""
    options = "--data digits --vary head=keep --fixed-rate --seeds 1 --steps 2 --batch-size 16 --image-size 8"
    line = ["ablate", "paper", "--start", str(whole / "base/seed-0"), *options.split(), "--warmup-steps", "0"]
    assert run([*line, "--out", str(tmp_path / "study")]) == 0
    base, other = json.loads((tmp_path / "study/study.json").read_text())["arms"]
    assert base["run"]["model"] == "ViT-16x1x2x32/4" and base["run"]["start"]["head"] == "new"
    assert other["folder"] == "head-keep" and other["run"]["start"]["head"] == "keep"


@pytest.mark.parametrize("width", [80, 200])
def test_a_table_of_arms_loses_no_word(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {
        "arm": "longer without pre-training",
        "learning rate": "0.001",
        "difference": "+15.34",
        "95 % interval": "+13.77 to +16.91",
        "p by Holm": "below 0.001",
        "mean accuracy, detectable": "72.78 %, 2.17",
    }
    monkeypatch.setattr(console.out, "width", width)
    console.print_table([*row], [[*row.values()]])
    shown = capsys.readouterr().out
    assert all(word in shown for cell in (*row, *row.values()) for word in cell.split())
    assert max(map(len, shown.splitlines())) <= width
