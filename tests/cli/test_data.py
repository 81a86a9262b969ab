"""`vitkit data check`, as people read it."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.helpers.cli import Cli
from vitkit.cli.main import run


def test_a_check_lists_everything_and_then_fails(tmp_path: Path, cli: Cli) -> None:
    draw = np.random.default_rng(0)
    for name, count in {"ants": 20, "bees": 20, "Bees": 1}.items():
        (tmp_path / name).mkdir()
        for number in range(count):
            pixels = draw.integers(0, 256, (40, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"{number}.png")
    shutil.copy(tmp_path / "ants" / "3.png", tmp_path / "bees" / "mislabelled.png")
    shutil.copy(tmp_path / "ants" / "3.png", tmp_path / "loose.png")
    (tmp_path / "ants" / "page.jpg").write_text("<!DOCTYPE html>")
    (tmp_path / "wasps").mkdir()
    printed = cli(["data", "check", str(tmp_path)], 1)
    out, err = (" ".join(text.split()) for text in printed)
    for sentence in (
        "1 image outside any class folder ignored.",
        "under several names, so that some are wrong: ants/3.png = bees/mislabelled.png.",
        "ants/page.jpg: an HTML page",
        "Files with the same pixels (1)",
        "! 1 of 43 files cannot be read",
        "! Classes with fewer than 10 training images: Bees (1), wasps (0).",
        "! Names of classes differ in upper and lower case alone: Bees, bees.",
        "! 1 group of equal images carries different labels: some of them are wrong.",
    ):
        assert sentence in out
    assert "Nothing stands out" not in out and "Next" not in out
    assert err.startswith("vitkit: Training refuses these images as they are:")
    assert err.endswith("no images in the class folder wasps. Add images, or remove the folder.")
    (problem,) = json.loads(cli(["data", "check", str(tmp_path), "--json"], 1).out)["problems"]
    (tmp_path / "wasps").rmdir()
    assert "class folder wasps" in problem and run(["data", "check", str(tmp_path)]) == 0


def test_images_are_shown_as_the_options_of_training_make_them(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "sizes (height x width): all 8x8" in cli(["data", "check", "digits"]).out
    assert run(["data", "show", "digits", "--images", "2", "--versions", "3"]) == 0
    assert (tmp_path / "digits-views.html").exists()
    options = ["--image-size", "32", "--rotate", "20", "--no-flip", "--seed", "3", "--out", "sheet.png"]
    said = cli(["data", "show", "digits", "--recipe", "digits", *options]).out
    assert "turned by up to 20 degrees each way" in said and "mirrored" not in said
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.width > 6 * 32
    for wrong, message in (
        (["--out", "digits.pdf"], "ends in .html or .png"),
        (["--images", "0"], "images is from 1 to 100"),
    ):
        assert message in cli(["data", "show", "digits", *wrong], 1).text
