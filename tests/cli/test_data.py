"""`vitkit data check`, as people read it."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitkit.cli.main import run


@pytest.mark.parametrize(
    ("last", "sentence"),
    [
        ((6, 9), "sizes (height x width): all 6x9 formats"),
        ((12, 8), "sizes (height x width): 6x8 to 12x9, median 6x9; most common 6x9 (7), 12x8 (1)"),
    ],
)
def test_sizes_are_one_size_where_all_images_have_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], last: tuple[int, int], sentence: str
) -> None:
    draw = np.random.default_rng(0)
    for number in range(8):
        size = last if number == 7 else (6, 9)
        path = tmp_path / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (*size, 3), dtype=np.uint8)).save(path)
    assert run(["data", "check", str(tmp_path)]) == 0
    assert sentence in " ".join(capsys.readouterr().out.split())


def test_images_are_shown_as_the_options_of_training_make_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["data", "show", "digits", "--images", "2", "--versions", "3"]) == 0
    said = capsys.readouterr().out
    assert "a crop of 25% to 100% of the area" in said  # as vitkit finetune does by default
    assert "vitkit train --recipe digits" in said and (tmp_path / "digits-views.html").exists()
    options = ["--image-size", "32", "--rotate", "20", "--no-flip", "--seed", "3", "--out", "sheet.png"]
    assert run(["data", "show", "digits", "--recipe", "digits", *options]) == 0
    said = capsys.readouterr().out
    assert "turned by up to 20 degrees each way" in said and "mirrored" not in said
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.width > 6 * 32
    for wrong, message in (
        (["--runs", "2"], "without --runs"),
        (["--out", "digits.pdf"], "ends in .html or .png"),
        (["--images", "0"], "images is from 1 to 100"),
    ):
        assert run(["data", "show", "digits", *wrong]) != 0
        assert message in " ".join(capsys.readouterr().err.split())
