"""Advice before anyone waits: too few images, the recipe, the order of files."""

import contextlib
import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitkit
from vitkit.cli.main import run
from vitkit.data.check import advise_on_start, suggest_recipe
from vitkit.data.layouts.image_paths import find_images


@pytest.mark.parametrize(
    ("count", "classes", "opening"),
    [
        (1, 2, "1 training image: do not train from scratch"),
        (1999, 2, "1,999 training images: do not train from scratch"),
        (2000, 20, ""),
        (2000, 21, "2,000 training images of 21 classes, 95 of each: do not train from scratch"),
        (50_000, 10, ""),
    ],
)
def test_few_images_are_said_to_be_few(count: int, classes: int, opening: str) -> None:
    advice = advise_on_start("photos", count, classes)
    assert advice.startswith(opening) and bool(advice) == bool(opening)
    assert not advice or "start from a checkpoint (vitkit finetune photos chooses one)" in advice


def test_the_recipe_fits_the_sizes() -> None:
    assert suggest_recipe([(32, 32)] * 5 + [(480, 640)]) == "small-images-conv"
    assert suggest_recipe([(28, 28)]) == "small-images-conv"
    assert suggest_recipe([(28, 28)], has_model=True) == "small-images"
    assert suggest_recipe([(8, 8)]) == suggest_recipe([(64, 48)]) == "small-images"
    assert suggest_recipe([(32, 32)] + [(480, 640)] * 5) == "photos" == suggest_recipe([])


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for label, count in {"cats": 12, "dogs": 2}.items():
        for i in range(count):
            path = tmp_path / "my photos" / label / f"photo {i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = np.random.default_rng(i + 100 * (label == "dogs")).integers(
                0, 256, (16, 16, 3), np.uint8
            )
            Image.fromarray(pixels).save(path)
    return tmp_path / "my photos"


def test_data_check_says_what_to_do(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(["data", "check", str(photos), "--splits.val-fraction", "0", "--splits.test-fraction", "0"]) == 0
    )
    shown = " ".join(capsys.readouterr().out.split())
    assert "14 training images: do not train from scratch" in shown
    assert f"Next: vitkit finetune '{photos}'" in shown
    assert "vit-ti16-augreg-in21k (39 MB), vit-s16-augreg-in21k (120 MB)" in shown
    assert run(["data", "check", "digits"]) == 0
    assert "Next: vitkit train --recipe digits --data digits" in " ".join(capsys.readouterr().out.split())


def test_photo_2_comes_before_photo_10(photos: Path) -> None:
    names = [image.path.name for image in find_images([str(photos / "cats")])]
    assert names == [f"photo {i}.png" for i in range(12)]


def test_predictions_as_csv(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = vitkit.create_model("ViT-8x1x1/8", num_classes=2, image_size=16)
    vitkit.save_model(model, tmp_path / "model")
    (photos / "cats" / "photo 3.png").write_bytes(b"none")
    assert run(["predict", str(tmp_path / "model"), str(photos / "cats"), "--csv", "--top", "2"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "path,class,probability,class 2,probability 2,error"
    assert len(lines) == 13 and lines[3].startswith(f"{photos}/cats/photo 2.png,class ")
    assert lines[4].startswith(f"{photos}/cats/photo 3.png,,,,,") and not lines[4].endswith(",")
    first, second = (float(lines[1].split(",")[i]) for i in (2, 4))
    assert first >= second and first + second == pytest.approx(1, abs=1e-5)
    # No columns of a third class of two, even if the first image cannot be read.
    bad = str(photos / "cats" / "photo 3.png")
    assert run(["predict", str(tmp_path / "model"), bad, "--csv", "--top", "5"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "path,class,probability,class 2,probability 2,error"
    assert lines[1].startswith(f"{bad},,,,,") and len(lines) == 2
    assert run(["predict", str(tmp_path / "model"), str(photos), "--csv", "--json"]) == 1


def test_a_class_that_is_a_formula_is_none_in_csv(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = vitkit.create_model("ViT-8x1x1/8", num_classes=2, image_size=16)
    model.card = replace(model.card, class_names=("=cmd|'/c calc'!A0", "-1"))
    vitkit.save_model(model, tmp_path / "model")
    (photos / "=1+1.png").write_bytes((photos / "cats" / "photo 2.png").read_bytes())
    with contextlib.chdir(photos):
        assert run(["predict", str(tmp_path / "model"), "=1+1.png", "--csv", "--top", "2"]) == 0
    _, (path, *cells) = csv.reader(capsys.readouterr().out.splitlines())
    assert path == "'=1+1.png" and {cells[0], cells[2]} == {"'=cmd|'/c calc'!A0", "-1"}
