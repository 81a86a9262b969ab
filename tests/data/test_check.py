"""The check finds what was planted, and nothing in data without fault."""

import contextlib
import csv
import json
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitkit
from tests.helpers.image_folders import plant
from vitkit.cli.main import run
from vitkit.data.check import BadFile, Copy, advise_on_start, check_data, suggest_recipe
from vitkit.data.config import Loading, Preprocessing, Splits
from vitkit.data.layouts.image_paths import find_images
from vitkit.data.sources import open_data
from vitkit.data.stream.loader import TrainLoader
from vitkit.errors import VitkitError

WHOLE = Splits(0, 0)


def plant_noise(root: Path, folder: str, count: int, seed: int, size: tuple[int, int] = (40, 32)) -> None:
    (root / folder).mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    for number in range(count):
        pixels = rng.integers(0, 256, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / folder / f"{number:03d}.png")


def test_data_without_fault(tmp_path: Path) -> None:
    plant_noise(tmp_path, "a", 12, 0)
    plant_noise(tmp_path, "b", 12, 1)
    seen: list[tuple[int, int]] = []
    report = check_data(open_data(str(tmp_path), WHOLE), lambda done, total: seen.append((done, total)))
    assert report.counts == {"train": {"a": 12, "b": 12}}
    assert report.sizes is not None
    assert report.sizes.smallest == report.sizes.median == report.sizes.largest == (40, 32)
    assert report.sizes.common == (((40, 32), 24),)
    assert (report.formats, report.modes) == ({"PNG": 24}, {"RGB": 24})
    assert (report.bad, report.duplicates, report.contradictions, report.leaks) == ((), (), (), {})
    assert report.warnings == ()
    assert seen == [(done, 24) for done in range(1, 25)]
    digits = check_data(open_data("digits"))
    assert digits.bad == () and digits.leaks == {}
    assert digits.warnings == ("1,797 images are smaller than 32 pixels on one side.",)


def test_counts_of_one_and_of_none(tmp_path: Path) -> None:
    for seed, folder in enumerate(("train/a", "train/b", "test/b")):
        plant_noise(tmp_path / "one", folder, 12, seed)
    plant_noise(tmp_path / "one", "test/a", 1, 9, (20, 20))
    shutil.copy(tmp_path / "one/train/a/000.png", tmp_path / "one/test/b/leak.png")
    warnings = " ".join(check_data(open_data(str(tmp_path / "one"), WHOLE)).warnings)
    assert "1 image is smaller than 32 pixels" in warnings
    assert "Leak: 1 image of test is in train too, pixel for pixel; remove it from train" in warnings
    assert "1 group of equal images carries different labels" in warnings
    for name in ("a", "b"):
        (tmp_path / "none" / name).mkdir(parents=True)
        (tmp_path / "none" / name / "x.jpg").write_bytes(b"words")
    report = check_data(open_data(str(tmp_path / "none"), WHOLE))
    assert report.sizes is None and len(report.bad) == 2


def test_every_fault_is_found(tmp_path: Path) -> None:
    for split, seed in (("train", 0), ("test", 10)):
        plant_noise(tmp_path, f"{split}/a", 50, seed)
        plant_noise(tmp_path, f"{split}/b", 4, seed + 1, (20, 60))
    train, test = tmp_path / "train", tmp_path / "test"
    (train / "a" / "broken.jpg").write_bytes(b"")
    # The same pixels in another format: a leak that a comparison of files would miss.
    Image.open(train / "a" / "000.png").save(test / "a" / "leak.bmp")
    shutil.copy(train / "a" / "000.png", test / "b" / "leak.png")
    shutil.copy(train / "a" / "001.png", train / "a" / "again.png")
    Image.new("LA", (40, 40), (9, 255)).save(train / "a" / "alpha.png")
    report = check_data(open_data(str(tmp_path), WHOLE))

    assert report.counts["train"] == {"a": 53, "b": 4}
    assert report.bad == (BadFile("train", "train/a/broken.jpg", "the file is empty (0 bytes)"),)
    assert report.modes == {"RGB": 111, "LA": 1}
    assert report.formats == {"PNG": 111, "BMP": 1}
    assert report.sizes is not None
    assert (report.sizes.smallest, report.sizes.largest) == ((20, 32), (40, 60))
    assert report.sizes.common[0] == ((40, 32), 103)
    leak = (
        Copy("train", "train/a/000.png", "a"),
        Copy("test", "test/a/leak.bmp", "a"),
        Copy("test", "test/b/leak.png", "b"),
    )
    repeat = (Copy("train", "train/a/001.png", "a"), Copy("train", "train/a/again.png", "a"))
    assert set(report.duplicates) == {leak, repeat}
    assert report.contradictions == (leak,)
    assert report.leaks == {"train-test": 2}
    said = " ".join(report.warnings)
    for warning in (
        "1 of 113 files cannot be read",
        "8 images are smaller than 32 pixels",
        "converted to RGB: 1 LA",
        "fewer than 10 training images: b (4)",
        "unbalanced: 53 training images of a, 4 of b",
        "Leak: 2 images of test are in train too",
        "1 image of train repeats another image of train",
        "1 group of equal images carries different labels",
    ):
        assert warning in said
    assert json.loads(json.dumps(report.to_json()))["leaks"] == {"train-test": 2}


