"""`vitkit train --sweep --runs`: a series is resumed with its own options."""

from pathlib import Path

import pytest

from tests.helpers.cli import Cli
from vitkit.cli.main import run

SERIES = [
    *("train", "--data", "digits", "--model", "ViT-16x1x2/4", "--image-size", "8", "--batch-size", "16"),
    *("--steps", "3", "--warmup-steps", "1", "--threads", "1", "--sweep-rates", "0.001,0.01", "--runs", "2"),
]

pytestmark = pytest.mark.usefixtures("without_report", "in_an_empty_folder")


def test_a_series_is_resumed_with_its_own_options(cli: Cli) -> None:
    said = cli([*SERIES, "--out", "runs"]).text
    assert "is the best on 180 held-out images" in said and "the mean of 2 seeds; standard deviation" in said
    assert "This series of runs has finished" in cli(["train", "--resume", "runs", "--threads", "1"]).out
    Path("study.json").write_text("{}")
    member = "runs/seed-0"
    for line, message in (
        ([*SERIES, "--out", "runs", "--runs", "4"], "--runs 2 -> 4"),
        (["train", "--resume", "runs", "--batch-size", "8"], "--batch-size 16 -> 8"),
        (["train", "--resume", "runs", "--from-scratch"], "--from-scratch is for a single run"),
        (["train", "--resume", member, "--runs", "3"], f"{member} is there already and holds no series of"),
        (["pretrain", "--resume", member, "--then", "digits"], "--then compares runs of its own"),
        (["report", "."], "a study, whose page is report.html"),
    ):
        assert message in cli(line, 1).err
    assert run(["report", "runs"]) == 0
    assert "the mean of 2 seeds" in Path("runs/report.html").read_text()
