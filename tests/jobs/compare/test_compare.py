"""Two models on the same images: stored evaluations are read and checked, others are made, once."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitkit
from tests.helpers.cli import Cli
from tests.helpers.photos import noise_image
from tests.helpers.refusals import refused
from tests.helpers.small_digits import small_run
from tests.jobs.hearing import Hearing
from vitkit.data.config import Augmentation, Splits
from vitkit.evaluation.statistics import bonett_price, holm
from vitkit.jobs.compare import ModelComparison, make_labels
from vitkit.models.config import Task
from vitkit.runs.folder import kind_of
from vitkit.runs.trained_model import write_evaluation
from vitkit.tasks import answering_of
from vitkit.weights.model_card import ModelCard, card_of

SMALL = replace(small_run(30, warmup_steps=0), augmentation=Augmentation(crop_area=None, flip=False))

Pair = tuple[Path, Path]
Compared = tuple[ModelComparison, Hearing]

pytestmark = pytest.mark.usefixtures("without_report")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Two runs of another seed on the digits, which differ on many test images."""
    root = tmp_path_factory.mktemp("runs")
    other = replace(SMALL, training=replace(SMALL.training, seed=1))
    return vitkit.train(SMALL, root / "one"), vitkit.train(other, root / "other")


def compared(first: object, second: object, out: Path, **options: Any) -> Compared:
    heard = Hearing()
    given = {"speed_seconds": 0.0, "listener": heard, **options}
    return vitkit.compare(str(first), str(second), out=str(out), **given), heard


@pytest.fixture(scope="module")
def whole(runs: Pair, tmp_path_factory: pytest.TempPathFactory) -> Compared:
    """The comparison of the two runs, in the folder "below" of others."""
    return compared(*runs, tmp_path_factory.mktemp("whole") / "below" / "out", speed_seconds=0.01)


def evaluated(heard: Hearing) -> list[str]:
    """Name the splits that a model was run over."""
    return [loop for loop in heard.loops if loop.startswith("evaluating")]


def test_stored_evaluations_are_read_and_counted(runs: Pair, whole: Compared) -> None:
    comparison, heard = whole
    assert not evaluated(heard)
    answers = [vitkit.evaluate(run).predictions for run in runs]
    right = [predictions.predicted == predictions.labels for predictions in answers]
    flips = comparison.difference.flips
    assert flips.first_only == (right[0] & ~right[1]).sum() > 0
    assert flips.second_only == (right[1] & ~right[0]).sum() > 0
    assert flips.both_right == (right[0] & right[1]).sum()
    assert comparison.difference.mean == pytest.approx(right[1].mean() - right[0].mean())
    both = bonett_price(flips.first_only, flips.second_only, comparison.images)
    assert (comparison.difference.interval, comparison.difference.p) == both
    assert (comparison.first.score, comparison.second.score) == tuple(mask.mean() for mask in right)
    assert comparison.images == 360 and comparison.split == "test"
    assert comparison.first.was_stored and comparison.second.was_stored
    for change in comparison.classes:
        own = answers[0].labels == int(change.name)
        assert change.count == own.sum()
        assert change.gain == pytest.approx(right[1][own].mean() - right[0][own].mean())
        assert change.flips.first_only == (right[0] & ~right[1])[own].sum()
    assert sum(change.flips.second_only for change in comparison.classes) == flips.second_only
    ps = [change.flips.p for change in comparison.classes]
    assert [change.adjusted_p for change in comparison.classes] == list(holm(ps)) != ps
    sentence = next(line for line in comparison.headline() if "p by Holm" in line)
    gained, lost = sentence.split(" and lost in ")
    assert gained.startswith("other gained in ") and "(-" not in gained and "(+" not in lost
    assert sentence.count(" points)") == sum(change.adjusted_p < 0.05 for change in comparison.classes) > 1
    assert comparison.options == ("--seed 0 -> 1",)


def test_the_same_command_again_measures_nothing_again(runs: Pair, whole: Compared) -> None:
    first, heard = whole
    page, loop = first.page.read_bytes(), "measuring the speed of both"
    again, heard_again = compared(*runs, first.folder, speed_seconds=0.01)
    assert loop in heard.loops and loop not in heard_again.loops
    assert again == first and again.page.read_bytes() == page
    (row,) = vitkit.list_runs(first.folder.parent)
    assert (row.kind, row.model, row.standing) == ("study", "comparison", "ended")


