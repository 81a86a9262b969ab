"""A classifier is run once, and counted: by other libraries, by hand, and at the edges."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.evaluation.answers import Table, batches, names, predictions
from tests.evaluation.reference import require_alike
from tests.helpers.refusals import refused
from vitkit.data.stream.loader import Batch
from vitkit.evaluation.classify import CALIBRATION_BINS, calibration_bins, classification, mark_repeats
from vitkit.evaluation.predictions import Predictions, image_scores, likeliest, probabilities
from vitkit.evaluation.run_model import evaluation_mode, predict
from vitkit.evaluation.statistics import binomial_interval
from vitkit.models.config import LossFunction

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
    refused(message, predict, Table(logits), batches([0, 1], [0, 1], 2))
    refused("empty", predict, Table(logits), [])


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


@pytest.mark.parametrize(("confidence", "number"), [(0.0, 0), (0.2, 2), (0.6, 8), (0.61, 9), (1.0, 14)])
def test_a_confidence_on_the_edge_is_in_the_bin_below(confidence: float, number: int) -> None:
    """As Guo et al. have it: a bin holds its upper end and not its lower one."""
    bins = calibration_bins(np.array([confidence]), np.array([True]))
    assert [interval.count for interval in bins] == [int(i == number) for i in range(CALIBRATION_BINS)]
    assert bins[number].lower <= confidence <= bins[number].upper and bins[number].accuracy == 1


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
    refused(message, classification, made, names(count))


def test_accuracy_without_images_of_training_leaves_them_out() -> None:
    """The model is right on both training images among the six, and on two of the other four."""
    logits = np.eye(2)[[0, 0, 1, 0, 0, 1]]
    marked = predictions(logits, [0, 0, 1, 1, 1, 1])
    repeated = mark_repeats(classification(marked, names(2)), marked, np.array([0, 2])).repeated
    assert repeated is not None
    assert (repeated.count, repeated.correct, repeated.accuracy_without) == (2, 2, 0.5)
    assert repeated.interval_without == binomial_interval(2, 4)


# What logits mean, by the loss that a model was trained with


@pytest.mark.parametrize("loss", LOSSES)
def test_large_logits_neither_overflow_nor_warn(loss: LossFunction) -> None:
    logits = np.array([[3e4, -3e4, 0], [-3e4, -3e4, -3e4], [3e38, -3e38, 3e38]], np.float32)
    shares = probabilities(logits, loss)
    assert np.isfinite(shares).all() and shares.min() >= 0 and shares.max() <= 1
    scores = image_scores(logits, np.array([1, 0, 1]), loss)
    assert np.isfinite(scores.loss).all() and scores.loss[0] >= 3e4


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
