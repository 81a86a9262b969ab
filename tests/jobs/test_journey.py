"""The way of a user beside training: silence and listeners, the report again, mistakes and lists."""

import json
import shutil
from collections.abc import Generator
from pathlib import Path

import pytest

import vitkit
from tests.jobs.hearing import Hearing
from vitkit.cli.main import run
from vitkit.jobs.predict import predict_images
from vitkit.listener import SILENT

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")


def test_jobs_print_nothing_and_tell_a_listener(
    trained: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(trained, tmp_path / "copy")
    images = [photos / "sky" / "3.png", Path("nowhere.png")]
    heard = Hearing()
    vitkit.evaluate(copy)
    for listener in (SILENT, heard):
        evaluation = vitkit.evaluate(copy, batch_size=4, listener=listener)
        vitkit.inspect(copy, images, out=tmp_path / "pictures", listener=listener)
        vitkit.write_report(copy, listener=listener)
        predictions = predict_images(copy, images, listener=listener)
        assert isinstance(predictions, Generator)
        paths = [predicted.path.name for predicted in predictions]
        assert paths == ["3.png", "nowhere.png"]
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


@pytest.mark.parametrize(
    ("line", "message"),
    [
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
    ],
)
def test_mistakes_get_one_message_and_no_traceback(
    line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(line.split()) == 1
    captured = capsys.readouterr()
    assert message in captured.err + captured.out and "Traceback" not in captured.err


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert vitkit.__version__ in capsys.readouterr().out
