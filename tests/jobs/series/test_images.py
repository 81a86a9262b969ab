"""A series goes on with the images that it began with, and with the folds that it cut."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.helpers.series import SMALL, SWEEP, Pretended, photos
from vitkit.data.config import Splits
from vitkit.data.sources import ImageData, open_data
from vitkit.errors import VitkitError
from vitkit.jobs import series as job
from vitkit.jobs.series import train_series
from vitkit.runs.config import Run
from vitkit.runs.series_options import SeriesOptions

pytestmark = pytest.mark.usefixtures("without_report")


def test_the_images_of_a_sweep_are_the_same_when_it_goes_on(tmp_path: Path, pretended: Pretended) -> None:
    tried = photos(tmp_path / "tried", "train", "val")
    run = replace(SMALL, data=str(photos(tmp_path / "all", "train", "test")))
    options, pretended.stop_at = replace(SWEEP, sweep_data=str(tried)), 2
    with pytest.raises(KeyboardInterrupt):
        train_series(run, tmp_path / "sweep", options)
    (tried / "val/dark/0.png").unlink()
    with pytest.raises(VitkitError, match=r"have changed since .*sweep was started"):
        train_series(run, tmp_path / "sweep", options)


def add_images(data: Path) -> None:
    for path in data.glob("*/*.png"):
        (path.parent / f"new-{path.name}").write_bytes(path.read_bytes())


def swap_classes(data: Path) -> None:
    (data / "bright").rename(data / "other")
    (data / "dark").rename(data / "bright")
    (data / "other").rename(data / "dark")


def blacken(data: Path) -> None:
    for path in sorted(data.glob("*/*.png"))[::3]:
        Image.new("RGB", (8, 8)).save(path)


RUNS, FOLDS = SeriesOptions(runs=3), SeriesOptions(cross_validate=3)


@pytest.mark.parametrize(
    ("options", "change"),
    [(SWEEP, add_images), (RUNS, add_images), (FOLDS, add_images), (FOLDS, swap_classes), (RUNS, blacken)],
)
def test_a_series_whose_images_changed_or_whose_record_of_them_is_lost_does_not_go_on(
    options: SeriesOptions, change: Callable[[Path], None], tmp_path: Path, pretended: Pretended
) -> None:
    data, out = photos(tmp_path / "data"), tmp_path / "series"
    run, pretended.stop_at = replace(SMALL, data=str(data)), 2
    with pytest.raises(KeyboardInterrupt):
        train_series(run, out, options)
    before, trained = (out / "series.json").read_bytes(), list(pretended.trained)
    change(data)
    with pytest.raises(VitkitError, match=r"changed since .* was started"):
        train_series(run, out, options)
    assert pretended.trained == trained and (out / "series.json").read_bytes() == before
    (out / "data.json").unlink()
    with pytest.raises(VitkitError, match=r"has no record of its images: expected a data\.json"):
        train_series(run, out, options)
    assert not (out / "data.json").exists()


def test_images_that_change_between_two_runs_of_a_series_end_it(
    tmp_path: Path, pretended: Pretended, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = photos(tmp_path / "data")

    def train_and_add(run: Run, folder: Path, **options: Any) -> Path:
        made = pretended.train(run, folder, **options)
        add_images(data)
        return made

    monkeypatch.setattr(job, "train_run", train_and_add)
    with pytest.raises(VitkitError, match="files were added, removed or moved"):
        train_series(replace(SMALL, data=str(data)), tmp_path / "series", FOLDS)
    assert pretended.trained == ["fold-0"]


def test_other_groups_are_other_folds(tmp_path: Path, pretended: Pretended) -> None:
    """The images, their names and labels stay, and so does the first fold: two images of the others are
    exchanged."""
    photos(tmp_path / "data")
    rows = [(str(path.relative_to(tmp_path)), path.parent.name) for path in sorted(tmp_path.rglob("*.png"))]
    table, groups = tmp_path / "list.csv", [number // 2 for number in range(30)]

    def first_fold() -> ImageData:
        lines = [f"{path},{label},{group}" for (path, label), group in zip(rows, groups, strict=True)]
        table.write_text("\n".join(["path,label,patient", *lines]))
        return open_data(str(table), replace(splits, fold=0, folds=3))

    splits = Splits(val_fraction=0, group="patient")
    before = first_fold()
    run = replace(SMALL, data=str(table), splits=splits)
    pretended.stop_at = 2
    with pytest.raises(KeyboardInterrupt):
        train_series(run, tmp_path / "folds", FOLDS)
    assert before.fold_of is not None
    image, other = (list(before.fold_of[:15]).index(fold) for fold in (1, 2))  # of the same class
    groups[image], groups[other] = groups[other], groups[image]
    assert first_fold().fingerprint() == before.fingerprint()
    with pytest.raises(VitkitError, match="have changed since"):
        train_series(run, tmp_path / "folds", FOLDS)
