"""Runs that begin with the ridge solution on the features of their start."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.optimize import minimize_scalar

from tests.jobs.hearing import Hearing
from vitkit import load_model
from vitkit.data.config import Preprocessing, Splits
from vitkit.data.listing import class_numbers
from vitkit.data.sources import open_data
from vitkit.errors import VitkitError
from vitkit.evaluation.features import FeatureExtractor
from vitkit.evaluation.fewshot.folds import mixed_order
from vitkit.evaluation.fewshot.methods import Floats, Integers
from vitkit.jobs import train as training
from vitkit.models.build import create_model
from vitkit.runs import ridge_head
from vitkit.runs.config import Run, StartConfig, read_run
from vitkit.runs.ridge_head import ALONE, PENALTIES, SCALES, Ridge, fit_head
from vitkit.training.config import ClassificationConfig, OptimizerConfig, TrainingConfig
from vitkit.weights.saving import save_model

pytestmark = pytest.mark.usefixtures("without_report")
STILL = OptimizerConfig(learning_rate=1e-30, weight_decay=0.0)
RULE = Preprocessing((8, 8), resize="crop")


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Random weights: their features tell digits apart too."""
    folder = tmp_path_factory.mktemp("start") / "model"
    save_model(create_model("ViT-16x2x2/2", 3, 8, generator=torch.Generator().manual_seed(0)), folder)
    yield folder


def ridge_run(start: Path, **changes: Any) -> Run:
    """A short run on digits that begins with the ridge solution."""
    run = Run(
        data="digits",
        model="",
        start=StartConfig(str(start), head="ridge"),
        preprocessing=RULE,
        optimizer=OptimizerConfig(learning_rate=0.01, warmup_steps=2, polyak=0.9),
        training=TrainingConfig(steps=8, batch_size=64, checkpoint_every=4, evaluate_every=4, log_every=1),
    )
    return replace(run, **changes)


