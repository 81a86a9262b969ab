"""`vitkit scale`: what it prints, and that a study which is killed goes on to the same law and bits."""

import json
from pathlib import Path
from typing import Any

import pytest

from vitkit.cli.main import run
from vitkit.data.stream.loader import Batch
from vitkit.runs.budget import Pace
from vitkit.training.trainer import Trainer

SCALE = (
    *("scale", "digits", "--recipe", "digits", "--points", "5", "--threads", "1"),
    *("--model", "ViT-16x1x2x32/4", "--image-size", "8", "--batch-size", "16"),
    *("--steps", "10", "--warmup-steps", "2", "--checkpoint-every", "2", "--dropout", "0.1"),
)
POINTS = tuple(f"data-0{number}" for number in range(1, 7))

pytestmark = pytest.mark.usefixtures("without_report")


def results(folder: Path) -> dict[str, Any]:
    """The logs and weights of all runs, from which all else follows."""
    return {
        f"{point}/{name}": (folder / point / "final" / name).read_bytes()
        for point in POINTS
        for name in ("model.safetensors", "metrics.jsonl")
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that nothing stopped."""
    folder = tmp_path_factory.mktemp("laws") / "whole"
    assert run([*SCALE, "--out", str(folder)]) == 0
    return folder


def test_a_finished_study_writes_its_page_again(whole: Path) -> None:
    assert run([*SCALE, "--out", str(whole)]) == 0
    page = (whole / "report.html").read_text()
    assert "vitkit scale digits --recipe digits" in page
    assert "<svg" in page
    assert 'href="data-06/report.html"' in page


def test_a_study_that_was_killed_goes_on_to_the_same_law_and_bits(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch, steps = Trainer.launch, 0

    def killed(self: Trainer, batch: Batch, step: int, rate: float) -> Any:
        nonlocal steps
        steps += 1
        if steps in (25, 57):  # in the third point, and in the held-out one
            raise KeyError("killed")
        return launch(self, batch, step, rate)

    # Steps that are only timed are not counted.
    monkeypatch.setattr(
        "vitkit.jobs.study.study.measure_paces", lambda runs, *_: dict.fromkeys(runs, Pace(0.01, 0.1))
    )
    monkeypatch.setattr(Trainer, "launch", killed)
    folder = tmp_path / "killed"
    for place in ("data-03", "data-06"):
        with pytest.raises(KeyError, match="killed"):
            run([*SCALE, "--out", str(folder)])
        assert (folder / place).is_dir()
        assert not (folder / place / "final" / "model.safetensors").exists()
    assert run([*SCALE, "--out", str(folder)]) == 0
    assert results(folder) == results(whole)


def test_all_numbers_are_printed_as_json(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run([*SCALE, "--out", str(whole), "--json"]) == 0
    law = json.loads("{" + capsys.readouterr().out.partition("{")[2])
    assert [point["x"] for point in law["measured"]] == [14, 34, 80, 189, 449]
    assert law["held_out"]["x"] == law["prediction"]["x"] == 1347
    assert law["prediction"]["low"] <= law["prediction"]["error"] <= law["prediction"]["high"]


def test_a_plan_is_printed_and_no_folder_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run([*SCALE, "--out", str(tmp_path / "law"), "--plan", "--seeds", "3"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "data-05 449 training images its own 3 10" in said
    assert "6 arms, 18 runs, about" in said
    assert "1,347 training images are held out: predicted by the law of the others, then trained" in said
    assert run([*SCALE, "--out", str(tmp_path / "law"), "--plan", "--json"]) == 0
    plan = json.loads("{" + capsys.readouterr().out.partition("{")[2])
    assert [arm["name"] for arm in plan["arms"]] == list(POINTS)
    assert {arm["steps"] for arm in plan["arms"]} == {10}
    assert not (tmp_path / "law").exists()


def test_another_recipe_in_the_same_folder_is_refused(
    whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run([*SCALE, "--out", str(whole), "--learning-rate", "0.5"]) == 1
    assert "--learning-rate 0.002 -> 0.5" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ablate", "--vary", "position=none"], "Which recipe? It stands first"),
        (["ablate", "digits", "--plan"], "Which option is to be varied?"),
        (["ablate", "digits", "--vary", "pool=mean", "--rates", "", "--plan"], "above 0, found none"),
        (["predict", __file__], "Which model, and which images?"),  # one file alone
        (["scale", "digits", "--runs", "3"], "give --seeds, without --runs"),
        (["scale", "digits", "--budget", "1m", "--steps", "5"], "give it without --steps"),
        (["scale", "digits", "--along", "size", "--start", "runs/x"], "No checkpoint at runs/x"),
        (["scale", "digits", "--along", "size", "--start", "hf:org/model"], "leave --start out"),
        (["scale", "digits", "--points", "3"], "points is from 5"),
    ],
)
def test_command_lines_that_are_not_meant_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 1
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("arguments", [["scale", "--along", "data"], ["scale", "", "--plan"]])
def test_images_are_asked_for(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    assert capsys.readouterr().err.startswith("vitkit: DATA is missing: images")
