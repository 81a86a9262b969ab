"""A folder of photos and a run on them, for the tests of the verbs."""

from pathlib import Path

import pytest

from tests.helpers.photos import TINY, picture
from vitkit.cli.main import run


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Mixed sizes and formats, a grey and a CMYK image, and two files that are no images."""
    root = tmp_path_factory.mktemp("photos")
    forms = {0: ("CMYK", "jpg"), 1: ("L", "png"), 2: ("RGBA", "webp")}
    for name, colour in (("red fruit", (200, 40, 40)), ("sky", (60, 90, 220))):
        (root / name).mkdir()
        for i in range(24):
            mode, ending = forms.get(i % 6, ("RGB", "png"))
            picture(colour, i).convert(mode).save(root / name / f"{i}.{ending}", lossless=True)
    (root / "sky" / "page.jpg").write_text("<html>not found</html>")
    whole = (root / "sky" / "3.png").read_bytes()
    (root / "sky" / "cut.png").write_bytes(whole[: len(whole) // 2])
    (root / ".cache").mkdir()
    return root


@pytest.fixture(scope="session")
def trained(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on the photos. Tests may add to its folder, and change none of its files."""
    out = tmp_path_factory.mktemp("runs") / "run"
    assert run(["train", "--data", str(photos), "--out", str(out), *TINY]) == 0
    return out
