"""What strangers give for data, at the command line: words, and the exit code that goes with them."""

import os
from pathlib import Path

import pytest

import vitkit
from tests.helpers.photos import noise_images
from vitkit.cli.main import run
from vitkit.data.paths import absolute_spec
from vitkit.errors import VitkitError
from vitkit.runs import build as building
from vitkit.runs.trained_model import open_model_data


def test_a_link_to_itself_as_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert absolute_spec(str(loop)) == str(loop)
    assert absolute_spec(str(tmp_path / "there")) == str((tmp_path / "there").resolve())
    assert absolute_spec("a\0b").endswith("a\0b")
    for command in (["train", "--data", str(loop)], ["data", "check", str(loop)]):
        assert run(command) == 1
        shown = " ".join(capsys.readouterr().err.split())
        assert "Too many levels of symbolic links" in shown
    model = vitkit.create_model("ViT-8x1x1/8", num_classes=2, image_size=16)
    with pytest.raises(VitkitError, match="Too many levels of symbolic links"):
        open_model_data(model, str(loop))


@pytest.mark.timeout(600)
def test_a_check_of_data_with_a_pipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = noise_images(tmp_path / "data")
    os.mkfifo(root / "a" / "x.png")
    assert run(["data", "check", str(root)]) == 0
    assert "a named pipe, not a regular file" in capsys.readouterr().out


def test_training_warns_of_memory_that_decoding_may_lack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(building, "available_memory", lambda: 1000)
    root = noise_images(tmp_path / "data")
    tiny = ("--model", "ViT-8x1x1/8", "--image-size", "16", "--batch-size", "8", "--warmup-steps", "0")
    command = ["train", "--data", str(root), "--epochs", "1", "--workers", "0", *tiny]
    assert run([*command, "--memory-gib", "0", "--out", str(tmp_path / "read as needed")]) == 0
    shown = " ".join(capsys.readouterr().err.split())
    assert "train: Decoding may take" in shown and "Give fewer --workers" in shown
    assert run([*command, "--out", str(tmp_path / "in memory")]) == 0
    assert "Decoding may take" not in capsys.readouterr().err
