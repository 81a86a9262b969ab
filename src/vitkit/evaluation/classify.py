"""How well a model classifies: its logits on a data set, and every number drawn from them.

`predict` runs the model once and keeps what it said; `classification` counts. Keeping the two apart lets the
same predictions be counted again, compared with another model's, or looked at one by one.

Conventions:

- The prediction is the class with the largest logit; among equals, the lowest class number. A true class is
  within the top five if fewer than five classes stand before it by the same order.
- Predictions are ordered by id. Everything but loss and calibration is a ratio of integer counts, so it does
  not depend on how the images were batched.
- Images that could not be read are named in `bad` and count neither as right nor as wrong.
- A ratio whose denominator is zero (the precision of a class never predicted, say) is None, never 0 or NaN.
"""

import contextlib
import io
import math
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from vitkit import config, durable
from vitkit.data.loader import Batch
from vitkit.errors import VitkitError

CALIBRATION_BINS = 15
NORMAL_95 = 1.959963984540054  # the standard normal's 97.5% point

Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True, eq=False)
class Predictions:
    """What a model said about the N readable images of a data set, ordered by id."""

    logits: NDArray[np.float32]
    """`(N, K)`"""
    labels: NDArray[np.int64]
    """`(N,)` true classes."""
    ids: NDArray[np.int64]
    """`(N,)` the images' numbers in their data set."""
    bad: NDArray[np.int64]
    """Numbers of the images that could not be read."""

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def predicted(self) -> NDArray[np.int64]:
        """`(N,)` classes with the largest logit."""
        predicted: NDArray[np.int64] = self.logits.argmax(1)
        return predicted

    @cached_property
    def confidence(self) -> NDArray[np.float64]:
        """`(N,)` probabilities of those classes, by softmax."""
        highest = self.logits.max(1, keepdims=True).astype(np.float64)
        confidence: NDArray[np.float64] = 1 / np.exp(self.logits - highest).sum(1)
        return confidence

    def save(self, path: Path) -> None:
        """Write one `.npz` file, in place of an older one."""
        buffer = io.BytesIO()
        np.savez(buffer, logits=self.logits, labels=self.labels, ids=self.ids, bad=self.bad)
        durable.replace_file(path, [buffer.getvalue()])

    @classmethod
    def load(cls, path: Path) -> "Predictions":
        """Read what `save` wrote.

        Raises:
            VitkitError: there is no such file, or it is not one of predictions.
        """
        names = ("logits", "labels", "ids", "bad")
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                logits, labels, ids, bad = (arrays[name] for name in names)
        except FileNotFoundError:
            raise VitkitError(f"No file of predictions at {path}: run the evaluation again.") from None
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise VitkitError(
                f"{path}: expected an .npz file with {', '.join(names)}, found something else ({error}). "
                "Run the evaluation again to write it anew."
            ) from None
        if logits.ndim != 2 or not (len(logits),) == labels.shape == ids.shape or bad.ndim != 1:
            raise VitkitError(
                f"{path}: expected logits (N, K), labels (N,), ids (N,) and bad (M,), found {logits.shape}, "
                f"{labels.shape}, {ids.shape} and {bad.shape}. Run the evaluation again to write it anew."
            )
        return cls(logits.astype(np.float32), *(array.astype(np.int64) for array in (labels, ids, bad)))


@dataclass(frozen=True)
class ClassScore:
    """One class among all."""

    name: str
    count: int
    """Images of this class."""
    predicted: int
    """Images said to be of this class."""
    correct: int
    """Images of this class said to be so."""
    precision: float | None
    """correct / predicted"""
    recall: float | None
    """correct / count, the accuracy within the class"""
    f1: float | None
    """2 correct / (count + predicted), the harmonic mean of the two"""


@dataclass(frozen=True)
class CalibrationBin:
    """Images whose confidence (the predicted class's probability) lies in `(lower, upper]`."""

    lower: float
    upper: float
    count: int
    confidence: float | None
    """Mean over the bin's images."""
    accuracy: float | None