def test_the_page_shows_the_images_that_one_model_alone_is_right_on(runs: Pair, tmp_path: Path) -> None:
    odd = tmp_path / "<b>odd & one"
    shutil.copytree(runs[1], odd)
    comparison, _ = compared(runs[0], odd, tmp_path / "out")
    page, flips = comparison.page.read_text(), comparison.difference.flips
    assert "<b>odd" not in page and "&lt;b&gt;odd &amp; one alone is right" in page
    assert page.count("<figcaption>") == min(12, flips.first_only) + min(12, flips.second_only)
    first, second = (vitkit.evaluate(run) for run in runs)
    base, other = first.predictions, second.predictions
    base_alone = (base.predicted == base.labels) & (other.predicted != other.labels)
    row = int(np.where(base_alone, base.confidence + other.confidence, 0).argmax())
    first_shown = page.split("<figcaption>")[1].split("</figcaption>")[0]
    assert first.data.splits["test"].key(int(base.ids[row])) in first_shown
    assert f"<b>{base.labels[row]}</b>" in first_shown
    assert f'<b class="wrong">{other.predicted[row]}</b>' in first_shown
    assert comparison.headline()[0] in unescape(page) and str(tmp_path) not in page


def test_speeds_are_told_side_by_side(
    runs: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    measured = {"first": [2.0, 2.0, 3.0], "second": [1.0, 0.5, 1.0]}
    monkeypatch.setattr("vitkit.runs.timing.take_turns", lambda *_: measured)
    speeds = compared(*runs, tmp_path / "out", speed_seconds=1.0)[0].speeds
    assert speeds is not None
    first, second = speeds.records
    assert (first.images_per_second, second.images_per_second) == (16, 32)  # the median of batches of 32
    assert second.ratio == second.rounds == 3
    line = f"compare {runs[0]} {runs[1]} --speed-seconds 1 --threads 1 --out {tmp_path / 'new'}"
    assert "images per second" in cli(line.split()).text


def test_what_cannot_be_is_said_in_a_sentence(runs: Pair, tmp_path: Path, cli: Cli) -> None:
    model: Any = vitkit.load_model(runs[0])
    model.card = replace(card_of(model), data=None)
    alone = str(vitkit.save_model(model, tmp_path / "alone"))
    for options, message in (
        ("", "give images to test on with --data"),
        ("--data digits --split test", "has no test split"),
        ("--data digits --speed-seconds -1", "--speed-seconds is 0 or more"),
        (f"--data digits --out {alone}/model.json", "--out names a folder"),
    ):
        assert message in cli(["compare", alone, alone, *options.split()], 1).text


def test_a_checkpoint_is_tested_on_the_images_of_the_run(runs: Pair, whole: Compared, tmp_path: Path) -> None:
    model = vitkit.load_model(runs[1])
    model.card = replace(card_of(model), data=None)  # as a checkpoint of another library
    alone, expected = vitkit.save_model(model, tmp_path / "alone"), whole[0]
    comparison, heard = compared(runs[0], alone, tmp_path / "out")
    assert evaluated(heard) == ["evaluating test"]
    assert comparison.difference == expected.difference and comparison.classes == expected.classes
    assert comparison.first.was_stored and not comparison.second.was_stored
    assert comparison.second.trained_on_tested is None and comparison.options is None
    assert "alone was trained on some of these images is not known" in " ".join(comparison.headline())
    logits = tmp_path / "out" / "second" / "evaluation" / "test.logits.npy"
    logits.write_bytes(logits.read_bytes()[:-100])
    again, heard = compared(runs[0], alone, tmp_path / "out")
    assert again == comparison and evaluated(heard) == ["evaluating test"]


def test_evaluations_of_others_are_not_taken(runs: Pair, whole: Compared, tmp_path: Path) -> None:
    """Whole and consistent in itself, but of validation images, or of the model of another run."""
    given = Path(shutil.copytree(runs[1], tmp_path / "given"))
    card = vitkit.load_model(given).card
    result, predictions = answering_of(card).read_evaluation(given / "evaluation" / "val.json")
    write_evaluation(given, "test", result, predictions)
    comparison, heard = compared(runs[0], given, tmp_path / "images")
    assert evaluated(heard) == ["evaluating test"]
    assert any("is not of the test images and classes that are there now" in note for note in heard.notes)
    assert comparison.difference == whole[0].difference
    given = Path(shutil.copytree(runs[1], tmp_path / "weights"))
    for name in ("model.safetensors", "model.json"):
        shutil.copy(runs[0] / name, given / name)
    comparison, heard = compared(runs[0], given, tmp_path / "out")
    assert evaluated(heard) == ["evaluating test"] and comparison.summary().startswith("No difference: ")
    assert any("differs from the model's answers now" in note for note in heard.notes)


def test_images_that_both_were_trained_on_are_no_test(runs: Pair, tmp_path: Path) -> None:
    comparison, _ = compared(*runs, tmp_path / "out", split="train[:10%]")
    seen = (comparison.first.trained_on_tested, comparison.second.trained_on_tested)
    assert seen == (126, 126) and comparison.images == 126
    for name in ("one", "other"):
        said = f"{name} was trained on 126 of these images, pixel for pixel: its figures are too good."
        assert said in comparison.headline()
    comparison, _ = compared(*runs, tmp_path / "val", split="val")
    assert "These are validation images" in " ".join(comparison.headline())


@pytest.mark.usefixtures("in_an_empty_folder")
def test_classes_of_another_order_are_matched_by_name(runs: Pair, tmp_path: Path) -> None:
    model: Any = vitkit.load_model(runs[0])
    order = [3, 1, 2, 0, 9, 8, 7, 6, 5, 4]
    with torch.no_grad():
        for parameter in (model.head.weight, model.head.bias):
            parameter.copy_(parameter[order])
    model.card = replace(model.card, class_names=tuple(map(str, order)))
    other = vitkit.save_model(model, tmp_path / "turned")
    comparison, _ = compared(runs[0], other, tmp_path / "out")
    assert comparison.summary().startswith("No difference: ") and comparison.difference.p == 1
    assert comparison.page.read_text().count("There is none.") == 2
    refused("holds another study", compared, runs[0], runs[0], tmp_path / "out")  # their heads alone differ
    same = vitkit.compare(runs[0], runs[0], speed_seconds=0.0).folder
    assert same.as_posix() == "runs/compare-one--first--one--second-"


def test_other_classes_and_tasks_are_refused(runs: Pair, tmp_path: Path) -> None:
    for names, task, message in (
        (("1", "2", "twelve"), Task(), "one alone has 0, 3, 4, 5, 6 .*; others alone has twelve"),
        (tuple("0123456789"), Task("multi-label", "sigmoid"), "learned classification and .* multi-label"),
    ):
        made = vitkit.create_model("ViT-16x1x1/4", len(names), 8)
        made.card = ModelCard("ViT-16x1x1/4", names, task)
        refused(message, compared, runs[0], vitkit.save_model(made, tmp_path / "others"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_is_in_the_folder_already_is_left_alone(runs: Pair, whole: Compared, tmp_path: Path) -> None:
    out = Path(shutil.copytree(whole[0].folder, tmp_path / "out"))
    refused("other weights, device or version of PyTorch of the second", compared, runs[1], runs[0], out)
    record = json.loads((out / "study.json").read_text())
    record["options"]["hashes"]["images"] = "0af"
    (out / "study.json").write_text(json.dumps(record))
    refused("holds another study:\n  other images\nGive", compared, *runs, out)


def photos(folder: Path, train: Sequence[int], test: Sequence[int]) -> vitkit.Run:
    """Make two classes of noise; the same number makes the same image."""
    for split, numbers in (("train", train), ("test", test)):
        for number in numbers:
            noise_image(folder / split / "a" / f"{number}.png", number)
            noise_image(folder / split / "b" / f"{number}.png", number + 1000)
    return replace(small_run(2, warmup_steps=0), data=str(folder))


@pytest.fixture(scope="module")
def on_photos(tmp_path_factory: pytest.TempPathFactory) -> Sequence[Path]:
    """Two runs on the same images, and one that was trained on four of their test images."""
    root = tmp_path_factory.mktemp("photos")
    run = photos(root / "data", range(20), range(50, 58))
    leaking = photos(root / "leaking", [*range(18), 50, 51], range(80, 84))
    other = replace(run, training=replace(run.training, seed=1))
    leaking = replace(leaking, splits=Splits(val_fraction=0))
    trained = {"one": run, "other": other, "leaks": leaking}
    return [vitkit.train(run, root / name) for name, run in trained.items()]


def test_training_images_among_those_tested_are_told(on_photos: Sequence[Path], tmp_path: Path) -> None:
    base, _, leaks = on_photos
    comparison, heard = compared(base, leaks, tmp_path / "out")
    assert (comparison.first.trained_on_tested, comparison.second.trained_on_tested) == (0, 4)
    (sentence,) = (sentence for sentence in comparison.headline() if "is unfair" in sentence)
    assert sentence.startswith("leaks was trained on 4 of these images")
    assert comparison.images == 16 and heard.warnings
    assert "--data" in " ".join(comparison.options or ())


def test_other_images_are_tested_on_as_a_whole(on_photos: Sequence[Path], tmp_path: Path) -> None:
    for label in "ab":
        for number in range(5):
            noise_image(tmp_path / "new" / label / f"{number}.png", 5000 + number if number else 3)
    comparison, heard = compared(on_photos[0], on_photos[1], tmp_path / "out", data=str(tmp_path / "new"))
    assert len(evaluated(heard)) == 2
    # Both classes have the image that is "a/3.png" of the training images.
    warning = "2 images of new are in the training images of data too, pixel for pixel"
    assert len(heard.warnings) == 2 and all(said.startswith(warning) for said in heard.warnings)
    assert not [sentence for sentence in comparison.headline() if "unfair" in sentence]
    assert (comparison.images, comparison.split, comparison.data) == (10, "", "new")
    assert "on 10 images of new" in comparison.headline()[0]
    alone = vitkit.evaluate(on_photos[1], data=str(tmp_path / "new")).result
    assert comparison.second.score == alone.accuracy


def test_without_the_images_nothing_is_compared(on_photos: Sequence[Path], tmp_path: Path) -> None:
    data = Path(kind_of(on_photos[0]).run().data)
    data.rename(data.parent / "away")
    try:
        refused("needs the images, and they are not at hand", compared, *on_photos[:2], tmp_path / "out")
    finally:
        (data.parent / "away").rename(data)


def test_models_of_several_labels_are_compared_by_the_share_that_is_right(tmp_path: Path) -> None:
    models: list[Path] = []
    for seed in (0, 1):
        made: Any = vitkit.create_model("ViT-16x1x1/4", 3, 8)
        torch.nn.init.normal_(made.head.weight, generator=torch.Generator().manual_seed(seed))
        made.card = ModelCard("ViT-16x1x1/4", ("ant", "bee", "cat"), Task("multi-label", "sigmoid"))
        models.append(vitkit.save_model(made, tmp_path / f"model{seed}"))
    lines = ["path,labels,split"]
    for number in range(24):
        noise_image(tmp_path / "images" / f"{number}.png", number)
        labels = ";".join(name for place, name in enumerate(("ant", "bee", "cat")) if number >> place & 1)
        lines.append(f"{number}.png,{labels},test")
    (tmp_path / "images" / "labels.csv").write_text("\n".join(lines))
    data = str(tmp_path / "images" / "labels.csv")
    comparison, _ = compared(models[0], models[1], tmp_path / "out", data=data)
    assert (comparison.task, comparison.images) == ("multi-label", 24)
    assert comparison.score == "fraction of labels right"
    assert comparison.difference.flips.graded
    assert [change.count for change in comparison.classes] == [24, 24, 24]
    mean = np.mean([change.gain for change in comparison.classes])
    assert comparison.difference.mean == pytest.approx(mean)
    assert "Student's t of the images" in comparison.headline()[0]
    assert "mean average precision" in comparison.page.read_text()


def test_a_series_stands_for_its_first_run(on_photos: Sequence[Path], tmp_path: Path) -> None:
    run = kind_of(on_photos[0]).run()
    series = vitkit.train_series(run, tmp_path / "series", vitkit.SeriesOptions(runs=2))
    comparison, heard = compared(on_photos[1], series, tmp_path / "out")
    assert not evaluated(heard) and comparison.second.was_stored
    assert comparison.second.score == vitkit.evaluate(series / "seed-0").result.accuracy
    assert "series is a series of 2 runs: its first one, seed-0" in " ".join(comparison.headline())


def test_models_are_named_so_that_they_differ() -> None:
    for first, second, *labels in (
        ("runs/one", "runs/other", "one", "other"),
        ("runs/a/final", "runs/b/final/", "a/final", "b/final"),
        ("final", "b/final", "final", "b/final"),
        ("one", "one", "one (first)", "one (second)"),
        ("hf:org/name", "hf:other/name", "hf:org/name", "hf:other/name"),
    ):
        assert [*make_labels(first, second)] == labels
