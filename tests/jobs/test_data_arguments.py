"""What strangers give for data, at the command line: words, and the exit code that goes with them."""

import json
import os
from pathlib import Path

import pytest

import vitkit
from tests.helpers.photos import noise_images
from tests.jobs.hearing import Hearing
from vitkit.cli.main import run
from vitkit.data.config import Splits
from vitkit.data.paths import absolute_spec
from vitkit.errors import VitkitError
from vitkit.jobs.data_check import check
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
        assert "Too many levels of symbolic links" in " ".join(capsys.readouterr().err.split())
    model = vitkit.create_model("ViT-8x1x1/8", num_classes=2, image_size=16)
    with pytest.raises(VitkitError, match="Too many levels of symbolic links"):
        open_model_data(model, str(loop))


@pytest.mark.timeout(600)
def test_a_check_names_what_is_no_image_or_none_that_can_be_read(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = noise_images(tmp_path / "data")
    os.mkfifo(root / "a" / "x.png")
    for folder, phrases in (
        (photos, ("red fruit", "page.jpg", "cut.png", "CMYK", "vitkit finetune ")),
        (root, ("a named pipe, not a regular file",)),
    ):
        assert run(["data", "check", str(folder)]) == 0
        printed = capsys.readouterr().out
        assert all(phrase in printed for phrase in phrases)
    assert run(["data", "check", str(photos), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["bad"]) == 2


def test_a_check_prints_nothing_and_tells_how_far_it_is(
    photos: Path, capfd: pytest.CaptureFixture[str]
) -> None:
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
    monkeypatch.setattr(building, "available_memory", lambda: 1000)
    root = noise_images(tmp_path / "data")
    tiny = ("--model", "ViT-8x1x1/8", "--image-size", "16", "--batch-size", "8", "--warmup-steps", "0")
    command = ["train", "--data", str(root), "--epochs", "1", "--workers", "0", *tiny]
    for kept in (True, False):
        options = [] if kept else ["--memory-gib", "0"]
        assert run([*command, *options, "--out", str(tmp_path / f"run-{kept}")]) == 0
        shown = " ".join(capsys.readouterr().err.split())
        assert ("train: Decoding may take" in shown) == ("Give fewer --workers" in shown) == (not kept)
