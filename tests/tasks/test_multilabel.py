"""Several labels an image, from a CSV to a report: trained, evaluated, predicted, resumed, and mistakes."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw

import vitkit
from tests.helpers.cli import Cli
from tests.helpers.refusals import refused
from tests.jobs.hearing import Hearing
from vitkit.data.config import Augmentation, Preprocessing, Splits
from vitkit.evaluation.classify import multi_label
from vitkit.evaluation.predictions import Predictions
from vitkit.runs.config import Run, StartConfig
from vitkit.training.config import OptimizerConfig, TrainingConfig
from vitkit.weights.model_card import card_of

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")

LABELS = ("bar", "disc", "square")
COLOURS = {"bar": (50, 80, 240), "disc": (40, 200, 60), "square": (230, 40, 40)}
SHARES = {"bar": 0.2, "disc": 0.35, "square": 0.5}


def picture(labels: set[str], draw: np.random.Generator) -> Image.Image:
    """Coloured shapes at random places of a noisy image, which may cover each other."""
    image = Image.fromarray(draw.integers(60, 140, (24, 32, 3)).astype(np.uint8))
    canvas = ImageDraw.Draw(image)
    for label in sorted(labels):
        x, y = int(draw.integers(0, 22)), int(draw.integers(0, 14))
        shape = canvas.ellipse if label == "disc" else canvas.rectangle
        shape((x, y, x + (3 if label == "bar" else 9), y + 9), fill=COLOURS[label])
    return image


def draw_images(root: Path, count: int, seed: int = 0) -> dict[str, set[str]]:
    """Images and what is in them, by path."""
    draw = np.random.default_rng(seed)
    (root / "images").mkdir(parents=True)
    labels_by_path = {}
    for number in range(count):
        labels = {label for label in LABELS if draw.random() < SHARES[label]}
        picture(labels, draw).save(root / "images" / f"{number:03d}.png")
        labels_by_path[f"images/{number:03d}.png"] = labels
    return labels_by_path


def write_table(path: Path, sets: dict[str, set[str]], separator: str = ";") -> Path:
    rows = [f'{name},"{separator.join(sorted(labels))}"' for name, labels in sets.items()]
    path.write_text("\n".join(["path,labels", *rows]) + "\n")
    return path


SMALL = Run(
    task="multi-label",
    model="ViT-32x2x2/4",
    preprocessing=Preprocessing(image_size=(12, 16)),
    augmentation=Augmentation(crop_area=(0.8, 1.0)),
    optimizer=OptimizerConfig(learning_rate=3e-3, warmup_steps=10),
    training=TrainingConfig(steps=150, batch_size=32, evaluate_every=50, seed=1),
)


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("shapes")
    return write_table(root / "labels.csv", draw_images(root, 260))


@pytest.fixture(scope="module")
def trained(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vitkit.train(replace(SMALL, data=str(shapes)), tmp_path_factory.mktemp("runs") / "run")


def test_it_learns(trained: Path, cli: Cli) -> None:
    """Ranking by chance gives 0.35, the colours that are seen most 0.5 or so."""
    numbers = json.loads(cli(["evaluate", str(trained), "--json"]).out)
    assert {score["name"] for score in numbers["per_label"]} == set(LABELS)
    assert (numbers["count"], numbers["labels_that_occur"]) == (52, 3)
    assert numbers["mean_average_precision"] > 0.9 and numbers["subset_accuracy"] > 0.7
    said = cli(["evaluate", str(trained)])
    assert "mean average precision of 3 labels on 52 test images" in said.text
    assert {*LABELS} <= {line.split(" ")[0] for line in said.out.splitlines()}


def test_the_run_folder_says_what_was_learned(trained: Path) -> None:
    """Best are the weights of the best average precision."""
    card, validation = (
        json.loads((trained / name).read_text()) for name in ("model.json", "evaluation/val.json")
    )
    assert card["task"] == {"name": "multi-label", "loss": "sigmoid"}
    assert card["class_names"] == list(LABELS)
    lines = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    validations = [line for line in lines if line["kind"] == "validation"]
    assert [line["step"] for line in validations] == [50, 100, 150]
    assert all(0 <= line["mean_average_precision"] <= 1 for line in validations)
    assert all("hamming_loss" in line for line in lines if line["kind"] == "train")
    best = max(validations, key=lambda line: (line["mean_average_precision"], -line["loss"]))
    weights = card["origin"]["weights"]
    assert f"step {best['step']}" in weights or f"step, {best['step']}" in weights
    assert validation["mean_average_precision"] == pytest.approx(best["mean_average_precision"], abs=1e-6)
    page = (trained / "report.html").read_text()
    shown = ("Label by label", "Validation mAP", "labels an image", "Labels are separated by", "data:image")
    assert all(text in page for text in (*shown, "mean average precision"))
    assert page.count("<td>bar</td>") == 2  # of the labels and of the counts


def test_predictions_name_all_labels_from_a_half_on(trained: Path, tmp_path: Path, cli: Cli) -> None:
    several = Image.new("RGB", (32, 24), (100, 100, 100))
    canvas = ImageDraw.Draw(several)
    canvas.rectangle((1, 1, 10, 10), fill=COLOURS["square"])
    canvas.ellipse((18, 8, 27, 17), fill=COLOURS["disc"])
    several.save("several.png")
    picture(set(), np.random.default_rng(5)).save("none.png")
    line = ["predict", str(trained), "several.png", "none.png"]
    first, second = map(json.loads, cli([*line, "--json"]).out.splitlines())
    assert set(first["labels"]) == {"square", "disc"} and second["labels"] == []
    assert [prediction["class"] for prediction in first["predictions"]] == [*first["labels"], "bar"]
    shown = [prediction["probability"] for prediction in first["predictions"]]
    assert shown == sorted(shown, reverse=True) and sum(shown) > 1  # each a question of its own
    table = cli([*line, "--top", "1"]).out.splitlines()
    assert "square" in table[1] and "disc" in table[1] and "none" in table[2]


def test_average_precision_is_given_with_and_without_training_images(tmp_path: Path) -> None:
    """The last ten test images are copies of training images."""
    sets = draw_images(tmp_path, 90)
    names, rows = list(sets), []
    for i, name in enumerate(names):
        source = names[i - 80] if i >= 80 else name
        if i >= 80:
            shutil.copy(tmp_path / source, tmp_path / name)
        rows.append(f"{name},{';'.join(sorted(sets[source]))},{'test' if i >= 60 else 'train'}")
    table = tmp_path / "labels.csv"
    table.write_text("\n".join(["path,labels,split", *rows]) + "\n")
    short = replace(SMALL, data=str(table), training=replace(SMALL.training, steps=20, evaluate_every=10))
    heard = Hearing()
    folder = vitkit.train(short, tmp_path / "run", listener=heard)
    assert "  val mAP " in heard.milestones[-1][2]
    evaluation = vitkit.evaluate(folder)
    result, predictions = evaluation.result, evaluation.predictions
    fresh = predictions.ids < 20
    parts = (predictions.logits[fresh], predictions.labels[fresh], predictions.ids[fresh], predictions.bad)
    others = multi_label(Predictions(*parts), result.class_names)
    assert result.repeated.count == 10
    assert result.repeated.mean_average_precision_without == others.mean_average_precision
    assert result.repeated.interval_without == others.mean_average_precision_interval
    assert others.mean_average_precision != result.mean_average_precision
    stored = json.loads((folder / "evaluation" / "test.json").read_text())
    assert "10 of these images are training images too" in (folder / "report.html").read_text()
    stored["repeated"]["count"] = 31
    (folder / "evaluation" / "test.json").write_text(json.dumps(stored))
    refused("repeated", vitkit.write_report, folder)


def test_a_classifier_is_fine_tuned_to_several_labels(tmp_path: Path, shapes: Path) -> None:
    start = vitkit.save_model(vitkit.create_model(SMALL.model, 5, (12, 16)), tmp_path / "start")
    short = TrainingConfig(steps=1, batch_size=16)
    tuned = replace(SMALL, data=str(shapes), model="", start=StartConfig(str(start)), training=short)
    model = vitkit.load_model(vitkit.train(tuned, tmp_path / "tuned"))
    card = card_of(model)
    assert card.task is not None and (card.task.name, card.loss) == ("multi-label", "sigmoid")
    assert card.class_names == LABELS and card.origin["start"]["from"] == "start"


def test_other_data_is_matched_by_label(trained: Path, tmp_path: Path) -> None:
    root = tmp_path / "others"
    sets = draw_images(root, 30, seed=7)
    evaluation = vitkit.evaluate(trained, str(write_table(root / "piped.csv", sets, "|")))
    assert evaluation.result.mean_average_precision > 0.8 and evaluation.whole
    for name, labels in sets.items():
        text = root / "labels" / Path(name).with_suffix(".txt").name
        text.parent.mkdir(exist_ok=True)
        text.write_text("\n".join(labels - {"bar"}))
    files = vitkit.evaluate(trained, str(root))  # a folder of label files
    assert files.data.class_names == LABELS and files.result.labels_that_occur == 2
    bar = files.result.per_label[0]
    assert (bar.count, bar.average_precision) == (0, None)
    sets["images/000.png"] = {"dog", "disc"}
    refused("does not know: dog", vitkit.evaluate, trained, str(write_table(root / "unknown.csv", sets)))


def test_mistakes_are_told_before_files_are_written(shapes: Path, cli: Cli) -> None:
    single = write_table(shapes.parent / "single.csv", {f"images/{i:03d}.png": {"disc"} for i in range(9)})
    for data, options, sentence in (
        (single, ["--task", "multi-label"], "leave out --task multi-label"),
        (shapes, ["--splits.label-separator", ";"], "--task multi-label"),
        ("digits", ["--task", "multi-label"], "one label an image"),
    ):
        message = cli(["train", "--data", str(data), *options, "--out", "run"], 1).text
        assert sentence in message and "Traceback" not in message and not Path("run").exists()


def test_a_separator_of_ones_own_travels_with_the_model(tmp_path: Path) -> None:
    """An image that cannot be read counts for nothing."""
    root = tmp_path / "commas"
    sets = draw_images(root, 40)
    (root / "images" / "007.png").write_bytes(b"no image")
    short = replace(
        SMALL,
        data=str(write_table(root / "labels.csv", sets, ",")),
        training=TrainingConfig(steps=2, batch_size=16),
        splits=Splits(label_separator=","),
    )
    folder = vitkit.train(short, tmp_path / "run", mixup=0.2, label_smoothing=0.1)
    card, record = (json.loads((folder / name).read_text()) for name in ("model.json", "data.json"))
    assert card["class_names"] == list(LABELS)
    assert card["data"]["splits"]["label_separator"] == ","
    assert sum(len(files) for files in record["rejects"].values()) == 1
    result = vitkit.evaluate(folder).result
    assert result.count + result.bad == 8
    others = str(write_table(root / "others.csv", sets, ","))
    assert vitkit.evaluate(folder, others).result.count == 39
