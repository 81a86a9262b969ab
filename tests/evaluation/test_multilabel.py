"""Numbers of several labels an image, against scikit-learn and by hand."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from sklearn import metrics
from torch import nn

from tests.evaluation.answers import Table, batches, names, predictions
from tests.helpers.refusals import refused
from vitkit import config
from vitkit.evaluation.classify import MultiLabel, Ranking, intervals_95, multi_label
from vitkit.evaluation.predictions import Predictions
from vitkit.evaluation.run_model import predict
from vitkit.tasks.answering import MultiLabelAnswering


@st.composite
def scored(draw: st.DrawFn) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Logits with many ties, and labels, some of which no image has."""
    shape = draw(st.tuples(st.integers(1, 30), st.integers(1, 5)))
    levels = st.sampled_from([-30.0, -2.5, -1.0, -0.0, 0.0, 1e-7, 0.5, 3.0, 40.0, 41.0])
    logits = draw(arrays.arrays(np.float32, shape, elements=levels | st.floats(-50, 50, width=32)))
    return logits, draw(arrays.arrays(np.bool_, shape))


def require_same(mine: float | None, theirs: float) -> None:
    assert mine is None if np.isnan(theirs) else mine == pytest.approx(theirs, abs=1e-12)


@settings(deadline=None, max_examples=60)
@given(scored())
def test_all_numbers_are_those_of_scikit_learn(
    logits_and_targets: tuple[NDArray[np.float32], NDArray[np.bool_]],
) -> None:
    logits, targets = logits_and_targets
    result = multi_label(predictions(logits, targets), names(logits.shape[1]), intervals=False)
    precisions, f1s = [], []
    for score, row, truth in zip(result.per_label, logits.T, targets.T, strict=True):
        scores = metrics.precision_recall_fscore_support(
            truth, row >= 0, average="binary", zero_division=np.nan
        )
        for mine, theirs in zip((score.precision, score.recall, score.f1), scores[:3], strict=True):
            require_same(mine, theirs)
        f1s.append(scores[2])
        assert (score.count, score.predicted, score.correct) == (
            truth.sum(),
            (row >= 0).sum(),
            (truth & (row >= 0)).sum(),
        )
        if not truth.any():
            assert score.average_precision is None and score.best_f1 is None
            continue
        precisions.append(metrics.average_precision_score(truth, row))
        require_same(score.average_precision, precisions[-1])
        hits = [(2 * (truth & (row >= level)).sum(), truth.sum() + (row >= level).sum()) for level in row]
        require_same(score.best_f1, max(hit / total for hit, total in hits))
    said, every, named = logits >= 0, targets.ravel(), (logits >= 0).ravel()
    assert result.labels_that_occur == len(precisions)
    require_same(result.mean_average_precision, np.mean(precisions) if precisions else np.nan)
    micro = metrics.average_precision_score(every, logits.ravel()) if every.any() else np.nan
    require_same(result.micro_average_precision, micro)
    require_same(result.micro_f1, metrics.f1_score(every, named, zero_division=np.nan))
    require_same(result.macro_f1, np.nan if np.isnan(f1s).all() else np.nanmean(f1s))
    assert result.hamming_loss == pytest.approx((targets != said).mean())
    assert result.subset_accuracy == pytest.approx((targets == said).all(1).mean())
    per_image = (result.labels_per_image, result.predicted_per_image)
    assert per_image == pytest.approx((targets.sum(1).mean(), said.sum(1).mean()))
    wide, truths = torch.from_numpy(logits).double(), torch.from_numpy(targets).double()
    loss = nn.functional.binary_cross_entropy_with_logits(wide, truths, reduction="none")
    assert result.loss == pytest.approx(loss.sum(1).mean().item())


