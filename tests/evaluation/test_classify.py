import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics
from torch import nn

from vitkit import config
from vitkit.data.stream.loader import Batch
from vitkit.errors import VitkitError
from vitkit.evaluation.classify import Classification, classification, mark_repeats
from vitkit.evaluation.predictions import Predictions
from vitkit.evaluation.run_model import evaluation_mode, predict
from vitkit.evaluation.statistics import binomial_interval


def predictions(logits: object, labels: object, bad: int = 0) -> Predictions:
    rows = np.asarray(logits, np.float32)
    ids = np.arange(len(rows) + bad)
    return Predictions(rows, np.asarray(labels, np.int64), ids[: len(rows)], ids[len(rows) :])


def names(count: int) -> list[str]:
    return [f"class {i}" for i in range(count)]


class Table(nn.Module):
    """Looks its logits up by the image's first pixel."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self.logits = logits
        self.frozen = nn.Dropout(0.5).eval()
        self.seen: list[bool] = []

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.seen.append(self.training)
        return self.logits[images[:, 0, 0, 0].long()]


def batches(ids: list[int], labels: list[int], size: int, unreadable: tuple[int, ...] = ()) -> list[Batch]:
    made = []
    for start in range(0, len(ids), size):
        part = torch.tensor(ids[start : start + size])
        images = part.to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 2, 2)
        mask = torch.tensor([i not in unreadable for i in part.tolist()])
        made.append(Batch(images, {"labels": torch.tensor([labels[i] for i in part.tolist()])}, mask, part))
    return made


# Predicting


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 12), st.permutations(range(10)), st.sets(st.integers(0, 9), max_size=5))
def test_result_does_not_depend_on_batches_or_order(size: int, order: list[int], bad: set[int]) -> None:
    model = Table(torch.randn(10, 7, generator=torch.Generator().manual_seed(0)))
    labels = [i % 7 for i in range(10)]
    once = predict(model, batches(list(range(10)), labels, 10, tuple(bad)))
    split = predict(model, batches(order, labels, size, tuple(bad)))
    assert classification(split, names(7)) == classification(once, names(7))
    assert split.bad.tolist() == sorted(bad)
    assert split.ids.tolist() == sorted(set(range(10)) - bad)


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
    images = torch.rand(2, 3, 2, 2)
    batch = Batch(
        images,
        {"labels": torch.zeros(2, dtype=torch.int64)},
        torch.ones(2, dtype=torch.bool),
        torch.arange(2),
    )
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


def test_no_batch_is_an_error() -> None:
    with pytest.raises(VitkitError, match="empty"):
        predict(Table(torch.eye(2)), [])


def test_save_and_load(tmp_path: Path) -> None:
    made = predictions([[1, 2], [3, 4]], [0, 1], bad=1)
    for _ in range(2):  # also over an older file
        made.save(tmp_path / "test.json")
    loaded = Predictions.load(tmp_path / "test.json")
    for name in ("logits", "labels", "ids", "bad"):
        array, stored = getattr(made, name), getattr(loaded, name)
        assert array.dtype == stored.dtype and (array == stored).all()


# Counting


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_same_numbers_as_scikit_learn(data: st.DataObject) -> None:
    classes = data.draw(st.integers(2, 9))
    count = data.draw(st.integers(1, 40))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    labels = rng.integers(0, classes, count)
    made = predictions(rng.normal(size=(count, classes)), labels)
    result, said = classification(made, names(classes)), made.predicted
    every = np.arange(classes)
    assert result.accuracy == metrics.accuracy_score(labels, said)
    assert (result.confusion == metrics.confusion_matrix(labels, said, labels=every)).all()
    assert result.macro_f1 == pytest.approx(metrics.f1_score(labels, said, average="macro", zero_division=0))
    seen = sorted(set(labels.tolist()))
    recall = metrics.recall_score(labels, said, labels=seen, average="macro", zero_division=0)
    assert result.balanced_accuracy == pytest.approx(recall)
    probabilities = torch.from_numpy(made.logits).double().softmax(1).numpy()
    assert result.loss == pytest.approx(metrics.log_loss(labels, probabilities, labels=every))
    if classes > 5:
        top5 = metrics.top_k_accuracy_score(labels, made.logits, k=5, labels=every)
        assert result.top5_accuracy == pytest.approx(top5)
    else:
        assert result.top5_accuracy is None
    precision, recalls, f1, support = metrics.precision_recall_fscore_support(
        labels, said, labels=every, zero_division=np.nan
    )
    for i, score in enumerate(result.per_class):
        assert score.count == support[i]
        for mine, theirs in ((score.precision, precision[i]), (score.recall, recalls[i]), (score.f1, f1[i])):
            assert (np.isnan(theirs) and mine is None) or mine == pytest.approx(theirs)


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


def test_certainty_falls_into_the_last_bin() -> None:
    result = classification(predictions([[1000, 0], [1000, 0]], [0, 0]), ["a", "b"])
    assert result.calibration[-1].count == 2 and result.calibration_error == 0 and result.loss == 0


@pytest.mark.parametrize(
    ("correct", "count"), [(5, 10), (0, 10), (10, 10), (81, 263), (358, 360), (1, 9_000)]
)
def test_the_interval_is_the_exact_one(correct: int, count: int) -> None:
    expected = stats.binomtest(correct, count).proportion_ci(0.95, "exact")
    assert binomial_interval(correct, count) == pytest.approx((expected.low, expected.high), rel=1e-9)


def test_nothing_counted_says_nothing() -> None:
    assert binomial_interval(0, 0) == (0.0, 1.0)


@given(st.integers(1, 10**6).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_interval_holds_the_share(case: tuple[int, int]) -> None:
    correct, count = case
    lower, upper = binomial_interval(correct, count)
    assert 0 <= lower <= correct / count <= upper <= 1


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
