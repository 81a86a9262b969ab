"""The benchmark that fine-tunes on folders of photos: what is drawn, and what is not done again."""

import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from benchmarks import photos
from benchmarks.photos import Bench, Outcome, Training, best_rate, table
from PIL import Image


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Photos of ten classes, 40 of each to train on and 2 to test on, as Parquet in the hub's layout."""
    draw = np.random.default_rng(0)
    names = [f"class {number}" for number in range(10)]
    info = {"info": {"features": {"label": {"names": names}}}}
    for split, each in (("train", 40), ("test", 2)):
        images, labels = [], [number % 10 for number in range(10 * each)]
        for _ in labels:
            file = io.BytesIO()
            Image.fromarray(draw.integers(0, 256, (4, 4, 3), dtype=np.uint8)).save(file, "JPEG")
            images.append({"bytes": file.getvalue()})
        rows = pa.table({"image": images, "label": labels})
        pq.write_table(
            rows.replace_schema_metadata({"huggingface": json.dumps(info)}), tmp_path / f"{split}-0.parquet"
        )
    return tmp_path


def contents(folder: Path) -> dict[str, set[bytes]]:
    """Read the files of class folders, by class."""
    return {label.name: {file.read_bytes() for file in label.iterdir()} for label in folder.iterdir()}


def test_folders_are_drawn_evenly_and_the_held_out_tenth_is_not_trained_on(source: Path) -> None:
    bench = Bench(Path("start"), source, source / "out", 64)
    whole, held = bench.folder(200, 0, held_out=False), bench.folder(200, 0, held_out=True)
    drawn, left, out = contents(whole / "train"), contents(held / "train"), contents(held / "test")
    assert [len(files) for files in drawn.values()] == [20] * 10
    assert [len(files) for files in contents(whole / "test").values()] == [2] * 10
    assert sum(map(len, out.values())) == 20 and set(out) == set(drawn)
    for name, files in drawn.items():
        assert files == left[name] | out[name] and not left[name] & out[name]
    other = contents(bench.folder(200, 1, held_out=False) / "train")
    assert other != drawn


def test_what_is_done_is_not_done_again_and_the_best_rate_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[Training] = []

    def train(_bench: Bench, training: Training) -> tuple[int, int, float, float]:
        trained.append(training)
        assert training.held_out and training.photos == photos.SWEPT
        rate = training.rate or 0.0
        return 10, 32, 0.5 if rate > 4e-4 else 0.4, abs(rate - 1e-3)  # three are as accurate as each other

    monkeypatch.setattr(Bench, "_train", train)
    bench = Bench(Path("start"), tmp_path, tmp_path, 64)
    assert best_rate(bench, "timm") == 1.25e-3  # of the lowest loss among the most accurate
    assert len(trained) == len(photos.RATES)
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write('\n{"training": {"side": "ti')  # a run was killed while it wrote
    assert best_rate(bench, "timm") == 1.25e-3
    assert len(trained) == len(photos.RATES)
    assert best_rate(bench, "swept") == best_rate(bench, "swept") == 1.25e-3
    assert len(trained) == 2 * len(photos.RATES)


def test_the_table_gives_the_mean_and_every_folder() -> None:
    outcomes = [
        Outcome(Training("timm", 50, seed, 5e-4), 71, 32, accuracy, 2.0, 60.0 * (1 + seed), 100.0)
        for seed, accuracy in enumerate((0.30, 0.35, 0.34))
    ]
    row = table([outcomes]).splitlines()[-1]
    assert row == "| 50 | timm | 0.0005 | 71 x 32 | **33.0 %** | 30.0, 35.0, 34.0 | 2.0 |"
