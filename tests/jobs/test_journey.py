"""The way of a user beside training: a check, silence and listeners, the report again, mistakes and lists."""

import json
import shutil
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import vitkit
from vitkit.cli.main import run
from vitkit.jobs.predict import predict_images
from vitkit.listener import SILENT, Listener, Progress
from vitkit.runs.folder import kind_of

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")


def test_check_first(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["data", "check", str(photos)]) == 0
    text = capsys.readouterr().out
    for phrase in ("red fruit", "page.jpg", "cut.png", "CMYK", "vitkit finetune "):
        assert phrase in text
    assert run(["data", "check", str(photos), "--json"]) == 0
    data_check = json.loads(capsys.readouterr().out)
    assert len(data_check["bad"]) == 2


class Recording(Listener):
    """Keeps what a job tells."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.loops: list[str] = []
        self.done: list[int] = []

    def note(self, sentence: str) -> None:
        self.notes.append(sentence)

    @contextmanager
    def progress(self, what: str, total: int | None = None, *, unit: str = "") -> Iterator[Progress]:
        self.loops.append(what)

        def progress(
            done: int, total: int | None = None, *, detail: str = "", milestone: bool = False
        ) -> None:
            self.done.append(done)

        yield progress


def test_jobs_print_nothing_and_tell_a_listener(
    trained: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    images = [photos / "sky" / "3.png", Path("nowhere.png")]
    heard = Recording()
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
    assert heard.done[: -(-count // 4)] == [*range(4, count, 4), count]
    assert heard.done[-1] == 2
    (note,) = heard.notes
    assert note.startswith("nowhere.png: ")


def test_the_report_can_be_written_again_also_without_the_images(
    trained: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    record = json.loads((copy / "model.json").read_text())
    record["data"]["spec"] = str(tmp_path / "gone")
    (copy / "model.json").write_text(json.dumps(record))
    assert run(["report", str(copy)]) == 0
    captured = capsys.readouterr()
    assert "report.html" in captured.out and "gone" in captured.err
    assert run(["report", str(photos)]) == 1
    assert "no run folder" in capsys.readouterr().err


def test_a_folder_with_a_config_of_another_library_is_no_run(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    assert kind_of(trained).kind == "run" and kind_of(tmp_path).kind == "checkpoint"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "Which images"),
        (["train", "--data", "nowhere"], "nowhere"),
        (["train", "--recipe", "digit"], "Did you mean 'digits'"),
        (["train", "--recipe", "digits", "--model", "ViT-Q/4"], "No model is named"),
        (["train", "--recipe", "digits", "--device", "cuda:9"], "device"),
        (["train", "--recipe", "digits", "--optimizer", "adam"], "adamw"),
        (["train", "--recipe", "digits", "--epoch", "3"], "--epochs"),
        (["train", "--resume", "nowhere"], "no run folder"),
        (["evaluate", "nowhere"], "No checkpoint"),
        (["predict", "nowhere", "x.png"], "No checkpoint"),
        (["inspect", "nowhere"], "No checkpoint"),
        (["data"], "check PATH"),
        (["data", "check", "nowhere"], "nowhere"),
        (["models", "x*"], "No name matches"),
        (["models", "vit-b/160"], "Near it: ViT-B/16"),
        (["models", "ViT-7x1x2/4"], "width 7"),
        (["trian"], "Did you mean 'train'"),
        (["train", "--recipe", "digits", "--threads", "0"], "threads"),
        (["train", "--recipe", "digits", "--beta1", "1.5"], "beta1"),
        (["train", "--recipe", "digits", "--representation-size", "-3"], "representation_size"),
        (["train", "--recipe", "digits", "--splits.val-fraction", "0", "--patience", "2"], "validation"),
        (["train", "--resume", "x", "--out", "y"], "--out"),
        (["predict", "hf:nobody/nothing", "x.png", "--top", "0"], "--top is at least 1"),
        (["data", "check", "~nobody_of_this_name/x"], "~nobody_of_this_name"),
    ],
)
def test_mistakes_get_one_message_and_no_traceback(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = run(arguments)
    except SystemExit as exit:  # of the option parser
        code = int(exit.code or 0)
    captured = capsys.readouterr()
    assert code in (1, 2)
    assert message in captured.err + captured.out
    assert "Traceback" not in captured.err


def test_lists(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["models", "ViT-B*", "--image-size", "224"]) == 0
    assert "86,567,656" in capsys.readouterr().out
    assert run(["recipes"]) == 0
    assert "digits" in capsys.readouterr().out
    assert run(["--version"]) == 0
    assert vitkit.__version__ in capsys.readouterr().out