def test_of_equally_good_thresholds_the_largest_is_named() -> None:
    """From 3 on one image is named, rightly, of two; from 1 on all four are: both times F1 is 2/3."""
    result = multi_label(predictions([[3.0], [2.0], [1.5], [1.0]], [[1], [0], [0], [1]]), ["one"])
    (score,) = result.per_label
    assert score.best_f1 == pytest.approx(2 / 3)
    assert score.best_threshold == pytest.approx(1 / (1 + math.exp(-3)))
    saturated = multi_label(predictions([[50.0], [60.0]], [[0], [1]]), ["one"])
    assert saturated.mean_average_precision == 1.0  # no tie, though both probabilities are 1 in float64


def simulated(count: int, seed: int, classes: int = 4) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    draw = np.random.default_rng(seed)
    targets = draw.random((count, classes)) < 0.3
    return (targets * 1.5 + draw.normal(0, 1, (count, classes))).astype(np.float32), targets


@settings(deadline=None, max_examples=50)
@given(scored())
def test_without_each_image_the_precision_is_that_of_the_others(
    logits_and_targets: tuple[NDArray[np.float32], NDArray[np.bool_]],
) -> None:
    scores, truth = logits_and_targets[0][:, 0], logits_and_targets[1][:, 0]
    values = Ranking.from_scores(scores, truth).without_each()
    for image, value in enumerate(values):
        others = np.arange(len(scores)) != image
        if truth[others].any():
            slow = metrics.average_precision_score(truth[others], scores[others])
            assert value == pytest.approx(slow, abs=1e-12)
        else:
            assert np.isnan(value)


def test_the_interval_is_the_same_every_time_and_narrower_with_more_images() -> None:
    few, again = (multi_label(predictions(*simulated(100, 0)), names(4)) for _ in range(2))
    assert few == again == config.from_json(MultiLabel, json.loads(json.dumps(few.to_json())), "test")
    many = multi_label(predictions(*simulated(2000, 0)), names(4))
    assert many.mean_average_precision_interval and few.mean_average_precision_interval
    low, high = many.mean_average_precision_interval
    widest = few.mean_average_precision_interval
    assert high - low < (widest[1] - widest[0]) / 2
    for score in few.per_label:
        assert score.average_precision is not None and score.average_precision_interval is not None
        low, high = score.average_precision_interval
        assert 0 <= low < score.average_precision < high <= 1


def test_labels_of_the_same_images_vary_together() -> None:
    """Ten copies of a label tell no more than one of them."""
    rankings = [
        Ranking.from_scores(row, truth)
        for row, truth in zip(*(part.T for part in simulated(200, 5, 10)), strict=True)
    ]
    once, copies, apart = (intervals_95(some)[0] for some in (rankings[:1], rankings[:1] * 10, rankings))
    assert once and copies and apart
    assert copies[1] - copies[0] > 0.85 * (once[1] - once[0]) > 1.7 * (apart[1] - apart[0])


def test_a_perfect_ranking_of_few_images_is_not_sure() -> None:
    """Without any of them it stays perfect: that is no proof that it will be on other images."""
    logits = np.linspace(3, -3, 40)[:, None]
    whole, (single,) = intervals_95([Ranking.from_scores(logits[:, 0].astype(np.float32), np.arange(40) < 8)])
    assert whole == single is not None
    assert 0.5 < single[0] < 0.8 and single[1] == 1.0


def test_rare_labels_have_no_interval_and_it_is_said() -> None:
    logits, targets = simulated(60, 0)
    targets[:, 1] = np.arange(60) < 2
    targets[:, 2] = False
    result = multi_label(predictions(logits, targets), names(4))
    assert result.mean_average_precision_interval is None and "(class 1)" in result.explain_no_interval()
    singles = [score.average_precision_interval for score in result.per_label]
    assert [single is None for single in singles] == [False, True, True, False]
    reason = "no 95 % interval: 1 label is on fewer than 3 images (class 1)"
    for text in (result.summary(), result.sentence("images")):
        assert f" ({reason})" in text
    assert result.to_json()["mean_average_precision_interval"] is None
    page = MultiLabelAnswering().report({"test": (result, predictions(logits, targets))}, "test")
    assert f"N{reason[1:]}." in page.answer[0].sentences
    targets[2, 1] = True  # a third image
    whole = multi_label(predictions(logits, targets), names(4))
    assert whole.mean_average_precision_interval is not None and not whole.explain_no_interval()