@dataclass(frozen=True)
class Classification:
    """The numbers of one data set. Shares are from 0 to 1."""

    count: int
    """Readable images: what all numbers are about."""
    bad: int
    """Images that could not be read."""
    correct: int
    accuracy: float
    accuracy_interval: tuple[float, float]
    """Wilson's 95% interval: what the accuracy on other images drawn alike may plausibly be."""
    top5_accuracy: float | None
    """None with five classes or fewer, where it would be 1 always."""
    loss: float
    """Mean cross entropy in nats."""
    balanced_accuracy: float
    """Mean recall of the classes that occur."""
    macro_f1: float
    """Mean F1 of the classes that occur or are predicted."""
    calibration_error: float
    """Expected calibration error: mean of the bins' |accuracy - confidence|, weighted by their counts."""
    calibration: tuple[CalibrationBin, ...]
    """15 bins of equal width (Guo et al. 2017)."""
    per_class: tuple[ClassScore, ...]
    confusion_cells: tuple[tuple[int, int, int], ...]
    """`(true, predicted, count)` where the count is not 0, sorted: 21k classes would not fit as a matrix."""

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(score.name for score in self.per_class)

    @property
    def confusion(self) -> NDArray[np.int64]:
        """`(K, K)` counts, rows the true classes and columns the predicted ones."""
        matrix = np.zeros((len(self.per_class),) * 2, np.int64)
        for true, predicted, count in self.confusion_cells:
            matrix[true, predicted] = count
        return matrix

    def to_json(self) -> dict[str, Any]:
        """All numbers as plain data."""
        return config.to_json(self)


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode and no gradients within; afterwards every module is in the mode it was in."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module in training:
            module.training = True


def predict(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    device: torch.device | str = "cpu",
    precision: Precision = "float32",
    progress: Callable[[int], None] | None = None,
) -> Predictions:
    """Run a model over a data set once.

    Args:
        model: images `(B, 3, H, W)` to logits `(B, K)`; already on `device`.
        batches: every image once. Unreadable images take part in the forward pass, so that batches keep their
            shape, and are dropped after it.
        device: where batches are moved to.
        precision: of the matrix products; the logits are kept as float32 either way.
        progress: called after each batch with the number of its images.

    Raises:
        VitkitError: the model gives no single row of logits per image, or logits that are not finite.
    """
    device = torch.device(device)
    logits: list[torch.Tensor] = []
    labels, ids, masks = [], [], []
    with evaluating(model), torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16"):
        for batch in batches:
            batch = batch.to(device)
            output = model(batch.images)
            if output.ndim != 2:
                raise VitkitError(
                    f"Classification needs one row of logits per image, found an output of shape "
                    f"{tuple(output.shape)}: choose pool='token' or 'mean'."
                )
            logits.append(output[batch.mask].float().cpu())
            labels.append(batch.labels.cpu())
            ids.append(batch.ids.cpu())
            masks.append(batch.mask.cpu())
            if progress is not None:
                progress(len(batch.ids))
    if not masks:
        raise VitkitError("There is no image to evaluate on: the data set (or this split of it) is empty.")
    readable, all_ids = torch.cat(masks).numpy(), torch.cat(ids).numpy()
    good_ids = all_ids[readable]
    order = good_ids.argsort(kind="stable")
    predictions = Predictions(
        logits=torch.cat(logits).numpy()[order],
        labels=torch.cat(labels).numpy()[readable][order],
        ids=good_ids[order],
        bad=np.sort(all_ids[~readable]),
    )
    wrong = int((~np.isfinite(predictions.logits).all(1)).sum())
    if wrong:
        raise VitkitError(
            f"The model's logits are not finite (NaN or infinite) for {wrong} of {len(predictions)} images. "
            "Its weights have diverged, or overflow in this precision: evaluate an earlier checkpoint, or in "
            "float32."
        )
    return predictions


