"""`vitkit data check`, as people read it."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitkit.cli.main import run


@pytest.mark.parametrize(
    ("last", "words"),
    [
        ((6, 9), "sizes (height x width): all 6x9 formats"),
        ((12, 8), "sizes (height x width): 6x8 to 12x9, median 6x9; most common 6x9 (7), 12x8 (1)"),
    ],
)
def test_sizes_are_one_size_where_all_images_have_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], last: tuple[int, int], words: str
) -> None:
    draw = np.random.default_rng(0)
    for number in range(8):
        size = last if number == 7 else (6, 9)
        path = tmp_path / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(draw.integers(0, 256, (*size, 3), dtype=np.uint8)).save(path)
    assert run(["data", "check", str(tmp_path)]) == 0
    assert words in " ".join(capsys.readouterr().out.split())
