"""Run a model over batches of images once: one loop, for logits of classes, logits of labels, and features.

Shapes: N images, n of them readable; K classes or labels.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitkit.data.batch import Batch
from vitkit.errors import NonFiniteError, VitkitError
from vitkit.evaluation.label_predictions import LabelPredictions
from vitkit.evaluation.logits import LogitsAsTheyCome
from vitkit.evaluation.predictions import Predictions
from vitkit.evaluation.scores import ImageScores, check_labels, image_scores
from vitkit.models.card import LossFunction
from vitkit.models.precision import autocast
from vitkit.models.precision_config import Precision


@contextlib.contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode without gradients, and every module back into its mode afterwards."""
    # Module by module, because a frozen part may be in evaluation mode while the rest trains.
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module in training:
            module.training = True


@dataclass(frozen=True, eq=False)
class Images:
    """The images that a model was run over."""

    readable: NDArray[np.bool_]
    """`(N,)`: which could be read, in the order in which they came."""
    ids: NDArray[np.int64]
    """`(n,)` of the readable ones, sorted."""
    order: NDArray[np.int64]
    """`(n,)`: the image of `ids[i]` came as number `order[i]` of the readable ones."""
    bad: NDArray[np.int64]
    """The ids of the others, sorted."""


Rows = NDArray[np.float32]
"""The output of a model: a row of logits or features for each image."""


def run_model(
    model: nn.Module,
    compute: Callable[[Batch], Tensor],
    batches: Iterable[Batch],
    keep: Callable[[Rows, Batch, NDArray[np.bool_]], None],
    *,
    what: Literal["logits", "features"] = "logits",
    device: torch.device | str,
    precision: Precision,
    progress: Callable[[int], None] | None,
) -> Images:
    """Run a model over a data set once, in evaluation mode and without gradients.

    Args:
        model: already on `device`; in the mode that it was in afterwards.
        compute: gives the model's output `(B, K)` for a batch on `device`, and refuses another shape.
        batches: every image once. Unreadable images take part in the forward pass, so that batches keep their
            shape, and are dropped after it.
        keep: is given the rows `(n, K)` of a batch's readable images on the CPU, the batch and its mask, as
            long as all rows so far are finite. It copies what it keeps: a batch lies in memory that is shared
            with the worker that made it, and holds a file descriptor as long as anything refers to it.
        what: names the rows in errors.
        device: where batches are moved to.
        precision: that the model computes in; the rows are float32 either way.
        progress: called after each batch with the number of its images.

    Raises:
        NonFiniteError: logits are not finite.
        VitkitError: features are not finite; there is no image; or as `compute` and `keep`.
    """
    device = torch.device(device)
    masks: list[NDArray[np.bool_]] = []
    came: list[NDArray[np.int64]] = []
    not_finite = 0
    with evaluation_mode(model), autocast(device, precision):
        for batch in batches:
            moved = batch.to(device)
            rows = compute(moved)[moved.mask].float().cpu().numpy()
            mask = batch.mask.cpu().numpy().copy()
            masks.append(mask)
            came.append(batch.ids.cpu().numpy().copy())
            not_finite += int((~np.isfinite(rows).all(1)).sum())
            if not not_finite:  # else there will be no result: such images are only counted, for the error
                keep(rows, batch, mask)
            if progress is not None:
                progress(len(mask))
    if not masks:
        purpose = "evaluate on" if what == "logits" else "compute features of"
        raise VitkitError(f"There is no image to {purpose}: the data set (or this split of it) is empty.")
    readable, everything = np.concatenate(masks), np.concatenate(came)
    ids = everything[readable]
    if not_finite:
        # A sweep passes over a learning rate whose logits diverge. Features that are not finite are computed
        # before or beside training: they say nothing about the rate, and end it.
        kind = NonFiniteError if what == "logits" else VitkitError
        raise kind(
            f"The model's {what} are not finite (NaN or infinite) for {not_finite:,} of {len(ids):,} images. "
            "Its weights have diverged, or overflow in this precision: take another checkpoint, or float32."
        )
    order = ids.argsort(kind="stable")
    return Images(readable, ids[order], order, np.sort(everything[~readable]))


