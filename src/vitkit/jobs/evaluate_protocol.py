"""Evaluate a model by a named protocol: ImageNet ReaL, ImageNet-V2, -A, -R, -Sketch and ObjectNet."""

from dataclasses import replace

import numpy as np

from vitkit.data.imagenet import WithoutBorder, imagenet_wnids, is_wnid, list_labelled, read_wnids
from vitkit.data.imagenet_config import PROTOCOLS
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
from vitkit.jobs.evaluate_options import ProtocolOptions
from vitkit.jobs.options import from_options
from vitkit.listener import added_up
from vitkit.tasks import answering_of
from vitkit.weights.card import preprocessing_of


def run_evaluate_protocol(options: ProtocolOptions) -> ProtocolResult:
    """Evaluate a model of ImageNet's classes on one of the test sets that such models are compared on.

    Raises:
        VitkitError: the model has other classes; the data or its labels are not laid out as that test set is.
    """
    return run_protocol(options)[0]


evaluate_protocol = from_options(ProtocolOptions)(run_evaluate_protocol)


def run_protocol(options: ProtocolOptions) -> tuple[ProtocolResult, dict[str, str]]:
    """Evaluate a model by the protocol of the options.

    Returns:
        The numbers; and the key and reason of every image that could not be read.

    Raises:
        VitkitError: as `evaluate_protocol`.
    """
    name, listener = options.protocol, options.listener
    protocol, wnids = PROTOCOLS[name], imagenet_wnids()
    given = None if options.wnids is None else read_wnids(str(options.wnids))
    with listener.progress("listing images"):
        images = list_labelled(
            name, str(options.data), None if options.labels is None else str(options.labels)
        )
    ready = load_for_evaluation(options)
    model = ready.model
    reason = answering_of(model.card).explain_unfit(model.config)
    if reason:
        raise VitkitError(f"{options.path} {reason}.")
    names = model.card.class_names
    columns, note = outputs_of_classes(str(options.path), model.config.num_classes, names, given)
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
