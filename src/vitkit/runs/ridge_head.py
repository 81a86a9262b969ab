"""Begin a run with the head that ridge regression finds on the features of its start."""

from pathlib import Path

import numpy as np
import torch
from torch import nn

from vitkit.data.listing import class_numbers
from vitkit.data.loader import worker_count
from vitkit.errors import VitkitError
from vitkit.evaluation.features import FeatureExtractor
from vitkit.evaluation.fewshot_folds import mixed_order
from vitkit.evaluation.fewshot_head import fit_head
from vitkit.listener import Listener
from vitkit.runs.build import Parts
from vitkit.runs.config import Run
from vitkit.tasks import find_task

MOST_IMAGES = 10_000
"""More take long, and move the solution by less than the first steps of training do."""
MOST_SCORES = 1 << 26
"""Images times classes at most: 512 MiB in float64."""


def refuse_ridge_head(run: Run) -> None:
    """Refuse a run that asks for the ridge solution where there is none.

    Raises:
        VitkitError: it begins from new weights, or its logits are not those of a softmax.
    """
    if run.start.head != "ridge":
        return
    if not run.start.start:
        raise VitkitError(
            "The head can begin as the ridge solution on the features of a start, and new weights have none "
            "worth it: give --start, or leave --start.head ridge out."
        )
    if find_task(run.task).learning.learned(run.objective).loss != "softmax":
        raise VitkitError(
            "The ridge solution is for one class an image and the softmax loss, and this run learns with "
            "another: leave --start.head ridge out."
        )


def begin_head(parts: Parts, checkpoint: Path | None, device: torch.device, listener: Listener) -> None:
    """Replace the head of a run's model by the ridge solution on its training images, where it is asked for.

    The images are seen as in evaluation, in order and without any change at random; of many a part is drawn,
    by the run's seed and in the shares of the classes. The same run gets the same bits.

    Args:
        parts: of the run, whose model has the weights of its start; it is moved to the device.
        checkpoint: that the run goes on from, which has its head; None at step 0.
        device: where the features are computed.
        listener: hears the progress.

    Raises:
        VitkitError: images have several labels, none can be read, or features are not finite.
    """
    if parts.run.start.head != "ridge" or checkpoint is not None:
        return
    run, model, samples = parts.run, parts.model.to(device), parts.data.splits["train"]
    labels, classes = class_numbers(samples.labels), len(parts.data.class_names)
    indices = mixed_order(labels, run.training.seed)[: min(MOST_IMAGES, MOST_SCORES // classes)]
    extractor = FeatureExtractor(model, run.preprocessing, device, model.chosen.precision)
    with listener.progress("features for the head", len(indices)) as progress:
        found = extractor.compute(
            samples,
            np.sort(indices),
            batch_size=run.training.micro_batch_size or run.training.batch_size,
            workers=worker_count(samples, run.loading),
            progress=progress,
        )
    with listener.progress("solving for the head"):
        head = fit_head(found.rows, labels[np.sort(indices)[found.readable]], classes)
    assert isinstance(model.head, nn.Linear)
    with torch.no_grad():
        model.head.weight.copy_(torch.from_numpy(head.weight))
        model.head.bias.copy_(torch.from_numpy(head.bias))
    listener.note(
        f"The head begins as the ridge solution on features of {len(found.rows):,} training images"
        + ("." if head.right is None else f", left out one at a time {head.right:.1%} of them are right.")
    )