def predict(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    device: torch.device | str = "cpu",
    precision: Precision = "float32",
    progress: Callable[[int], None] | None = None,
    loss: LossFunction = "softmax",
    keep_logits: bool = True,
    folder: Path | None = None,
) -> Predictions:
    """Run a classifier over a data set once.

    Each batch is scored as it comes, so that memory holds some numbers for each image and no more.

    Args:
        model, batches, device, precision, progress: as for `run_model`; images `(B, 3, H, W)` to logits
            `(B, K)`.
        loss: the one that the model was trained with, which decides what its logits mean.
        keep_logits: whether the logits can be asked for afterwards; more than 64 MiB of them are kept in a
            file.
        folder: where that file is made, without a name; None: the system's folder for temporary files.

    Raises:
        VitkitError: the model gives no single row of logits per image, logits that are not finite, or fewer
            than the labels need; there is no image; the logits find no room.
    """
    logits = LogitsAsTheyCome(folder) if keep_logits else None
    labels: list[NDArray[np.int64]] = []
    scores: list[ImageScores] = []
    classes = 0

    def compute(batch: Batch) -> Tensor:
        nonlocal classes
        output: Tensor = model(batch.images)
        if output.ndim != 2:
            raise VitkitError(
                f"Classification needs one row of logits per image, found an output of shape "
                f"{tuple(output.shape)}: choose pool='token' or 'mean'."
            )
        classes = output.shape[1]
        return output

    def keep(rows: Rows, batch: Batch, mask: NDArray[np.bool_]) -> None:
        labels.append(batch.labels.cpu().numpy()[mask])  # indexing copies
        check_labels(labels[-1], rows.shape[1])
        scores.append(image_scores(rows, labels[-1], loss))
        if logits is not None:
            logits.add(rows)

    images = run_model(model, compute, batches, keep, device=device, precision=precision, progress=progress)
    if logits is not None:
        logits.arrange(images.order)
    return Predictions(
        logits,
        labels=np.concatenate(labels)[images.order],
        ids=images.ids,
        bad=images.bad,
        loss=loss,
        classes=classes,
        scores=ImageScores.concatenate(scores).select(images.order),
    )


def predict_labels(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    device: torch.device | str = "cpu",
    precision: Precision = "float32",
    progress: Callable[[int], None] | None = None,
    folder: Path | None = None,
) -> LabelPredictions:
    """Run a model that finds labels over a data set once.

    Args:
        model, batches, device, precision, progress: as for `run_model`; images `(B, 3, H, W)` to logits
            `(B, K)`, and labels `(B, K)` bool.
        folder: where logits too many for memory are kept; None: the system's folder for temporary files.

    Raises:
        VitkitError: the model gives other than one logit for each label, or logits that are not finite; there
            is no image; the logits find no room.
    """
    logits = LogitsAsTheyCome(folder)
    targets: list[NDArray[np.bool_]] = []

    def compute(batch: Batch) -> Tensor:
        output: Tensor = model(batch.images)
        if output.shape != batch.labels.shape:
            raise VitkitError(
                f"Expected one logit for each image and label, {tuple(batch.labels.shape)}, found an "
                f"output of shape {tuple(output.shape)}: evaluate on data with the labels that the model "
                "was trained on."
            )
        return output

    def keep(rows: Rows, batch: Batch, mask: NDArray[np.bool_]) -> None:
        logits.add(rows)
        targets.append(batch.labels.cpu().numpy()[mask])  # indexing copies

    images = run_model(model, compute, batches, keep, device=device, precision=precision, progress=progress)
    logits.arrange(images.order)
    return LabelPredictions(
        logits, np.concatenate(targets)[images.order].astype(bool), images.ids, images.bad
    )
