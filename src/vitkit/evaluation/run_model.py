"""Run a model over batches of images once: the one loop for classes, labels and features.

A model is a module of PyTorch, or a function of an inference engine (ONNX Runtime, OpenVINO) from pixels to
logits; its outputs are numpy arrays here.
"""

import contextlib
import tempfile
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitkit.data.stream.loader import Batch
from vitkit.errors import NonFiniteError, VitkitError
from vitkit.evaluation.predictions import IN_MEMORY, ImageScores, Predictions, check_labels, image_scores
from vitkit.models.config import LossFunction, Precision
from vitkit.models.image_model import ImageModel, autocast, copy_to_processor
from vitkit.models.novelty import Novelty
from vitkit.world import ALONE, World, prepared_together

Rows = NDArray[np.float32]
"""Logits `(B, K)` or features `(B, D)`, a row for each image."""
Model = nn.Module | Callable[[NDArray[np.uint8]], Rows]
"""A module from images `(B, C, H, W)` to logits `(B, K)`, or an engine's function from uint8 images to the
same."""


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


class WithNovelty(nn.Module):
    """A model with logits `(B, K)` and the scores `(B,)` of its `Novelty`, from the same features."""

    def __init__(self, model: ImageModel, novelty: Novelty) -> None:
        super().__init__()
        self.model, self.novelty = model, novelty

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Compute both."""
        features = self.model.features(images)
        logits: Tensor = self.model.head(features)
        return logits, self.novelty(features, logits)


@contextlib.contextmanager
def output_function(
    model: Model, device: torch.device, precision: Precision, features: bool = False, novelty: bool = False
) -> Iterator[Callable[[Tensor], Callable[[], Rows]]]:
    """Give the function that begins to compute a model's outputs of a batch of images.

    A call returns a function that waits for the outputs and gives them as float32 in numpy: until it is
    called, a GPU computes and the caller goes on.

    Args:
        model: a module is already on `device`.
        device: where images are moved to.
        precision: that a module computes in.
        features: whether a module computes its features and not its logits; an engine always gives logits.
        novelty: whether a module that has a `Novelty` computes its score too, a column behind the logits.
    """
    if not isinstance(model, nn.Module):
        yield lambda images: partial(np.asarray, model(images.numpy()))
        return
    compute: Any = model.features if features else model  # mypy takes it for a Tensor or Module
    if novelty and isinstance(model, ImageModel) and model.novelty is not None:
        compute = WithNovelty(model, model.novelty)

    def launch(images: Tensor) -> Callable[[], Rows]:
        outputs = compute(images.to(device))
        values = torch.column_stack(outputs) if isinstance(outputs, tuple) else outputs
        copied = copy_to_processor(values.float())
        return lambda: copied().numpy()

    with evaluation_mode(model), autocast(device, precision):
        yield launch


def run_model(
    model: Model,
    batches: Iterable[Batch],
    take: Callable[[Rows, Batch], None],
    *,
    device: torch.device | str = "cpu",
    precision: Precision = "float32",
    progress: Callable[[int], None] = lambda done: None,
    features: bool = False,
    world: World = ALONE,
) -> None:
    """Run a model over all batches of a data set.

    Several processes compute different batches, and each takes the results of all, in the order of the
    batches, so that all end with the same figures.

    Args:
        model, precision, features: as for `output_function`.
        batches: every image once; for one of several processes its part, as `evaluation_batches` yields it.
            Unreadable images take part in the forward pass, so that batches keep their shape.
        take: called with the outputs `(B, K)` of each batch, of unreadable images too, and the batch.
        device: where batches are moved to.
        progress: called after each batch with the number of its images.
        world: the processes.

    Raises:
        VitkitError: the model does not give a single row for each image.
    """
    device = torch.device(device)
    ahead = device.type == "cuda"  # while a GPU computes a batch, the next one is read and copied
    launched = deque[tuple[Callable[[], Rows], Batch]]()
    with output_function(model, device, precision, features) as compute:
        left = iter(batches)
        while True:
            own = None
            with prepared_together(world):  # else the others would wait for a process that has failed
                for batch in islice(left, 1 + ahead - len(launched)):
                    launched.append((compute(batch.to(device).images), batch))
                if launched:
                    read, batch = launched.popleft()
                    rows = read()
                    if rows.ndim != 2:
                        raise VitkitError(
                            f"Expected one row of {'features' if features else 'logits'} per image, found an "
                            f"output of shape {rows.shape}: choose pool token, mean, max or map when the "
                            "model is made."
                        )
                    targets = {name: target.numpy() for name, target in batch.targets.items()}
                    own = rows, batch.mask.numpy(), batch.ids.numpy(), targets
            if not (results := [result for result in world.gather(own) if result is not None]):
                break
            for outputs, mask, ids, arrays in results:
                tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
                pixels = torch.empty((len(ids), 0))  # none: they do not go to other processes
                take(outputs, Batch(pixels, tensors, torch.from_numpy(mask), torch.from_numpy(ids)))
                progress(len(ids))


def predict(
    model: Model,
    batches: Iterable[Batch],
    *,
    device: torch.device | str = "cpu",
    precision: Precision = "float32",
    progress: Callable[[int], None] = lambda done: None,
    loss: LossFunction = "softmax",
    keep_logits: bool = True,
    folder: Path | None = None,
    columns: NDArray[np.int64] | None = None,
    world: World = ALONE,
) -> Predictions:
    """Predict every image. Where an image has one class, it is scored as its batch comes, so that memory
    holds a few numbers for each; where it has several labels, `(B, K)` bool, the logits are what is kept.

    Args:
        model, batches, device, precision, progress, world: as for `run_model`.
        loss: the loss that the model was trained with, which decides what its logits mean.
        keep_logits: whether the logits are kept beside the scores; more than 64 MiB of them go to a file.
        folder: where this file is made, without a name; None: the system's folder for temporary files.
        columns: the logits that stand for the classes, in their order; None: all of them.

    Raises:
        VitkitError: the model does not give a single row of logits for each image, or gives logits that are
            not finite, or not one for each class or label; there is no image; the disk has no room for the
        logits.
    """
    parts, scores = list[tuple[NDArray[Any], ...]](), list[ImageScores]()
    logits = _Logits(folder) if keep_logits else None
    not_finite = classes = 0

    def take(outputs: Rows, batch: Batch) -> None:
        nonlocal not_finite, classes
        mask, numbers = batch.mask.cpu().numpy(), batch.ids.cpu().numpy()
        # Indexing copies: a batch lies in memory that is shared with the worker that made it, and holds a
        # file descriptor for as long as anything refers to it.
        rows, labels = outputs[mask], batch.labels.cpu().numpy()[mask]
        rows = rows if columns is None else rows[:, columns]
        if labels.ndim == 2 and rows.shape != labels.shape:
            raise VitkitError(
                f"Expected one logit for each image and label, {tuple(batch.labels.shape)}, found an "
                f"output of shape {outputs.shape}: evaluate on data with the labels that the model was "
                "trained on."
            )
        classes = rows.shape[1]
        parts.append((labels, numbers[mask], numbers[~mask]))
        not_finite += int((~np.isfinite(rows).all(1)).sum())
        if not_finite:
            return  # an error follows, for which such images are counted
        if labels.ndim == 1:
            check_labels(labels, classes)
            scores.append(image_scores(rows, labels, loss))
        if logits is not None:
            logits.add(rows)

    run_model(model, batches, take, device=device, precision=precision, progress=progress, world=world)
    if not parts:
        raise VitkitError("There is no image to evaluate on: the data set (or this split of it) is empty.")
    targets, ids, bad = map(np.concatenate, zip(*parts, strict=True))
    if not_finite:
        raise NonFiniteError(
            f"The model's logits are not finite (NaN or infinite) for {not_finite} of {len(ids)} "
            "images. Its weights have diverged, or overflow in this precision: evaluate an earlier "
            "checkpoint, or in float32."
        )
    order = ids.argsort(kind="stable")
    scored: tuple[Any, ...] = ImageScores.concatenate(scores) if scores else ()
    return Predictions(
        None if logits is None else logits.arranged(order),
        labels=targets[order],
        ids=ids[order],
        bad=np.sort(bad),
        loss=loss,
        classes=classes,
        scores=ImageScores(*(each[order] for each in scored)) if scored else None,
    )


class _Logits:
    """The logits of a data set, added batch by batch and given back as one array.

    Up to `IN_MEMORY` bytes stay in memory; more go to a file without a name, which is gone with the array
    that maps it, or with the process however it ends.

    Args:
        folder: where that file is made; None: the system's folder for temporary files.
    """

    def __init__(self, folder: Path | None) -> None:
        place = None if folder is None else str(folder)
        self._file = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY, dir=place)  # noqa: SIM115 (kept open)
        weakref.finalize(self, self._file.close)
        self._place = place or tempfile.gettempdir()
        self._count = self._classes = 0

    def add(self, rows: Rows) -> None:
        """Append `(n, K)`.

        Raises:
            VitkitError: the disk refuses them.
        """
        self._count += len(rows)
        self._classes = rows.shape[1]
        try:
            self._file.write(np.ascontiguousarray(rows).data)
        except OSError as error:
            raise VitkitError(
                f"The logits cannot be kept in {self._place}: {error.strerror}. They need "
                f"{rows.shape[1] * 4:,} bytes for each image: make room, or name another folder in the "
                "environment variable TMPDIR."
            ) from error

    def arranged(self, order: NDArray[np.int64]) -> Rows:
        """Return all rows in an order, `(N, K)`: row i is the `order[i]`-th that was added, from 0."""
        rows: Rows
        if self._count * self._classes * 4 <= IN_MEMORY:
            self._file.seek(0)
            content = bytearray(self._file.read())  # so that the array may be written to
            rows = np.frombuffer(content, np.float32).reshape(self._count, self._classes)
        else:
            rows = np.memmap(self._file, np.float32, "r", shape=(self._count, self._classes))
        # Loaders keep the order, so that logits too many for memory are not copied into it.
        return rows if (order == np.arange(len(order))).all() else rows[order]
