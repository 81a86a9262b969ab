"""The way of a user beside training: checks of images, listeners, pictures, the report again, mistakes."""

import json
import os
import shutil
from collections.abc import Generator
from pathlib import Path

import pytest

import vitkit
from tests.helpers.photos import noise_images, picture, saved
from tests.jobs.hearing import Hearing
from vitkit.cli.main import run
from vitkit.data.config import Splits
from vitkit.data.paths import absolute_spec
from vitkit.jobs.data_show import check
from vitkit.jobs.inspect import place_of_pictures
from vitkit.jobs.predict import predict_images
from vitkit.runs import machine
from vitkit.runs.trained_model import open_model_data

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
    predictions = predict_images(copy, images, listener=heard)
    assert isinstance(predictions, Generator)
    assert [predicted.path.name for predicted in predictions] == ["3.png", "nowhere.png"]
    assert capsys.readouterr() == ("", "")
    assert heard.loops == [
        *("listing images", "evaluating test", "looking for training images among the others"),
        *("drawing pictures", "writing the report"),
        *("listing images", "predicting"),
    ]
    count = evaluation.result.count + evaluation.result.bad
    assert [done for done, _ in heard.steps["evaluating test"]] == [*range(4, count, 4), count]
    assert heard.done["predicting"] == 2
    (note,) = heard.notes
    assert note.startswith("nowhere.png: ")


def test_the_report_can_be_written_again_also_without_the_images(
    trained: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(trained, tmp_path / "copy")
    record = json.loads((copy / "model.json").read_text())
    record["data"]["spec"] = str(tmp_path / "gone")
    (copy / "model.json").write_text(json.dumps(record))
    assert run(["report", str(copy)]) == 0
    captured = capsys.readouterr()
    assert "report.html" in captured.out and "gone" in captured.err
    assert run(["report", str(photos)]) == 1
    assert "no run folder" in capsys.readouterr().err


def test_mistakes_get_one_message_each(capsys: pytest.CaptureFixture[str]) -> None:
    for line, message in (
        ("train --recipe digits --model ViT-Q/4", "No model is named"),
        ("train --recipe digits --optimizer adam", "adamw"),
        ("train --recipe digits --threads 0", "threads"),
        ("train --recipe digits --beta1 1.5", "beta1"),
        ("train --recipe digits --representation-size -3", "representation_size"),
        ("train --recipe digits --splits.val-fraction 0 --patience 2", "validation"),
        ("train --resume nowhere", "no run folder"),
        ("train --resume x --out y", "--out"),
        ("inspect nowhere", "No checkpoint"),
        ("models x*", "No name matches"),
        ("models vit-b/160", "Near it: ViT-B/16"),
        ("models ViT-7x1x2/4", "width 7"),
        ("data check nowhere", "nowhere"),
        ("data check ~nobody_of_this_name/x", "~nobody_of_this_name"),
    ):
        assert run(line.split()) == 1, line
        captured = capsys.readouterr()
        assert message in captured.err + captured.out and "Traceback" not in captured.err
    assert run(["--version"]) == 0
    assert vitkit.__version__ in capsys.readouterr().out


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
        ("BiT-R2-2-2x0.5", 32, "a ResNet has none"),
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


def test_a_link_to_itself_as_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert absolute_spec(str(loop)) == str(loop)
    assert absolute_spec(str(tmp_path / "there")) == str((tmp_path / "there").resolve())
    assert absolute_spec("a\0b").endswith("a\0b")
    for command in (["train", "--data", str(loop)], ["data", "check", str(loop)]):
        assert run(command) == 1
        assert "Too many levels of symbolic links" in " ".join(capsys.readouterr().err.split())
    model = vitkit.create_model("ViT-8x1x1/8", num_classes=2, image_size=16)
    with pytest.raises(vitkit.VitkitError, match="Too many levels of symbolic links"):
        open_model_data(model, str(loop))


@pytest.mark.timeout(600)
def test_a_check_names_what_is_no_image_or_none_that_can_be_read(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = noise_images(tmp_path / "data")
    os.mkfifo(root / "a" / "x.png")
    for folder, phrases in (
        (photos, ("red fruit", "page.jpg", "cut.png", "CMYK", "vitkit finetune ")),
        (root, ("a pipe, a socket or a device, not a regular file",)),
    ):
        assert run(["data", "check", str(folder)]) == 0
        printed = capsys.readouterr().out
        assert all(phrase in printed for phrase in phrases)
    assert run(["data", "check", str(photos), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["bad"]) == 2


def test_a_check_is_silent_and_tells_how_far_it_is(photos: Path, capfd: pytest.CaptureFixture[str]) -> None:
    heard = Hearing()
    made = check(str(photos), splits=Splits(val_fraction=0.2), listener=heard)
    assert capfd.readouterr() == ("", "")
    steps = [(done, 50) for done in range(1, 51)]
    assert heard.steps["reading images"] == steps and "listing images" in heard.steps
    assert sum(sum(counts.values()) for counts in made.counts.values()) in (48, 50)
    assert made.notes and made.to_json()["notes"] == made.notes


def test_training_warns_of_memory_that_decoding_may_lack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "available_memory", lambda: 1000)
    root = noise_images(tmp_path / "data")
    tiny = ("--model", "ViT-8x1x1/8", "--image-size", "16", "--batch-size", "8", "--warmup-steps", "0")
    command = ["train", "--data", str(root), "--epochs", "1", "--workers", "0", *tiny]
    for in_memory in (True, False):
        options = [] if in_memory else ["--memory-gib", "0"]
        assert run([*command, *options, "--out", str(tmp_path / f"run-{in_memory}")]) == 0
        shown = " ".join(capsys.readouterr().err.split())
        assert ("train: Decoding may take" in shown) == ("Give fewer --workers" in shown) == (not in_memory)