def classification(predictions: Predictions, class_names: Sequence[str]) -> Classification:
    """Every number of a classifier, by the conventions at the head of this file.

    Args:
        predictions: of K classes.
        class_names: K names, in the order of the logits.

    Raises:
        VitkitError: no image could be read, or the names or labels do not fit the logits.
    """
    count, bad, classes = len(predictions), len(predictions.bad), predictions.logits.shape[1]
    if count == 0:
        raise VitkitError(
            f"There is no readable image to evaluate on ({bad} could not be read): check this split's data."
        )
    if len(class_names) != classes:
        raise VitkitError(
            f"The model has {classes} outputs, but {len(class_names)} class names were given: use the names "
            "that were saved with the model."
        )
    labels, predicted = predictions.labels, predictions.predicted
    if labels.min() < 0 or labels.max() >= classes:
        raise VitkitError(
            f"Labels run from {labels.min()} to {labels.max()}, but the model knows classes 0 to "
            f"{classes - 1}: evaluate on data with the classes that the model was trained on."
        )
    right = predicted == labels
    correct = int(right.sum())
    per_class = tuple(
        ClassScore(
            name=name,
            count=of_class,
            predicted=said,
            correct=hits,
            precision=_ratio(hits, said),
            recall=_ratio(hits, of_class),
            f1=_ratio(2 * hits, of_class + said),
        )
        for name, of_class, said, hits in zip(
            class_names,
            np.bincount(labels, minlength=classes).tolist(),
            np.bincount(predicted, minlength=classes).tolist(),
            np.bincount(labels[right], minlength=classes).tolist(),
            strict=True,
        )
    )
    recalls = [score.recall for score in per_class if score.recall is not None]
    f1s = [score.f1 for score in per_class if score.f1 is not None]
    bins = _calibration(predictions.confidence, right)
    gaps = [
        b.count * abs(b.accuracy - b.confidence)
        for b in bins
        if b.accuracy is not None and b.confidence is not None
    ]
    pairs, pair_counts = np.unique(labels * classes + predicted, return_counts=True)
    return Classification(
        count=count,
        bad=bad,
        correct=correct,
        accuracy=correct / count,
        accuracy_interval=wilson_interval(correct, count),
        top5_accuracy=int((_rank(predictions.logits, labels) < 5).sum()) / count if classes > 5 else None,
        loss=math.fsum(_cross_entropy(predictions.logits, labels)) / count,
        balanced_accuracy=math.fsum(recalls) / len(recalls),
        macro_f1=math.fsum(f1s) / len(f1s),
        calibration_error=math.fsum(gaps) / count,
        calibration=bins,
        per_class=per_class,
        confusion_cells=tuple(
            (*divmod(pair, classes), cell)
            for pair, cell in zip(pairs.tolist(), pair_counts.tolist(), strict=True)
        ),
    )


def wilson_interval(correct: int, count: int) -> tuple[float, float]:
    """95% confidence interval of a share, `(0, 1)` where nothing was counted (Wilson 1927).

    Unlike the textbook's p +- 1.96 sigma it is right for few images and for accuracies near 0 and 1.
    """
    if count == 0:
        return 0.0, 1.0
    share, z2 = correct / count, NORMAL_95**2
    centre = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = NORMAL_95 / (1 + z2 / count) * math.sqrt(share * (1 - share) / count + z2 / (4 * count**2))
    # Exact at the ends, where rounding would leave 1e-17.
    lower = 0.0 if correct == 0 else centre - half
    upper = 1.0 if correct == count else centre + half
    return lower, upper


def _rank(logits: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many classes stand before the true one, `(N,)`."""
    true = np.take_along_axis(logits, labels[:, None], 1)
    lower_number = np.arange(logits.shape[1]) < labels[:, None]
    ahead: NDArray[np.int64] = ((logits > true) | ((logits == true) & lower_number)).sum(1)
    return ahead


def _cross_entropy(logits: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    shifted = logits - logits.max(1, keepdims=True).astype(np.float64)
    true = np.take_along_axis(shifted, labels[:, None], 1)[:, 0]
    losses: NDArray[np.float64] = np.log(np.exp(shifted).sum(1)) - true
    return losses


def _calibration(confidence: NDArray[np.float64], right: NDArray[np.bool_]) -> tuple[CalibrationBin, ...]:
    number = np.clip(np.ceil(confidence * CALIBRATION_BINS) - 1, 0, CALIBRATION_BINS - 1)
    bins = []
    for i in range(CALIBRATION_BINS):
        inside = number == i
        count = int(inside.sum())
        bins.append(
            CalibrationBin(
                lower=i / CALIBRATION_BINS,
                upper=(i + 1) / CALIBRATION_BINS,
                count=count,
                confidence=math.fsum(confidence[inside]) / count if count else None,
                accuracy=_ratio(int(right[inside].sum()), count),
            )
        )
    return tuple(bins)


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
