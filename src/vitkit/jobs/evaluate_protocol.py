"""Evaluate a model by a named protocol: ImageNet ReaL, ImageNet-V2, -A, -R, -Sketch and ObjectNet."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from vitkit.data.imagenet import WithoutBorder, imagenet_wnids, is_wnid, list_labelled, read_wnids
from vitkit.data.imagenet_config import PROTOCOLS, ProtocolName
from vitkit.data.loader import evaluation_batches
from vitkit.errors import VitkitError
from vitkit.evaluation import run_model
from vitkit.evaluation.protocols import (
    ProtocolResult,
    count_right,
    five_likeliest,
    outputs_of_classes,
)
from vitkit.jobs.evaluate import load_for_evaluation
from vitkit.jobs.evaluate_options import EvaluateOptions
from vitkit.listener import SILENT, Listener, added_up
from vitkit.models.image_config import height_and_width
from vitkit.tasks import answering_of
from vitkit.weights.preprocessing import preprocessing_of


def evaluate_protocol(
    path: str | Path,
    data: str | Path,
    protocol: ProtocolName,
    *,
    labels: str | Path | None = None,
    wnids: str | Path | None = None,
    device: str = "auto",
    batch_size: int = 128,
    workers: int = 0,
    image_size: int | tuple[int, int] | None = None,
    listener: Listener = SILENT,
) -> ProtocolResult:
    """Evaluate a model of ImageNet's classes on one of the test sets that such models are compared on.

    Args:
        path: anything `load_model` reads.
        data: the folder of the test set's images.
        protocol: the test set, such as "imagenet-real", "imagenet-a" or "objectnet".
        labels: real.json, or ObjectNet's folder of mappings; left out, they are beside the images.
        wnids: the WordNet ids of the model's outputs in order: a file with one at the beginning of each line,
            or a folder of class folders; left out, its class names or ImageNet's usual order.
        device, batch_size, workers, image_size, listener: as for `vitkit.evaluate`.

    Raises:
        VitkitError: the model has other classes; the data or its labels are not laid out as that test set is.
    """
    options = EvaluateOptions(
        str(path),
        str(data),
        device=device,
        batch_size=batch_size,
        workers=workers,
        image_size=height_and_width(image_size),
        protocol=protocol,
        labels=None if labels is None else str(labels),
        wnids=None if wnids is None else str(wnids),
    )
    return run_protocol(options, listener)[0]


def run_protocol(
    options: EvaluateOptions, listener: Listener = SILENT
) -> tuple[ProtocolResult, dict[str, str]]:
    """Evaluate a model by the protocol of the options.

    Returns:
        The numbers; and the key and reason of every image that could not be read.

    Raises:
        VitkitError: as `evaluate_protocol`.
    """
    name, data = options.protocol, options.data
    if name is None or data is None:
        raise VitkitError("Expected a protocol and the folder of its images, --data.")
    protocol, wnids = PROTOCOLS[name], imagenet_wnids()
    given = None if options.wnids is None else read_wnids(options.wnids)
    with listener.progress("listing images"):
        images = list_labelled(name, data, options.labels)
    ready = load_for_evaluation(options)
    model = ready.model
    reason = answering_of(model.card).explain_unfit(model.config)
    if reason:
        raise VitkitError(f"{options.model} {reason}.")
    names = model.card.class_names
    columns, note = outputs_of_classes(options.model, model.config.num_classes, names, given)
    candidates = np.array([wnids.index(wnid) for wnid in imagenet_wnids(protocol.mark)])
    rule = preprocessing_of(model).decode
    if options.max_pixels is not None:
        rule = replace(rule, max_pixels=options.max_pixels)
    # What is right is looked up afterwards: no one label can say it where several classes are.
    labels = np.zeros(len(images.numbers), np.int64)
    samples = WithoutBorder(images.files, images.numbers, labels, rule, protocol.border)
    rejects: dict[str, str] = {}
    batches = evaluation_batches(
        samples,
        preprocessing_of(model),
        options.batch_size,
        options.workers,
        rejects,
        worker_timeout=options.worker_timeout,
    )
    with listener.progress(f"evaluating {name}", len(samples)) as progress:
        found = run_model.predict(
            model,
            batches,
            device=ready.device,
            precision=ready.precision,
            columns=columns[candidates],
            progress=added_up(progress),
        )
    words = [names[column] for column in columns] if names and not is_wnid(names[columns[0]]) else []
    return count_right(name, images, found.ids, five_likeliest(found), candidates, note, words), rejects
