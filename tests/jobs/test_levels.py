"""A model of folders in folders, from training to its answers: by the verbs, in Python, as a graph."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

import vitkit
from tests.engines.models import FakeRunner
from tests.helpers.cli import Cli
from tests.helpers.refusals import refused
from vitkit.cli.main import run
from vitkit.engines.folder import EngineModel
from vitkit.jobs.engines import Ready
from vitkit.models.config import Levels
from vitkit.runs.trained_model import read_evaluations
from vitkit.tasks import answering_of
from vitkit.weights.format_names import LoadOptions
from vitkit.weights.loading import load
from vitkit.weights.model_card import card_of

TINY = ("--model", "ViT-16x2x2/4", "--image-size", "8", "--warmup-steps", "0", "--batch-size", "16")
COLOURS = {
    "blue/dark": (40, 40, 150),
    "blue/light": (40, 40, 200),
    "red/dark": (150, 40, 40),
    "red/light": (200, 40, 40),
}


def draw(folder: Path, count: int, seed: int = 0) -> Path:
    """Write squares of four colours: which of two is easy to see, how light it is is not."""
    rng = np.random.default_rng(seed)
    for name, colour in COLOURS.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = np.array(colour) + rng.normal(0, 30, 3) + rng.normal(0, 20, (8, 8, 3))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / name / f"{number:02d}.png")
    return folder


@pytest.fixture(scope="module")
def squares(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("squares")
    draw(root / "train", 40)
    draw(root / "test", 50, seed=1)
    return root


@pytest.fixture(scope="module")
def trained(squares: Path) -> Path:
    """A finished run on the squares, with the levels of their folders."""
    out = squares.with_name(f"{squares.name}-run")
    options = ["--splits.val-fraction", "0", "--learning-rate", "0.01", "--epochs", "15", "--levels"]
    assert run(["train", "--data", str(squares), "--out", str(out), *TINY, *options, "--quiet"]) == 0
    return out


def levels_of(trained: Path) -> Levels:
    learned = card_of(vitkit.load_model(trained)).levels
    assert learned is not None
    return learned


def test_training_learns_thresholds_that_travel_with_the_weights(trained: Path) -> None:
    learned, model = levels_of(trained), vitkit.load_model(trained)
    colour, shade = learned.thresholds
    assert colour is not None and 0 < colour < 1 and (shade is None or shade >= colour)
    assert (learned.split, learned.images, model.card.class_names) == ("test", 200, tuple(COLOURS))
    assert vitkit.load_model(trained, num_classes=2).card.levels is None
    for other in (LoadOptions(image_size=(16, 16)), LoadOptions(channels=1)):
        loaded = load(trained, other)
        assert loaded.model.card.levels == Levels((None, None))  # chosen by images of another kind
        assert any("another size, channels or pixel statistics" in note for note in loaded.notes)
    measured = read_evaluations(trained, answering_of(model.card))["test"][0]
    top, bottom = measured.levels.levels
    assert measured.levels.cross_fitted and (top.groups, bottom.groups) == (2, 4)
    assert top.accuracy >= bottom.accuracy == measured.accuracy


def test_a_card_with_thresholds_for_other_levels_is_refused(trained: Path, tmp_path: Path) -> None:
    vitkit.save_model(vitkit.load_model(trained), tmp_path)
    record = json.loads((tmp_path / "model.json").read_text())
    record["levels"]["thresholds"].append(0.5)
    (tmp_path / "model.json").write_text(json.dumps(record))
    refused("3 thresholds for class names of 2 levels", vitkit.load_model, tmp_path)


@pytest.fixture
def predictor(trained: Path) -> vitkit.Predictor:
    """The model, sure of a colour and never of a shade, however it was trained."""
    model = vitkit.load_model(trained)
    learned = replace(levels_of(trained), thresholds=(levels_of(trained).thresholds[0], None))
    model.card = replace(card_of(model), levels=learned)
    return vitkit.Predictor(model, refuse=0)


def test_an_answer_is_the_deepest_level_that_is_sure(predictor: vitkit.Predictor, squares: Path) -> None:
    answer = predictor(squares / "test" / "red" / "dark" / "00.png", top=4)
    assert answer.level == 1 and answer.sure is not None and answer.sure.name in ("red", "blue")
    inside = [guess.probability for guess in answer if guess.name.startswith(f"{answer.sure.name}/")]
    assert answer.sure.probability == pytest.approx(sum(inside), abs=1e-6)
    name, share = answer.sure.name, f"{answer.sure.probability:.1%}"
    best = f"{answer[0].name} {answer[0].probability:.1%}"
    assert predictor.answering.guess_row(answer, 1) == {"class": [name], "probability": [share, f"({best})"]}
    assert predictor.answering.guess_row(answer, 4)["top 4"][:2] == [f"{name} {share}", best]
    purple = np.full((8, 8, 3), (90, 0, 90), np.uint8)
    predictor.card = replace(predictor.card, levels=Levels((None, None)))
    nothing = predictor(purple)
    assert (nothing.level, nothing.sure) == (0, None)
    assert predictor.answering.guess_row(nothing, 1)["class"] == ["not sure"]
    other_names = vitkit.Predictor(cast("Any", predictor.model), class_names=["a", "b", "c", "d"], refuse=0)
    renamed = other_names(purple)
    assert renamed.level is None and "level" not in other_names.answering.guess_json(renamed)


def test_a_refused_image_gets_no_answer_of_any_level(trained: Path) -> None:
    predictor = vitkit.Predictor(trained, refuse=0.9999)
    answer = predictor(np.full((8, 8, 3), (180, 0, 0), np.uint8))
    assert answer.refused and answer.sure is None and answer.level == 0
    assert predictor.answering.guess_row(answer, 1)["class"] == ["none of these"]


def test_answers_stand_in_json_csv_and_parquet(
    trained: Path, squares: Path, tmp_path: Path, cli: Cli
) -> None:
    bad = tmp_path / "bad.png"
    bad.write_text("no image")
    images = [str(bad), str(squares / "test" / "blue")]
    printed = cli(["predict", str(trained), *images, "--json", "--refuse", "0"], 1).out
    lines = [json.loads(line) for line in printed.splitlines()][1:-1]
    assert {line["level"] for line in lines} <= {0, 1, 2} and {"blue"} <= {line["answer"] for line in lines}
    answers = cli(["predict", str(trained), *images, "--csv", "--refuse", "0"], 1).out
    table = list(csv.DictReader(answers.splitlines()))
    assert list(table[0])[-4:] == ["answer", "level", "none_of_these", "error"] and table[0]["answer"] == ""
    assert [row["answer"] or None for row in table[1:]] == [line["answer"] for line in lines]
    shown = cli(["predict", str(trained), *images, "--top", "1"], 1).out  # a row without a guess
    assert str(bad) in shown and "blue" in shown
    cli(["predict", str(trained), *images, "--refuse", "0", "--out", str(tmp_path / "out")], 1)
    (part,) = (tmp_path / "out").glob("*.parquet")
    columns = pq.read_table(part).to_pydict()
    assert columns["level"] == [None, *(line["level"] for line in lines)]
    assert columns["answer"] == [None, *(line["answer"] for line in lines)]


def test_other_data_is_judged_by_the_thresholds_of_the_run(trained: Path, tmp_path: Path, cli: Cli) -> None:
    others = draw(tmp_path / "others", 30, seed=2)
    scores = json.loads(cli(["evaluate", str(trained), "--data", str(others), "--json"]).out)["levels"]
    assert scores["thresholds"] == list(levels_of(trained).thresholds) and not scores["cross_fitted"]
    top, bottom = scores["levels"]
    assert (top["groups"], bottom["groups"]) == (2, 4) and top["named"] == top["ended"] + bottom["ended"]


def test_an_exported_graph_answers_by_level(predictor: vitkit.Predictor, squares: Path) -> None:
    """`EngineModel` stands for any engine: its logits are those of PyTorch here."""
    path = squares / "test" / "red" / "dark" / "00.png"
    model: Any = predictor.model
    engine = EngineModel(model.config, card_of(model), FakeRunner(model))
    ready = Ready(engine, (), "cpu", "float32", "onnxruntime")
    exported, plain = vitkit.Predictor(ready, refuse=0)(path), predictor(path)
    assert exported.sure is not None and plain.sure is not None
    assert (exported.level, exported.sure.name) == (plain.level, plain.sure.name)
