"""A classifier is run once, and counted: by other libraries, by hand, and at the edges."""

import json
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.evaluation.answers import Table, batches, names, predictions
from tests.evaluation.reference import require_alike
from vitkit import config
from vitkit.data.stream.loader import Batch
from vitkit.errors import VitkitError
from vitkit.evaluation.classify import (
    CALIBRATION_BINS,
    Classification,
    calibration_bins,
    classification,
    mark_repeats,
)
from vitkit.evaluation.predictions import Predictions, check_labels, image_scores, likeliest, probabilities
from vitkit.evaluation.run_model import evaluation_mode, predict
from vitkit.evaluation.statistics import binomial_interval
from vitkit.models.config import LossFunction
from vitkit.training import objectives
from vitkit.training.config import ClassificationConfig

LOSSES: tuple[LossFunction, ...] = ("softmax", "sigmoid")

# Predicting


def test_modes_are_restored_and_progress_is_told() -> None:
    model = Table(torch.eye(4)).train()
    model.frozen.eval()
    progress_counts: list[int] = []
    predict(model, batches([0, 1, 2, 3], [0, 1, 2, 3], 3), progress=progress_counts.append)
    assert model.seen == [False, False] and model.training and not model.frozen.training
    assert progress_counts == [3, 1]
    with pytest.raises(RuntimeError), evaluation_mode(model):
        raise RuntimeError
    assert model.training


def test_bfloat16_gives_float32_logits() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    mask = torch.ones(2, dtype=torch.bool)
    batch = Batch(torch.rand(2, 3, 2, 2), {"labels": mask.long()}, mask, torch.arange(2))
    exact = predict(model, [batch]).logits
    rounded = predict(model, [batch], precision="bfloat16").logits
    assert rounded.dtype == np.float32
    assert 0 < np.abs(exact - rounded).max() < 0.05


@pytest.mark.parametrize(
    ("logits", "message"),
    [
        (torch.full((2, 3), torch.nan), "not finite .* for 2 of 2 images"),
        (torch.zeros(2, 5, 3), "one row of logits per image"),
    ],
)
def test_predict_refuses(logits: torch.Tensor, message: str) -> None:
    with pytest.raises(VitkitError, match=message):
        predict(Table(logits), batches([0, 1], [0, 1], 2))
    with pytest.raises(VitkitError, match="empty"):
        predict(Table(logits), [])


# Counting


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 9), st.integers(1, 40), st.integers(0, 2**32 - 1), st.sampled_from(LOSSES))
def test_the_numbers_are_those_of_other_libraries(
    count: int, images: int, seed: int, loss: LossFunction
) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, count, images)
    made = predictions(rng.normal(size=(images, count)), labels, loss=loss)
    require_alike(classification(made, names(count)), made.logits, labels, loss)


def test_ties_go_to_the_lower_class_number() -> None:
    result = classification(predictions(np.zeros((8, 8)), np.arange(8)), names(8))
    assert result.correct == 1 and result.top5_accuracy == 5 / 8


def test_classes_without_images_have_no_recall() -> None:
    result = classification(predictions([[9, 0, 0], [9, 0, 0]], [0, 1]), ["a", "b", "c"])
    a, b, c = result.per_class
    assert (a.precision, a.recall, a.f1) == (0.5, 1.0, 2 / 3)
    assert (b.precision, b.recall, b.f1) == (None, 0.0, 0.0)
    assert (c.precision, c.recall, c.f1) == (None, None, None)
    assert result.balanced_accuracy == 0.5 and result.macro_f1 == pytest.approx(1 / 3)


def test_calibration_by_hand() -> None:
    # Confidences 0.9, 0.9 (one of two right) and 0.58 (right): |0.5 - 0.9| * 2/3 + |1 - 0.58| * 1/3
    logits = np.log([[0.9, 0.1], [0.9, 0.1], [0.42, 0.58]])
    result = classification(predictions(logits, [0, 1, 1]), ["a", "b"])
    assert result.calibration_error == pytest.approx(1.22 / 3)
    used = {i: b for i, b in enumerate(result.calibration) if b.count}
    assert sorted(used) == [8, 13]
    assert used[13].count == 2 and used[13].accuracy == 0.5 and used[13].confidence == pytest.approx(0.9)
    assert result.calibration[0].confidence is None and result.calibration[0].accuracy is None
    certain = classification(predictions([[1000, 0], [1000, 0]], [0, 0]), ["a", "b"])
    assert certain.calibration[-1].count == 2 and certain.calibration_error == 0 and certain.loss == 0


@pytest.mark.parametrize(("confidence", "number"), [(0.0, 0), (0.2, 2), (0.6, 8), (0.61, 9), (1.0, 14)])
def test_a_confidence_on_the_edge_is_in_the_bin_below(confidence: float, number: int) -> None:
    """As Guo et al. have it: a bin holds its upper end and not its lower one."""
    bins = calibration_bins(np.array([confidence]), np.array([True]))
    assert [interval.count for interval in bins] == [int(i == number) for i in range(CALIBRATION_BINS)]
    assert bins[number].lower <= confidence <= bins[number].upper and bins[number].accuracy == 1


