"""The table of transfer in small, whose cells take minutes: what it draws, measures, keeps and prints."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from benchmarks import transfer
from benchmarks.transfer import CASES, Cell, drawn, summary


def test_the_same_test_images_for_every_draw_and_none_of_them_is_drawn(tmp_path: Path) -> None:
    folders = [drawn(CASES["digits"], 5, seed, Path("nowhere"), tmp_path) for seed in (0, 1)]
    tests = [pq.read_table(folder / "test-0.parquet") for folder in folders]
    trains = [pq.read_table(folder / "train-0.parquet") for folder in folders]
    assert tests[0] == tests[1] and trains[0] != trains[1]
    assert all(sorted(train["label"].to_pylist()) == sorted([*range(10)] * 5) for train in trains)
    tested = {row["bytes"] for row in tests[0]["image"].to_pylist()}
    assert not any(row["bytes"] in tested for row in trains[0]["image"].to_pylist())


def test_what_is_there_is_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither after a kill, which may leave half a line."""
    measured: list[Cell] = []

    def pretend(cell: Cell, *_: Any) -> dict[str, Any]:
        measured.append(cell)
        return {"accuracy": 0.5, "steps": 7}

    monkeypatch.setattr(transfer, "measure", pretend)
    monkeypatch.setattr(transfer, "make_start", lambda *_: tmp_path)
    command = ["transfer", "--data", "nowhere", "--out", str(tmp_path), "--seeds", "1", "--cases", "digits"]
    monkeypatch.setattr("sys.argv", command)
    transfer.main()
    assert len(measured) == len({*measured}) == 8  # four methods, two numbers of images
    transfer.main()
    assert len(measured) == 8
    lines = tmp_path / "cells.jsonl"
    lines.write_text(lines.read_text()[:-20])
    transfer.main()
    transfer.main()
    assert measured[8:] == [measured[7]]


def test_numbers_come_with_students_interval() -> None:
    assert summary([0.78, 0.80, 0.82]) == "80.0 ± 2.0 (75 to 85)"  # 4.303 * 2 / sqrt(3) = 4.97
    assert summary([0.8]) == "80.0 (one seed)"
    assert summary([]) == ""
