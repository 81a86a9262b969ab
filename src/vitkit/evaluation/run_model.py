"""Run a model over batches of images once."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

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
    """Run a model over a data set once.

    Each batch is scored as it comes, so that memory holds some numbers for each image and no more.

    Args:
        model: images `(B, 3, H, W)` to logits `(B, K)`; already on `device`.
        batches: every image once. Unreadable images take part in the forward pass, so that batches keep their
            shape, and are dropped after it.
        device: where batches are moved to.
        precision: that the model computes in; the logits are kept as float32 either way.
        progress: called after each batch with the number of its images.
        loss: the one that the model was trained with, which decides what its logits mean.
        keep_logits: Whether the logits can be asked for afterwards; more than 64 MiB of them are kept in a
            file.
        folder: where that file is made, without a name; None: the system's folder for temporary files.

    Raises:
        VitkitError: the model gives no single row of logits per image, logits that are not finite, or fewer
            than the labels need; the logits find no room.
    """
    device = torch.device(device)
    gathered = _Gathered(loss, LogitsAsTheyCome(folder) if keep_logits else None)
    with evaluation_mode(model), autocast(device, precision):
        for batch in batches:
            moved = batch.to(device)
            output = model(moved.images)
            if output.ndim != 2:
                raise VitkitError(
                    f"Classification needs one row of logits per image, found an output of shape "
                    f"{tuple(output.shape)}: choose pool='token' or 'mean'."
                )
            gathered.add(output[moved.mask].float().cpu().numpy(), batch)
            if progress is not None:
                progress(len(batch.ids))
    return gathered.predictions()


class _Gathered:
    """Collects scores, labels and ids batch by batch while a model runs over a data set.

    Everything is copied: a batch lies in memory that is shared with the worker that made it, and holds a file
    descriptor for as long as anything refers to it.
    """

    def __init__(self, loss: LossFunction, logits: LogitsAsTheyCome | None) -> None:
        self.loss, self.logits = loss, logits
        self.classes = self.not_finite = 0
        self.scores: list[ImageScores] = []
        self.labels: list[NDArray[np.int64]] = []
        self.ids: list[NDArray[np.int64]] = []
        self.bad: list[NDArray[np.int64]] = []

    def add(self, rows: NDArray[np.float32], batch: Batch) -> None:
        """Count a batch, whose readable images have the logits `rows` `(n, K)`."""
        mask, ids = batch.mask.cpu().numpy(), batch.ids.cpu().numpy()
        labels, self.classes = batch.labels.cpu().numpy()[mask], rows.shape[1]  # indexing copies
        self.labels.append(labels)
        self.ids.append(ids[mask])
        self.bad.append(ids[~mask])
        self.not_finite += int((~np.isfinite(rows).all(1)).sum())
        if self.not_finite:
            return  # there will be no result: only count such images, for the error
        check_labels(labels, self.classes)
        self.scores.append(image_scores(rows, labels, self.loss))
        if self.logits is not None:
            self.logits.add(rows)

    def predictions(self) -> Predictions:
        """Return everything that was collected, ordered by id."""
        if not self.ids:
            raise VitkitError(
                "There is no image to evaluate on: the data set (or this split of it) is empty."
            )
        ids = np.concatenate(self.ids)
        if self.not_finite:
            raise NonFiniteError(
                f"The model's logits are not finite (NaN or infinite) for {self.not_finite} of {len(ids)} "
                "images. Its weights have diverged, or overflow in this precision: evaluate an earlier "
                "checkpoint, or in float32."
            )
        order = ids.argsort(kind="stable")
        if self.logits is not None:
            self.logits.arrange(order)
        return Predictions(
            self.logits,
            labels=np.concatenate(self.labels)[order],
            ids=ids[order],
            bad=np.sort(np.concatenate(self.bad)),
            loss=self.loss,
            classes=self.classes,
            scores=ImageScores.concatenate(self.scores).select(order),
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
    """Run a model over a data set once.

    Args:
        model: images `(B, 3, H, W)` to logits `(B, K)`; already on `device`.
        batches: every image once, its labels `(B, K)` bool. Unreadable images take part in the forward pass,
            so that batches keep their shape, and are dropped after it.
        device: where batches are moved to.
        precision: that the model computes in; the logits are kept as float32 either way.
        progress: called after each batch with the number of its images.
        folder: where logits too many for memory are kept; None: the system's folder for temporary files.

    Raises:
        VitkitError: the model gives other than one logit for each label, or logits that are not finite; there
            is no image; the logits find no room.
    """
    device = torch.device(device)
    logits = LogitsAsTheyCome(folder)
    kept: list[tuple[NDArray[Any], ...]] = []
    not_finite = 0
    with evaluation_mode(model), autocast(device, precision):
        for batch in batches:
            moved = batch.to(device)
            output = model(moved.images)
            if output.shape != batch.labels.shape:
                raise VitkitError(
                    f"Expected one logit for each image and label, {tuple(batch.labels.shape)}, found an "
                    f"output of shape {tuple(output.shape)}: evaluate on data with the labels that the model "
                    "was trained on."
                )
            rows = output[moved.mask].float().cpu().numpy()
            not_finite += int((~np.isfinite(rows).all(1)).sum())
            logits.add(rows)
            mask, ids = batch.mask.cpu().numpy(), batch.ids.cpu().numpy()
            # Indexing copies: a batch lies in memory that is shared with the process that made it.
            kept.append((batch.labels.cpu().numpy()[mask], ids[mask], ids[~mask]))
            if progress is not None:
                progress(len(batch))
    if not kept:
        raise VitkitError("There is no image to evaluate on: the data set (or this split of it) is empty.")
    targets, ids, bad = (np.concatenate(part) for part in zip(*kept, strict=True))
    if not_finite:
        raise NonFiniteError(
            f"The model's logits are not finite (NaN or infinite) for {not_finite} of {len(ids)} images. "
            "Its weights have diverged, or overflow in this precision: evaluate an earlier checkpoint, or in "
            "float32."
        )
    order = ids.argsort(kind="stable")
    logits.arrange(order)
    return LabelPredictions(logits, targets[order].astype(bool), ids[order], np.sort(bad))
