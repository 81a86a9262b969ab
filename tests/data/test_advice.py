"""Advice before anyone waits: too few images, the recipe, the order of files."""

import contextlib
import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitkit
from tests.helpers.image_folders import plant
from vitkit.cli.main import run
from vitkit.data.check import advise_on_start, suggest_recipe
from vitkit.data.layouts.image_paths import find_images


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
    assert code == 1 and lines[0] == "path,class,probability,class 2,probability 2,error"
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