@given(st.integers(1, 10**6).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_interval_holds_the_share(case: tuple[int, int]) -> None:
    correct, count = case
    lower, upper = binomial_interval(correct, count)
    assert 0 <= lower <= correct / count <= upper <= 1
    assert binomial_interval(0, 0) == (0.0, 1.0)  # nothing counted says nothing


def test_to_json_is_plain() -> None:
    result = classification(predictions(np.eye(6), range(6), bad=2), names(6))
    plain = json.loads(json.dumps(result.to_json()))
    assert config.from_json(Classification, plain, "test.json") == result
    assert plain["bad"] == 2 and plain["count"] == 6
    assert plain["confusion_cells"] == [[i, i, 1] for i in range(6)]
    assert plain["per_class"][0]["name"] == "class 0"


@pytest.mark.parametrize(
    ("made", "count", "message"),
    [
        (predictions(np.zeros((0, 3)), [], bad=4), 3, r"no readable image .*4 could not"),
        (predictions(np.zeros((1, 3)), [0]), 2, "3 outputs, but 2 class names"),
        (predictions(np.zeros((1, 3)), [3]), 3, "Labels run from 3 to 3"),
        (predictions(np.zeros((1, 3)), [-1]), 3, "Labels run from -1"),
    ],
)
def test_classification_refuses(made: Predictions, count: int, message: str) -> None:
    with pytest.raises(VitkitError, match=message):
        classification(made, names(count))


def test_accuracy_without_images_of_training_leaves_them_out() -> None:
    """The model is right on both training images among the six, and on two of the other four."""
    logits = np.eye(2)[[0, 0, 1, 0, 0, 1]]
    marked = predictions(logits, [0, 0, 1, 1, 1, 1])
    repeated = mark_repeats(classification(marked, names(2)), marked, np.array([0, 2])).repeated
    assert repeated is not None
    assert (repeated.count, repeated.correct, repeated.accuracy_without) == (2, 2, 0.5)
    assert repeated.interval_without == binomial_interval(2, 4)


# What logits mean, by the loss that a model was trained with


def test_probabilities_are_those_of_torch() -> None:
    logits = torch.randn(20, 7, generator=torch.Generator().manual_seed(0)) * 5
    wide = logits.double()
    assert probabilities(logits.numpy(), "softmax") == pytest.approx(wide.softmax(1).numpy(), rel=1e-12)
    assert probabilities(logits.numpy(), "sigmoid") == pytest.approx(wide.sigmoid().numpy(), rel=1e-12)


@pytest.mark.parametrize("loss", LOSSES)
def test_large_logits_neither_overflow_nor_warn(loss: LossFunction) -> None:
    logits = np.array([[3e4, -3e4, 0], [-3e4, -3e4, -3e4], [3e38, -3e38, 3e38]], np.float32)
    shares = probabilities(logits, loss)
    assert np.isfinite(shares).all() and shares.min() >= 0 and shares.max() <= 1
    scores = image_scores(logits, np.array([1, 0, 1]), loss)
    assert np.isfinite(scores.loss).all() and scores.loss[0] >= 3e4


@pytest.mark.parametrize("loss", LOSSES)
def test_the_loss_is_that_of_training_without_smoothing(loss: LossFunction) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 6)).eval()
    labels = torch.tensor([0, 5, 3, 1])
    mask = torch.tensor([True, True, False, True])
    batch = Batch(torch.randn(4, 3, 2, 2) * 3, {"labels": labels}, mask, torch.arange(4))
    objective = objectives.Classification(ClassificationConfig(loss=loss), 6)
    with torch.no_grad():
        trained, _ = objective(model, batch, 0, 1)
    evaluated = predict(model, [batch], loss=loss).scores.loss
    assert evaluated.mean() == pytest.approx(trained.item(), rel=1e-6)


def test_sigmoid_confidence_is_that_of_the_predicted_class_alone() -> None:
    logits = np.log(np.array([[3.0, 9.0, 4.0]], np.float32))  # sigmoid: 0.75, 0.9, 0.8
    scores = image_scores(logits, np.array([0]), "sigmoid")
    assert scores.predicted.tolist() == [1] and scores.rank.tolist() == [2]
    assert scores.confidence == pytest.approx(0.9)
    assert scores.loss == pytest.approx(-np.log(0.75) - np.log(0.1) - np.log(0.2))


def test_the_likeliest_classes_are_ordered_and_the_lower_of_equals_is_first() -> None:
    logits = np.random.default_rng(0).integers(-3, 3, (50, 12)).astype(np.float32)
    before = logits.copy()
    classes = likeliest(logits, 5)
    np.testing.assert_array_equal(classes, np.argsort(-logits, axis=1, kind="stable")[:, :5])
    np.testing.assert_array_equal(classes[:, 0], logits.argmax(1))
    np.testing.assert_array_equal(logits, before)
    # A model that says the same of all classes is not right among its first five for every image.
    labels = np.array([0, 4, 5])
    scores = image_scores(np.zeros((3, 6), np.float32), labels, "softmax")
    assert scores.rank.tolist() == [0, 4, 5] and scores.predicted.tolist() == [0, 0, 0]


def test_labels_are_classes_of_the_model() -> None:
    for labels, fits in (([0, 2], True), ([0, 3], False), ([-1, 2], False), ([], True)):
        with nullcontext() if fits else pytest.raises(VitkitError, match="the model has classes 0 to 2"):
            check_labels(np.array(labels, np.int64), 3)
