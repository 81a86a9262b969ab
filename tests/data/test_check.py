"""The check finds what was planted, and nothing in data without fault."""

import json
import shutil
from pathlib import Path

from PIL import Image

from tests.helpers.image_folders import WHOLE
from tests.helpers.photos import noise_image
from vitkit.data.check import BadFile, Copy, advise_on_start, check_data, suggest_recipe
from vitkit.data.config import Loading
from vitkit.data.sources import open_data


def plant_noise(root: Path, folder: str, count: int, seed: int, size: tuple[int, int] = (40, 32)) -> None:
    for number in range(count):
        noise_image(root / folder / f"{number:03d}.png", 100 * seed + number, size)


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


def test_data_without_an_image_that_can_be_read(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.jpg").write_bytes(b"words")
    report = check_data(open_data(str(tmp_path), WHOLE))
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
    """The quota is the one that training starts with."""
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
    assert check_data(data, bad_quota=Loading().bad_quota) == check_data(data)


# Advice before anyone waits: too few images, the recipe, the order of files


def test_few_images_are_said_to_be_few() -> None:
    for count, classes, opening in (
        (1, 2, "1 training image: do not train from scratch"),
        (1999, 2, "1,999 training images: do not train from scratch"),
        (2000, 21, "2,000 training images of 21 classes, 95 of each: do not train from scratch"),
    ):
        advice = advise_on_start("my photos", count, classes)
        assert advice.startswith(opening)
        assert "start from a checkpoint (vitkit finetune 'my photos' chooses one)" in advice
    assert advise_on_start("photos", 2000, 20) == advise_on_start("photos", 50_000, 10) == ""


def test_the_recipe_fits_the_sizes() -> None:
    assert suggest_recipe([(32, 32)] * 5 + [(480, 640)]) == "small-images-conv"
    assert suggest_recipe([(28, 28)]) == "small-images-conv"
    assert suggest_recipe([(28, 28)], has_model=True) == "small-images"
    assert suggest_recipe([(8, 8)]) == suggest_recipe([(64, 48)]) == "small-images"
    assert suggest_recipe([(32, 32)] + [(480, 640)] * 5) == "photos" == suggest_recipe([])