@settings(deadline=None, max_examples=15)
@given(st.integers(1, 12), st.permutations(range(10)), st.sets(st.integers(0, 9), max_size=5))
def test_the_result_does_not_depend_on_batches_or_order(size: int, order: list[int], bad: set[int]) -> None:
    generator = torch.Generator().manual_seed(0)
    model = Table(torch.randn(10, 4, generator=generator)).train()
    targets = torch.rand(10, 4, generator=generator) < 0.4
    once = predict(model, batches(list(range(10)), targets, 10, bad))
    split = predict(model, batches(order, targets, size, bad))
    assert multi_label(split, names(4)) == multi_label(once, names(4))
    assert split.bad.tolist() == sorted(bad) and split.ids.tolist() == sorted(set(range(10)) - bad)
    np.testing.assert_array_equal(split.labels, targets.numpy()[split.ids])
    assert model.training


def test_outputs_that_cannot_be_scored_are_refused() -> None:
    targets = torch.zeros(3, 2, dtype=torch.bool)
    infinite, made = torch.tensor([[0.0, 1], [math.inf, 0], [0, 0]]), batches([0, 1, 2], targets, 2)
    refused(r"not finite .* for 1 of 3 images", predict, Table(infinite), made)
    refused("one logit for each image and label", predict, Table(torch.zeros(3, 3)), made)
    refused("There is no image", predict, Table(torch.zeros(3, 2)), [])
    none = np.zeros((0, 2))
    refused("no readable image", multi_label, predictions(none, none, bad=3), names(2))
    refused("3 label names", multi_label, predictions(np.zeros((2, 2)), np.zeros((2, 2))), names(3))


def test_predictions_come_back_from_their_files(tmp_path: Path) -> None:
    path, labels = tmp_path / "test.json", tmp_path / "test.labels.npy"
    logits, targets = simulated(20, 2)
    made = predictions(logits, targets, bad=2)
    made.save(path)
    again = Predictions.load(path, several_labels=True)
    np.testing.assert_array_equal(again.logits, logits)
    np.testing.assert_array_equal(again.labels, targets)
    assert again.bad.tolist() == [20, 21] and len(again) == 20
    whole = labels.read_bytes()
    np.save(labels, targets.astype(np.int64) + 256)  # which bytes would hold as 0 and 1
    larger = labels.read_bytes()
    for damaged in (whole[:-40], whole.replace(b"\x01", b"\x02"), b"", larger):
        labels.write_bytes(damaged)
        message = "a label 257, not below 2" if damaged == larger else labels.name
        refused(message, Predictions.load, path, several_labels=True)
    Predictions(made.logits, targets[:, :3], made.ids, made.bad).save(path)
    refused(r"expected logits and labels \(N, K\)", Predictions.load, path, several_labels=True)


def test_the_figure_shows_the_worst_labels_with_intervals() -> None:
    from vitkit.analysis.figures import BARS_SHOWN, label_precision

    logits, targets = simulated(60, 4, BARS_SHOWN + 6)
    targets[:, 0] = False  # a label without images is left out
    result = multi_label(predictions(logits, targets), names(BARS_SHOWN + 6))
    figure = label_precision(result.per_label, result.count, "60 test images")
    (axes,) = figure.axes
    assert len(axes.patches) == BARS_SHOWN
    widths = [bar.get_width() for bar in axes.patches]  # type: ignore[attr-defined]
    assert widths == sorted(widths)
    assert f"the {BARS_SHOWN} worst of {BARS_SHOWN + 5} labels" in figure.get_suptitle()
    assert not any(label.get_text().startswith("class 0 ") for label in axes.get_yticklabels())


def test_an_image_is_scored_by_the_labels_that_are_right() -> None:
    predicted = predictions([[3, -1, 2, -4], [1, 1, -1, -1]], [[1, 1, 1, 0], [0, 0, 1, 1]])
    assert MultiLabelAnswering().score_images(predicted).tolist() == [0.75, 0.0]
