"""`vitkit data check`, as people read it."""

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image

from tests.helpers.cli import Cli
from tests.helpers.photos import noise_image
from vitkit.cli.main import run


def test_a_check_lists_everything_and_then_fails(tmp_path: Path, cli: Cli) -> None:
    files = [f"{name}/{number}.png" for name in ("ants", "bees") for number in range(20)]
    for seed, file in enumerate([*files, "Bees/0.png"]):
        noise_image(tmp_path / file, seed)
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
    assert err.endswith("no images in the class folder wasps. Add images, or remove the folder.")
    (problem,) = json.loads(cli(["data", "check", str(tmp_path), "--json"], 1).out)["problems"]
    (tmp_path / "wasps").rmdir()
    assert "class folder wasps" in problem and run(["data", "check", str(tmp_path)]) == 0


@pytest.mark.usefixtures("in_an_empty_folder")
def test_images_are_shown_as_the_options_of_training_make_them(cli: Cli) -> None:
    assert "sizes (height x width): all 8x8" in cli(["data", "check", "digits"]).out
    assert run(["data", "show", "digits", "--images", "2", "--versions", "3"]) == 0
    assert Path("digits-views.html").exists()
    options = ["--image-size", "32", "--rotate", "20", "--no-flip", "--seed", "3", "--out", "sheet.png"]
    said = cli(["data", "show", "digits", "--recipe", "digits", *options]).out
    assert "turned by up to 20 degrees each way" in said and "mirrored" not in said
    with Image.open("sheet.png") as sheet:
        assert sheet.width > 6 * 32
    for wrong, message in (
        (["--out", "digits.pdf"], "ends in .html or .png"),
        (["--images", "0"], "images is from 1 to 100"),
    ):
        assert message in cli(["data", "show", "digits", *wrong], 1).text