@pytest.mark.parametrize("most", [10_000, 300])
def test_the_head_begins_as_the_closed_form(
    tmp_path: Path, start: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """At a rate of 1e-30 nothing moves: the run ends with the head that it began with."""
    monkeypatch.setattr(ridge_head, "MOST_IMAGES", most)
    hearing = Hearing()
    training.train(ridge_run(start, optimizer=STILL), tmp_path / "run", listener=hearing)
    weights = load_file(tmp_path / "run/model.safetensors")
    samples = open_data("digits", Splits(), RULE.decode).splits["train"]
    extractor = FeatureExtractor(load_model(start), RULE, torch.device("cpu"))
    labels = class_numbers(samples.labels)
    used = np.sort(mixed_order(labels, 0)[:most])
    assert len(used) == min(most, len(samples))
    shares = np.bincount(labels[used]) / len(used)
    assert np.allclose(shares, np.bincount(labels) / len(labels), atol=0.01)
    head = fit_head(extractor.compute(samples, used).rows, labels[used], 10)
    assert np.allclose(weights["head.weight"], head.weight, rtol=1e-3, atol=1e-3)
    assert np.allclose(weights["head.bias"], head.bias, rtol=1e-3, atol=1e-3)
    said = dict(hearing.rows)["start"]
    assert any(line.startswith("head: new, the ridge solution on its features, 10 classes") for line in said)
    assert any(f"on features of {len(used):,} training images" in note for note in hearing.notes)
    assert hearing.done["features for the head"] == len(used)
    trunk = load_file(start / "model.safetensors")
    assert all(torch.allclose(weights[x], trunk[x], rtol=0, atol=1e-27) for x in weights if x[:5] != "head.")


def test_it_is_right_more_often_than_zeros_before_any_step(tmp_path: Path, start: Path) -> None:
    training.train(ridge_run(start, optimizer=STILL), tmp_path / "run")
    test = json.loads((tmp_path / "run/evaluation/test.json").read_text())
    assert test["accuracy"] > 0.3 and test["loss"] < 2  # of zeros: 0.1 and 2.3


def test_killed_before_its_first_checkpoint_it_begins_again_with_the_same_bits(
    tmp_path: Path, start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = training.train(ridge_run(start), tmp_path / "whole")
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="killed"):

        def killed(*_arguments: Any) -> None:
            raise RuntimeError("killed")

        patch.setattr(training, "fit", killed)
        training.train(ridge_run(start), tmp_path / "part")
    training.train(ridge_run(start), tmp_path / "part")
    for name in ("model.safetensors", "metrics.jsonl"):
        assert (tmp_path / "part" / name).read_bytes() == (whole / name).read_bytes()


def test_a_resumed_run_has_its_head_from_the_checkpoint(
    tmp_path: Path, start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = training.train(ridge_run(start), tmp_path / "run")
    expected = (whole / "model.safetensors").read_bytes()
    (last,) = (whole / "checkpoints").glob("step-00000008")
    for file in sorted(last.rglob("*")):
        file.unlink()
    last.rmdir()
    (whole / "report.html").unlink()
    monkeypatch.setattr(ridge_head, "fit_head", None)  # calling it would fail
    training.train(read_run(whole), whole, resume=True)
    assert (whole / "model.safetensors").read_bytes() == expected


@pytest.mark.parametrize("name", ["BiT-R2-2-2x0.5", "ViT-16x1x2/8-gap", "ViT-16x1x2/8-map"])
def test_all_families_begin_with_it(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ridge_head, "MOST_IMAGES", 40)
    save_model(create_model(name, num_classes=7, image_size=32), tmp_path / "start")
    run = ridge_run(
        tmp_path / "start",
        preprocessing=Preprocessing((32, 32)),
        training=TrainingConfig(steps=1, batch_size=4, evaluate_test=False),
        splits=Splits(val_fraction=0.0),
        optimizer=STILL,
    )
    training.train(run, tmp_path / "run")
    assert load_file(tmp_path / "run/model.safetensors")["head.weight"].abs().max() > 0.1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"start": StartConfig(head="ridge"), "model": "ViT-16x2x2/2"}, "give --start, or leave"),
        ({"objective": ClassificationConfig(loss="sigmoid")}, "for one class an image and the softmax loss"),
    ],
)
def test_where_there_is_no_solution_it_is_refused(
    tmp_path: Path, start: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(VitkitError, match=message):
        training.train(replace(ridge_run(start), **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def blobs(images: int, features: int, classes: int, seed: int = 0) -> tuple[Floats, Integers]:
    """Features of classes that overlap, with another scale in each column."""
    rng = np.random.default_rng(seed)
    labels = np.arange(images) % classes
    rows = 0.7 * rng.normal(size=(classes, features))[labels] + rng.normal(size=(images, features))
    return (rows * rng.uniform(0.1, 10, features) + 3).astype(np.float32), labels


def solve(x: Floats, y: Floats, penalty: float) -> tuple[Floats, Floats]:
    """Weights and intercept by the normal equations, the intercept without a penalty."""
    mean = x.mean(0)
    weights = np.linalg.solve((x - mean).T @ (x - mean) + penalty * np.eye(x.shape[1]), (x - mean).T @ y)
    return weights, y.mean(0) - mean @ weights


@pytest.mark.parametrize(("images", "features"), [(12, 30), (60, 5), (9, 9)])
@pytest.mark.parametrize("penalty", [1e-3, 1.0, 100.0])
def test_leaving_one_out_in_closed_form_is_solving_without_it(
    images: int, features: int, penalty: float
) -> None:
    rows, labels = blobs(images, features, 3)
    x, y = np.asarray(rows - rows.mean(0), np.float64), np.eye(3)[labels]
    x -= x.mean(0)
    ridge = Ridge(x, y)
    weights, _ = solve(x, y, penalty * ridge.unit)
    assert np.allclose(ridge.weights(penalty), weights, rtol=1e-7, atol=1e-10)
    for left in range(images):
        others = np.arange(images) != left
        weights, intercept = solve(x[others], y[others], penalty * ridge.unit)
        assert np.allclose(ridge.left_out(penalty)[left], x[left] @ weights + intercept, rtol=1e-6, atol=1e-8)


def test_penalty_and_scale_are_the_best_for_images_left_out() -> None:
    rows, labels = blobs(90, 20, 3)
    head = fit_head(rows, labels, 3)
    x = (rows.astype(np.float64) - rows.mean(0, dtype=np.float64)) / (rows.std(0, dtype=np.float64) + 1e-5)
    ridge = Ridge(x, np.eye(3)[labels])
    errors = [float(((ridge.left_out(penalty) - ridge.targets) ** 2).sum()) for penalty in PENALTIES]
    assert head.penalty == PENALTIES[int(np.argmin(errors))]
    predicted = ridge.left_out(head.penalty)
    assert head.right == (predicted.argmax(1) == labels).mean()
    targets = np.eye(3)[labels] * (1 - 1 / 92) + 1 / 92 / 3  # as if one image more had any label

    def loss(scale: float) -> float:
        logits = scale * predicted
        return float((np.log(np.exp(logits).sum(1)) - (targets * logits).sum(1)).mean())

    best = minimize_scalar(loss, bounds=(0.1, 50), method="bounded", options={"xatol": 1e-7})
    logits, scores = rows @ head.weight.T + head.bias, x @ ridge.weights(head.penalty) + ridge.intercept
    # Logits are the scores times the scale, but for the rounding of float32 features.
    assert np.allclose(logits, best.x * scores, rtol=1e-4, atol=1e-3)
    assert (logits.argmax(1) == labels).mean() > 0.8


def test_the_same_features_give_the_same_bits() -> None:
    first, second = (fit_head(*blobs(50, 80, 5), 5) for _ in range(2))
    assert np.array_equal(first.weight, second.weight) and np.array_equal(first.bias, second.bias)


def test_a_class_without_images_is_predicted_last() -> None:
    rows, labels = blobs(40, 10, 2)
    head = fit_head(rows, labels * 2, 3)  # of classes 0, 1, 2 the middle one is missing
    assert np.isfinite(head.weight).all() and not head.weight[1].any()
    assert not ((rows @ head.weight.T + head.bias).argmax(1) == 1).any()


def test_of_one_image_a_class_nothing_is_left_out() -> None:
    rows, labels = blobs(4, 10, 4)
    head = fit_head(rows, labels, 4)
    logits = rows @ head.weight.T + head.bias
    assert head.penalty == ALONE and head.right is None
    assert (logits.argmax(1) == labels).all()
    assert np.isclose((logits - logits.mean(1, keepdims=True)).std(), 1, rtol=1e-5)


def test_a_class_of_one_image_takes_no_part_in_the_choice() -> None:
    rows, labels = blobs(40, 10, 2)
    labels[-1] = 2
    head = fit_head(rows, labels, 3)
    assert head.right is not None and head.right > 0.7
    assert (rows[-1] @ head.weight.T + head.bias)[2] > (rows[0] @ head.weight.T + head.bias)[2]


def test_images_that_are_told_apart_with_certainty_leave_some_doubt() -> None:
    rows, labels = blobs(20, 4, 2)
    rows[:, 0] = 100 * labels  # far apart
    logits = rows @ fit_head(rows, labels, 2).weight.T
    spread = (logits - logits.mean(1, keepdims=True)).std()
    assert SCALES[0] < spread < 5


@pytest.mark.parametrize("images", [1, 10])
def test_features_that_are_all_alike_say_nothing_but_the_shares(images: int) -> None:
    labels = np.zeros(images, np.int64)
    labels[: images // 5] = 1
    head = fit_head(np.full((images, 6), 0.1, np.float32), labels, 2)
    assert np.isfinite(head.bias).all() and abs(head.weight).max() < 1e-3
    assert head.bias[0] > head.bias[1]


def test_no_images_are_refused() -> None:
    with pytest.raises(VitkitError, match="no training image can be read"):
        fit_head(np.zeros((0, 3), np.float32), np.zeros(0, np.int64), 2)
