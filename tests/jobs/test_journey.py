"""The way of a user beside training: checks of images, listeners, pictures, the report again, mistakes."""

import shutil
from collections.abc import Generator
from pathlib import Path

import pytest

import vitkit
from tests.helpers.cli import Cli
from tests.helpers.photos import noise_images, saved
from tests.jobs.hearing import Hearing
from vitkit.cli.main import run
from vitkit.data.config import Splits
from vitkit.jobs.data_show import check
from vitkit.jobs.inspect import place_of_pictures
from vitkit.jobs.predict import predict_images
from vitkit.runs import machine

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")


def test_jobs_print_nothing_and_tell_a_listener(
    trained: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy, heard = shutil.copytree(trained, tmp_path / "copy"), Hearing()
    images = [photos / "sky" / "3.png", Path("nowhere.png")]
    vitkit.evaluate(copy)
    evaluation = vitkit.evaluate(copy, batch_size=4, listener=heard)
    vitkit.inspect(copy, images, out=tmp_path / "pictures", listener=heard)
    vitkit.write_report(copy, listener=heard)
    check(str(photos), splits=Splits(val_fraction=0.2), listener=heard)
    predictions = predict_images(copy, images, listener=heard)
    assert isinstance(predictions, Generator)
    assert [predicted.path.name for predicted in predictions] == ["3.png", "nowhere.png"]
    assert capsys.readouterr() == ("", "")
    assert heard.loops == [
        *("listing images", "evaluating test", "looking for training images among the others"),
        *("drawing pictures", "writing the report"),
        *("listing images", "reading images", "listing images", "predicting"),
    ]
    assert heard.steps["reading images"] == [(done, 50) for done in range(1, 51)]
    count = evaluation.result.count + evaluation.result.bad
    assert [done for done, _ in heard.steps["evaluating test"]] == [*range(4, count, 4), count]
    assert heard.done["predicting"] == 2
    (note,) = heard.notes
    assert note.startswith("nowhere.png: ")


def test_inspect_draws_the_papers_figures(trained: Path, photos: Path, tmp_path: Path) -> None:
    names = {"filters", "positions", "attention-distance", "attention-rollout"}
    assert run(["inspect", str(trained)]) == 0
    written = {path.name for path in (trained / "inspect").iterdir()}
    assert written == {f"{name}.{kind}" for name in names for kind in ("png", "svg")}
    assert run(["inspect", str(trained), "--images", str(photos / "sky"), "--out", "pictures"]) == 0
    assert {path.stem for path in (tmp_path / "pictures").iterdir()} == names


def test_why_there_are_no_pictures_of_attention(tmp_path: Path, cli: Cli) -> None:
    for name, size, reason in (
        ("BiT-R2-2-2x0.5", 32, "a ResNet has none"),
        ("Axial-ViT-16x1x2/4", 16, "along rows and columns"),
        ("ViT-16x1x2/16", 16, "one patch"),
        ("ViT-16x1x2/4", 16, "give some with --images"),
    ):
        model = saved(name, 2, tmp_path / name.replace("/", "-"), size)
        said = cli(["inspect", model]).out
        assert reason in said and "Next: vitkit card" in said and "vitkit report" not in said


def test_pictures_of_a_model_by_address_are_put_here(tmp_path: Path) -> None:
    assert place_of_pictures("https://example.org/a/model.npz") == Path("inspect")
    assert place_of_pictures(str(tmp_path / "model.npz")) == tmp_path / "inspect"


def test_training_warns_of_memory_that_decoding_may_lack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    monkeypatch.setattr(machine, "available_memory", lambda: 1000)
    root = noise_images(tmp_path / "data")
    tiny = ("--model", "ViT-8x1x1/8", "--image-size", "16", "--batch-size", "8", "--warmup-steps", "0")
    command = ["train", "--data", str(root), "--epochs", "1", "--workers", "0", *tiny]
    for in_memory in (True, False):
        options = [] if in_memory else ["--memory-gib", "0"]
        shown = cli([*command, *options, "--out", str(tmp_path / f"run-{in_memory}")]).text
        assert ("train: Decoding may take" in shown) == ("Give fewer --workers" in shown) == (not in_memory)