def test_more_bad_files_than_training_allows(tmp_path: Path) -> None:
    """What is announced is what training does with the quota it starts with."""
    for seed, folder in enumerate(("train/a", "train/b", "test/a", "test/b")):
        plant_noise(tmp_path, folder, 20, seed)
    for split, count in (("test", 5), ("train", 3)):  # 5 % of 43 are 2.15, which is rounded up
        for number in range(count):
            (tmp_path / split / "a" / f"bad{number}.png").touch()
    assert check_data(open_data(str(tmp_path), WHOLE)).warnings == (
        "8 of 88 files cannot be read; training and evaluation leave them out.",
    )
    (tmp_path / "train" / "a" / "bad3.png").touch()
    data = open_data(str(tmp_path), WHOLE)
    assert check_data(data).warnings == (
        "9 of 89 files cannot be read, 4 of them among the 44 to train on, more than the 3 allowed: vitkit "
        "train will stop. Repair or remove them, or raise --bad-quota to 0.1.",
    )

    samples, size = data.splits["train"], Preprocessing((8, 8))
    for bad_quota in (0.1, Loading().bad_quota):
        loader = TrainLoader(samples, size, None, batch_size=44, seed=0, bad_quota=bad_quota)
        stops = pytest.raises(VitkitError, match=r"4 of 44 training files .* more than the 3 allowed")
        with nullcontext() if bad_quota == 0.1 else stops:
            next(loader.batches(0, 1))
    assert check_data(data, bad_quota=Loading().bad_quota) == check_data(data)


# Advice before anyone waits: too few images, the recipe, the order of files


def test_few_images_are_said_to_be_few() -> None:
    for count, classes, opening in (
        (1, 2, "1 training image: do not train from scratch"),
        (1999, 2, "1,999 training images: do not train from scratch"),
        (2000, 21, "2,000 training images of 21 classes, 95 of each: do not train from scratch"),
    ):
        advice = advise_on_start("photos", count, classes)
        assert advice.startswith(opening)
        assert "start from a checkpoint (vitkit finetune photos chooses one)" in advice
    assert advise_on_start("photos", 2000, 20) == advise_on_start("photos", 50_000, 10) == ""


def test_the_recipe_fits_the_sizes() -> None:
    assert suggest_recipe([(32, 32)] * 5 + [(480, 640)]) == "small-images-conv"
    assert suggest_recipe([(28, 28)]) == "small-images-conv"
    assert suggest_recipe([(28, 28)], has_model=True) == "small-images"
    assert suggest_recipe([(8, 8)]) == suggest_recipe([(64, 48)]) == "small-images"
    assert suggest_recipe([(32, 32)] + [(480, 640)] * 5) == "photos" == suggest_recipe([])


def test_data_check_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = plant(tmp_path / "my photos", {"cats": 12, "dogs": 2})
    assert run(["data", "check", str(folder), "--splits.test-fraction", "0"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "12 training images: do not train from scratch" in shown
    assert f"Next: vitkit finetune '{folder}'" in shown  # as a shell reads it


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "my photos"
    folder.mkdir()
    for number in range(12):
        pixels = np.random.default_rng(number).integers(0, 256, (16, 16, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"photo {number}.png")
    return folder


def test_predictions_as_csv(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [image.path.name for image in find_images([str(photos)])]
    assert names == [f"photo {number}.png" for number in range(12)]  # photo 2 comes before photo 10
    model = vitkit.create_model("ViT-8x1x1/8", num_classes=2, image_size=16)
    model.card = replace(model.card, class_names=("=cmd|'/c calc'!A0", "-1"))
    vitkit.save_model(model, tmp_path / "model")
    (photos / "photo 3.png").write_bytes(b"none")

    def predicted(path: str, *options: str) -> tuple[int, list[str]]:
        return run(
            ["predict", str(tmp_path / "model"), path, "--csv", *options]
        ), capsys.readouterr().out.splitlines()

    code, lines = predicted(str(photos), "--top", "2")
    assert code == 1 and lines[0] == "path,class,probability,class 2,probability 2,none_of_these,error"
    assert len(lines) == 13 and lines[3].startswith(f"{photos}/photo 2.png,")
    assert lines[4].startswith(f"{photos}/photo 3.png,,,,,") and not lines[4].endswith(",")
    first, second = (float(lines[1].split(",")[i]) for i in (2, 4))
    assert first >= second and first + second == pytest.approx(1, abs=1e-5)
    # No columns of a third class of two, even if the first image cannot be read.
    code, unread = predicted(bad := str(photos / "photo 3.png"), "--top", "5")
    assert code == 1 and unread[0] == lines[0] and unread[1].startswith(f"{bad},,,,,") and len(unread) == 2
    assert predicted(str(photos), "--json")[0] == 1
    # A class or a path that is a formula is none in CSV.
    (photos / "=1+1.png").write_bytes((photos / "photo 2.png").read_bytes())
    with contextlib.chdir(photos):
        code, lines = predicted("=1+1.png", "--top", "2")
    _, (path, *cells) = csv.reader(lines)
    assert code == 0 and path == "'=1+1.png" and {cells[0], cells[2]} == {"'=cmd|'/c calc'!A0", "-1"}
