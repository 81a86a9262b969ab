"""`vitkit pretrain`: what is left out suits the images, the start and the batch."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.cli import Cli
from tests.helpers.photos import picture
from vitkit.cli.main import run

ALONE = ("--workers", "0", "--threads", "1")


def pretrain(*arguments: str) -> int:
    return run(["pretrain", *arguments, *ALONE])


def recorded(folder: Path) -> dict[str, Any]:
    options: dict[str, Any] = json.loads((folder / "config.json").read_text())["run"]
    return options


def test_photos_get_the_model_and_the_size_of_photos(tmp_path: Path) -> None:
    out, photos = tmp_path / "run", tmp_path / "photos"
    for number in range(30):
        path = photos / ("a/b" if number % 2 else "c") / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture((90, 160, 60), number).resize((100, 80)).save(path)
    small = "--objective mae --decoder-width 16 --decoder-heads 2 --decoder-depth 1 --steps 2 --batch-size 4"
    assert pretrain(str(photos), *small.split(), "--out", str(out)) == 0
    options = recorded(out)
    assert options["model"] == "ViT-192x9x3/8" and options["preprocessing"]["image_size"] == [128, 128]
    assert options["architecture"]["position"] == "sincos_2d_mae"
    assert options["splits"]["test_fraction"] == 0  # there is nothing to test
    # The rate of 128 images, for 4; and the warm-up is no longer than a tenth of the run.
    assert options["optimizer"]["learning_rate"] == pytest.approx(1e-3 * 4 / 128, rel=1e-2)
    assert options["optimizer"]["warmup_steps"] == 0


def test_small_images_are_learned_on_two_cores_and_judged_on_the_way(tmp_path: Path, cli: Cli) -> None:
    out = tmp_path / "run"
    arguments = "--model ViT-16x1x2/8 --steps 2 --batch-size 16 --fewshot.data digits --fewshot.shots 1,5"
    printed = cli(["pretrain", "digits", *arguments.split(), *ALONE, "--out", str(out)])
    options = recorded(out)
    assert options["task"] == "masked-patches" and options["preprocessing"]["image_size"] == [32, 32]
    assert options["optimizer"]["learning_rate"] == 1e-3  # the paper scales it with no batch
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    measured = {line["evaluator"]: line for line in lines if line["kind"] == "evaluation"}
    assert {"ridge_1_shots", "ridge_5_shots", "knn_5_shots"} <= measured["fewshot"].keys()
    assert 0 <= measured["probe"]["logistic_all"] <= 1
    assert "knn" in printed.err and "linear probe" in printed.err
    assert f"vitkit fewshot {out}" in printed.out
    page = (out / "report.html").read_text()
    assert "linear probe" in page and "5 shots, knn" in page


def test_a_start_brings_its_model_and_size_and_fine_tuning_says_that_it_has_seen_the_images(
    tmp_path: Path, cli: Cli
) -> None:
    first, second, tuned = (tmp_path / name for name in ("first", "second", "tuned"))
    line = f"digits --steps 2 --batch-size 8 --model ViT-16x1x2/4 --image-size 8 --out {first}"
    assert pretrain(*line.split()) == 0
    line = f"digits --steps 2 --batch-size 8 --start {first} --objective simmim --out {second}"
    assert pretrain(*line.split()) == 0
    options = recorded(second)
    assert options["model"] == "ViT-16x1x2/4-gap" and options["preprocessing"]["image_size"] == [8, 8]
    rate = 0.25 * 1e-3 * 8 / 128  # a quarter, for weights that are not new, of the rate for 8 images
    assert options["optimizer"]["learning_rate"] == pytest.approx(rate, rel=1e-2)
    card = json.loads((second / "model.json").read_text())
    assert card["origin"]["start"]["from"] == "first"
    line = f"finetune {first} --data digits --steps 2 --batch-size 8 --out {tuned}"
    assert "without their labels" in cli(line.split()).err
    assert (tuned / "evaluation/test.json").exists()  # a split that is cut for it
