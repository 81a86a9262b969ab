"""The two models of a comparison, and the images that both are tested on."""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitkit.data.config import Splits
from vitkit.data.sources import ImageData, Samples
from vitkit.durable import hash_file
from vitkit.engines.engine_model import EngineModel
from vitkit.engines.libraries import DESCRIPTION
from vitkit.errors import VitkitError
from vitkit.evaluation.features import FeatureExtractor
from vitkit.jobs.compare.options import CompareOptions
from vitkit.jobs.engines import Ready, load_ready
from vitkit.jobs.evaluate import choose_split
from vitkit.runs.folder import Place, kind_of
from vitkit.runs.series_record import explain_no_model, read_series
from vitkit.runs.trained_model import is_training_data, open_model_data
from vitkit.tasks import answering_of, learned_by, task_of
from vitkit.tasks.answering import Answering
from vitkit.text import join_names
from vitkit.weights.loading import log_notes
from vitkit.weights.model_card import TrainingData, card_of, preprocessing_of


@dataclass(frozen=True)
class Contender:
    """A model that is compared, ready to compute."""

    given: str
    """The path or name that a person gave."""
    label: str
    """Its name in tables and sentences."""
    place: Place
    """The path of the model itself; where a series was given, its first run."""
    ready: Ready
    note: str = ""
    """A sentence on the run of a series that was taken; empty where a model was given."""

    @property
    def answering(self) -> Answering[Any, Any]:
        """Return the answering half of the model's task."""
        return answering_of(self.ready.model.card)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Return the names of the classes; none where the model records none."""
        return self.ready.model.card.class_names

    @property
    def trained_on(self) -> TrainingData | None:
        """Return the training images as the card records them."""
        return card_of(self.ready.model).data

    def fingerprint(self) -> str:
        """Hash everything beside the images that the logits depend on."""
        model = self.ready.model
        if isinstance(model, EngineModel):  # the description holds the hashes of the graph's files
            return hash_file(self.place.path / DESCRIPTION)[1]
        device: Any = self.ready.device
        body = FeatureExtractor(model, preprocessing_of(model), device, self.ready.precision)
        digest = hashlib.sha256(body.fingerprint().encode())
        for name, tensor in sorted(model.state_dict().items()):
            if name.startswith("head."):  # which the hash of features leaves out
                digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
                digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()


@dataclass(frozen=True)
class Tested:
    """The images that both models are tested on."""

    split: str
    name: str
    """The name of the data set."""
    whole: bool
    """Whether the data has no splits and is not the training data: `split` is "train" and means all."""
    fingerprint: str
    """The hash of all keys and labels of the data set."""
    data: tuple[ImageData, ImageData] | None
    """The listing for each model, with its own classes and decoding rule; None where the images are not at
    hand, and stored evaluations alone are compared."""

    def samples(self, number: int) -> Samples | None:
        """Return the images as the first (0) or second (1) model reads them."""
        return None if self.data is None else self.data[number].splits[self.split]

    def is_of(self, contender: Contender, number: int) -> bool:
        """Whether a model was trained on this data set, cut in the same way."""
        trained_on = contender.trained_on
        own = self.fingerprint if self.data is None else self.data[number].fingerprint()
        return trained_on is not None and trained_on.fingerprint == own


def load_contenders(options: CompareOptions) -> tuple[Contender, Contender]:
    """Load the two models, which have to answer the same question.

    Raises:
        VitkitError: a model is not there or has no answers; or they have different tasks or classes.
    """
    labels = make_labels(str(options.first), str(options.second))
    pair = tuple(
        _load(str(given), label, options)
        for given, label in zip((options.first, options.second), labels, strict=True)
    )
    first, second = pair
    tasks = [learned_by(contender.ready.model.card).name for contender in pair]
    if tasks[0] != tasks[1]:
        raise VitkitError(
            f"Two models are compared by one task: {first.given} learned {tasks[0]} and {second.given} "
            f"{tasks[1]}. Name two models of the same task."
        )
    if first.class_names and second.class_names:
        _require_same_classes(first, second, first.class_names, second.class_names)
    return first, second


def make_labels(first: str, second: str) -> tuple[str, str]:
    """Shorten two paths to their last parts, as many as it takes to tell them apart."""
    parts = [name.rstrip("/").split("/") for name in (first, second)]
    for count in range(1, 1 + max(map(len, parts))):
        labels = "/".join(parts[0][-count:]), "/".join(parts[1][-count:])
        if labels[0] != labels[1]:
            return labels
    return f"{parts[0][-1]} (first)", f"{parts[1][-1]} (second)"


def _load(given: str, label: str, options: CompareOptions) -> Contender:
    """Load a model; of a series, the first run's."""
    place, note = kind_of(given), ""
    if place.kind == "series":
        series = read_series(given)  # which has compared the names of folders with what its options make
        if not series.ended:
            raise VitkitError(explain_no_model(place.path, series))
        member = series.members[0]
        place = kind_of(place.path / member.folder)
        if len(series.members) > 1:
            note = (
                f"{label} is a series of {len(series.members)} runs: its first one, {member.folder}, stands "
                "for it. Over all seeds, vitkit ablate compares ways to train."
            )
    ready = load_ready(place, "evaluation", device=options.device, precision=options.precision)
    log_notes(given, ready.notes, ready.left_out)
    contender = Contender(given, label, place, ready, note)
    reason = contender.answering.explain_unfit(ready.model.config)
    if reason:
        raise VitkitError(f"{given} {reason}.")
    return contender


