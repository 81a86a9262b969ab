"""`vitkit inspect`: the pictures of a model, and why some are missing."""

from pathlib import Path

import pytest

import vitkit
from tests.helpers.photos import picture, saved
from vitkit.cli.main import run
from vitkit.jobs.inspect import place_of_pictures

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")


def test_inspect_draws_the_papers_figures(
    trained: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = {"filters", "positions", "attention-distance", "attention-rollout"}
    assert run(["inspect", str(trained)]) == 0
    written = {path.name for path in (trained / "inspect").iterdir()}
    assert written == {f"{name}.{kind}" for name in names for kind in ("png", "svg")}
    assert run(["inspect", str(trained), "--images", str(photos / "sky"), "--out", "pictures"]) == 0
    assert {path.stem for path in (tmp_path / "pictures").iterdir()} == names
    model = vitkit.create_model("ViT-16x2x2/4", num_classes=3, image_size=16)
    official = vitkit.save_model(model, tmp_path / "official.npz", format="official")
    assert run(["inspect", str(official), "--out", "weights"]) == 0
    assert {path.stem for path in (tmp_path / "weights").iterdir()} == {"filters", "positions"}
    assert "--images" in capsys.readouterr().out


def test_inspect_measures_on_as_many_images_as_the_paper(tmp_path: Path) -> None:
    (tmp_path / "many").mkdir()
    for i in range(130):
        picture((90, 90, 90), i).save(tmp_path / "many" / f"{i}.png")
    model = saved("ViT-8x1x2/8", 2, tmp_path / "model")
    assert run(["inspect", model, "--images", "many", "--out", "pictures"]) == 0
    assert "128 images of 16 x 16 pixels" in (tmp_path / "pictures" / "attention-distance.svg").read_text()
    figure = (tmp_path / "pictures" / "attention-rollout.svg").read_text()
    assert "predicted class" in figure


def test_why_there_are_no_pictures_of_attention(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, size, reason in (
        ("BiT-R50x1", 32, "a ResNet has none"),
        ("Axial-ViT-16x1x2/4", 16, "along rows and columns"),
        ("ViT-16x1x2/16", 16, "one patch"),
        ("ViT-16x1x2/4", 16, "give some with --images"),
    ):
        model = saved(name, 2, tmp_path / name.replace("/", "-"), size)
        assert run(["inspect", model]) == 0
        said = capsys.readouterr().out
        assert reason in said and "Next: vitkit card" in said and "vitkit report" not in said


def test_pictures_of_a_model_by_address_are_put_here(tmp_path: Path) -> None:
    assert place_of_pictures("https://example.org/a/model.npz") == Path("inspect")
    assert place_of_pictures(str(tmp_path / "model.npz")) == tmp_path / "inspect"
