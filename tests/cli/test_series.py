"""`vitkit train --sweep --runs`: what it prints, and a series that is killed goes on to the same bits."""

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.series import kill_at
from vitkit.cli.main import run
from vitkit.config import to_json
from vitkit.runs.series_record import read_series

SERIES = [
    *("train", "--data", "digits", "--model", "ViT-16x1x2/4", "--image-size", "8", "--batch-size", "16"),
    *("--steps", "40", "--warmup-steps", "5", "--evaluate-every", "20", "--checkpoint-every", "5"),
    *("--dropout", "0.1", "--threads", "1", "--sweep-rates", "0.001,0.01", "--runs", "2"),
]
MEMBERS = ("rate-0.001", "rate-0.01", "seed-0", "seed-1")

pytestmark = pytest.mark.usefixtures("without_report")


def results(folder: Path) -> dict[str, Any]:
    """Weights and logs of all members, and what was found."""
    contents: dict[str, Any] = {
        f"{member}/{name}": (folder / member / name).read_bytes()
        for member in MEMBERS
        for name in ("model.safetensors", "metrics.jsonl")
    }
    contents["model"] = (folder / "model.safetensors").read_bytes()
    series = to_json(read_series(folder))
    return contents | {name: series[name] for name in ("rates", "members", "chosen", "spread")}


def test_a_series_that_is_killed_goes_on_to_the_same_bits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*SERIES, "--out", str(tmp_path / "whole")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "is the best on 180 held-out images" in said and "the mean of 2 seeds; standard deviation" in said
    assert f"vitkit predict {tmp_path / 'whole'} IMAGE_OR_FOLDER (the model of seed-0)" in said
    out = tmp_path / "killed"
    kill_at(out / MEMBERS[1] / "checkpoints" / "step-00000005", *SERIES, "--out", str(out))
    assert [entry.finished for entry in read_series(out).all_members].count(True) == 1
    weights = out / MEMBERS[0] / "model.safetensors"
    ended = weights.stat().st_mtime_ns
    assert run(["train", "--resume", str(out), "--threads", "1"]) == 0
    assert results(out) == results(tmp_path / "whole")
    assert weights.stat().st_mtime_ns == ended  # what had ended before was not trained again


def test_a_series_is_resumed_with_its_own_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    short = [*SERIES[:-3], "0.01", "--runs", "2", "--steps", "3"]
    assert run([*short, "--out", "runs"]) == 0
    assert run(["train", "--resume", "runs", "--threads", "1"]) == 0
    assert "This series of runs has finished" in capsys.readouterr().out
    Path("study.json").write_text("{}")
    member = "runs/seed-0"
    for line, message in (
        ([*short, "--out", "runs", "--runs", "4"], "--runs 2 -> 4"),
        (["train", "--resume", "runs", "--batch-size", "8"], "--batch-size 16 -> 8"),
        (["train", "--resume", "runs", "--from-scratch"], "--from-scratch is for a single run"),
        (["train", "--resume", member, "--runs", "3"], f"{member} is there already and holds no series of"),
        (["pretrain", "--resume", member, "--then", "digits"], "--then compares runs of its own"),
        (["report", "."], "a study, whose page is report.html"),
    ):
        assert run(line) == 1
        assert message in capsys.readouterr().err
    assert run(["report", "runs"]) == 0
    assert "the mean of 2 seeds" in Path("runs/report.html").read_text()