def _require_same_classes(
    first: Contender, second: Contender, names: tuple[str, ...], others: tuple[str, ...]
) -> None:
    """Refuse two models of different classes; the order of the classes may differ."""
    alone = (first.label, {*names} - {*others}), (second.label, {*others} - {*names})
    if {*names} != {*others}:
        sides = [f"{label} alone has {join_names(sorted(extra), 5)}" for label, extra in alone if extra]
        raise VitkitError(
            f"Two models are compared on the same classes, matched by their names: {'; '.join(sides)}. Name "
            "two models of the same classes."
        )


def open_tested(pair: tuple[Contender, Contender], options: CompareOptions) -> Tested:
    """Open the images of a comparison, with the splits of the first model that was trained on them.

    Raises:
        VitkitError: no images are given and neither model records its own; the images are not there, or have
            other classes than the models; or there is no such split.
    """
    owner, opened = _open_own(pair, options.data)
    if owner is None:  # neither was trained on them, so that all of them may be tested
        assert options.data is not None
        data = [open_model_data(contender.ready.model, options.data) for contender in pair]
    elif opened is None:
        return _not_at_hand(pair, owner, options)
    else:
        data = [
            opened if contender is owner else _open_as(contender, owner, options.data) for contender in pair
        ]
    for contender, listed in zip(pair, data, strict=True):
        outputs = contender.ready.model.config.num_classes
        if len(listed.class_names) != outputs:
            raise VitkitError(
                f"{contender.given} has {outputs:,} outputs and no class names, and the images have "
                f"{len(listed.class_names):,} classes: expected one class for each output. Give other images "
                "with --data."
            )
    _require_same_classes(*pair, data[0].class_names, data[1].class_names)
    given, trained_on = options.data is not None, owner is not None
    (images, split), (others, _) = (choose_split(listed, options.split, given, trained_on) for listed in data)
    whole = not trained_on and split == "train" and list(images.splits) == ["train"]
    tested = Tested(split, images.name, whole, images.fingerprint(), (images, others))
    _require_same_images(tested, images, others)
    return tested


def _open_own(
    pair: tuple[Contender, Contender], spec: str | None
) -> tuple[Contender | None, ImageData | None]:
    """Find the first model that was trained on the images, and open them with the splits of its training.

    Returns:
        The model, or None where neither was trained on them; the images, or None where they are not at hand.

    Raises:
        VitkitError: no images are given, and neither model records its own.
    """
    if spec is not None:
        owner = next((model for model in pair if is_training_data(model.ready.model.card, spec)), None)
        return owner, None if owner is None else open_model_data(owner.ready.model, spec)
    owners = [contender for contender in pair if contender.trained_on is not None]
    if not owners:
        raise VitkitError(
            f"Neither {pair[0].given} nor {pair[1].given} says which images it was trained on: give "
            "images to test on with --data."
        )
    for owner in owners:
        try:
            return owner, open_model_data(owner.ready.model)
        except VitkitError:
            continue
    return owners[0], None


def _open_as(contender: Contender, owner: Contender, spec: str | None) -> ImageData:
    """Open the images of another model with its splits, but a model's own classes and decoding rule."""
    trained_on = owner.trained_on
    assert trained_on is not None  # it is the owner of the images
    splits: Splits = trained_on.splits
    model = contender.ready.model
    learning = task_of(model.card).learning
    rule = preprocessing_of(model).decode
    return learning.open_data(spec or trained_on.spec, splits, rule, contender.class_names or None)


def _not_at_hand(pair: tuple[Contender, Contender], owner: Contender, options: CompareOptions) -> Tested:
    """Compare by stored evaluations alone, where both models were trained and tested on the same images.

    Raises:
        VitkitError: they were not; the message is that of opening the images.
    """
    first, second = (contender.trained_on for contender in pair)
    split = options.split or "test"
    stored = all((contender.place.path / "evaluation" / f"{split}.json").is_file() for contender in pair)
    if first is None or second is None or first.fingerprint != second.fingerprint or not stored:
        open_model_data(owner.ready.model)  # raises the error that says why
        raise VitkitError(f"The images of {owner.given} have just come back: run the same command again.")
    options.listener.note(
        "Without pictures: the images are not where they were, or have changed. The stored evaluations of "
        "both are compared."
    )
    return Tested(split, first.name, False, first.fingerprint, None)


def _require_same_images(tested: Tested, first: ImageData, second: ImageData) -> None:
    """Refuse two listings of the same data that differ in their images or labels."""
    pair = [images.splits[tested.split] for images in (first, second)]
    keys = [[samples.key(index) for index in range(len(samples))] for samples in pair]
    names = [images.class_names for images in (first, second)]
    labels = [labels_by_name(*samples) for samples in zip(pair, names, strict=True)]
    if keys[0] != keys[1] or not np.array_equal(labels[0], labels[1]):
        raise VitkitError(
            f"The {tested.split} images of {tested.name} are not listed alike for the two models: expected "
            "the same images and labels. Give images with --data, or another --split."
        )


def labels_by_name(samples: Samples, class_names: tuple[str, ...]) -> NDArray[np.int64]:
    """Number labels by the alphabet of their names, `(N, A)`, as `Answering.truth` does."""
    order = np.argsort(np.array(class_names))
    if samples.labels.ndim == 2:
        return samples.labels[:, order].astype(np.int64)
    return np.argsort(order)[samples.labels][:, None]
