"""Score a model on a test set with ImageNet's classes, where several classes may be right for an image.

C is the number of classes that the model chooses among, 1,000 or 200.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vitkit.data.config import ProtocolName
from vitkit.data.imagenet import LabelledImages, imagenet_wnids, is_wnid
from vitkit.errors import VitkitError
from vitkit.evaluation.predictions import Predictions, in_parts
from vitkit.evaluation.scores import likeliest
from vitkit.evaluation.statistics import binomial_interval, describe_interval
from vitkit.result import Block, Result, Section, Table, Text, unreadable
from vitkit.text import pluralize

ANCHORS = {0: "tench", 1: "goldfish", 999: "toilet"}
"""Words in the names of three classes, as all lists of ImageNet's class names have them."""

BACKGROUND = 1001
"""Outputs of models of TensorFlow's old tools: a background, which is no class, then the 1,000 classes."""

WORST_SHOWN = 10
"""Classes with the lowest accuracy that are shown."""
TOP = 5
"""Guesses of which any may be right, as in the paper's results on ObjectNet (D.9)."""


@dataclass(frozen=True)
class GroupScore:
    """The accuracy on the images of one of the set's own classes; an image with several labels is in each."""

    name: str
    count: int
    correct: int
    accuracy: float


@dataclass(frozen=True, repr=False)
class ProtocolResult(Result):
    """The numbers of a model on a test set; fractions are from 0 to 1."""

    protocol: ProtocolName
    count: int
    """Images that were scored."""
    candidates: int
    """Classes that the model chose among."""
    correct: int
    accuracy: float
    accuracy_interval: tuple[float, float]
    """95 % interval of the accuracy on other images drawn alike."""
    top5_correct: int
    """Images with a right class among the model's five likeliest."""
    top5_accuracy: float
    top5_accuracy_interval: tuple[float, float]
    unreadable: int
    left_out: Mapping[str, int]
    """Reason -> number of images that were not scored."""
    per_class: tuple[GroupScore, ...]
    """The set's own classes that have images, the worst first."""
    note: str
    """The way in which the model's outputs were matched to ImageNet's classes."""
    rejects: Mapping[str, str] = field(default_factory=dict)
    """Key and reason of every image that could not be read."""

    def summary(self) -> str:
        """State the accuracy with its interval."""
        images = f"{self.count:,} images {describe_interval(self.accuracy_interval)}"
        return f"{self.accuracy:.2%} accuracy by {self.protocol} on {images}"

    def sections(self) -> Sequence[Section]:
        """Return the accuracies, the images that were left out, and the worst classes."""
        left_out = self.left_out.items()
        worst = self.per_class[:WORST_SHOWN]
        shown: list[Block] = [
            Text(f"{self.summary()}, choosing among {self.candidates:,} classes", "answer"),
            f"{self.top5_accuracy:.2%} top-5: one of the five likeliest classes is right "
            + describe_interval(self.top5_accuracy_interval),
            *(f"Left out: {pluralize(count, 'image')}, {reason}." for reason, count in left_out),
            *unreadable(self.rejects, "count for nothing"),
            f"The {self.note}.",
            Table(
                ("worst classes", "right", "images"),
                tuple((score.name, f"{score.accuracy:.1%}", f"{score.count:,}") for score in worst),
            ),
        ]
        return (Section("", shown),)

    def following(self) -> Sequence[str]:
        """Return the command that shows every class."""
        return ("the same command with --json   (every class)",)


def outputs_of_classes(
    path: str, outputs: int, class_names: Sequence[str], given: Sequence[str] | None = None
) -> tuple[NDArray[np.int64], str]:
    """Find the output of a model that stands for each of ImageNet's 1,000 classes.

    Args:
        path: of the model, for errors.
        outputs: K, the number of its logits.
        class_names: the class names in its card: WordNet ids, English names, or none.
        given: the WordNet ids of its outputs in the user's list; None without one.

    Returns:
        `(1000,)` numbers of outputs, and a clause that says how they were matched.

    Raises:
        VitkitError: the model has other classes, or nothing states the classes of its outputs.
    """
    wnids, names = imagenet_wnids(), given
    if given is not None and len(given) != outputs:
        raise VitkitError(
            f"{path} has {outputs:,} outputs, and --wnids lists {len(given):,} classes. List the WordNet id "
            "of every output, in the order of the outputs."
        )
    if names is None and class_names and all(map(is_wnid, class_names)):
        names = class_names
    if names is not None:
        output_of = {name: number for number, name in enumerate(names)}
        missing = [wnid for wnid in wnids if wnid not in output_of]
        if missing:
            raise VitkitError(
                f"{path}: expected a model with all 1,000 classes of ImageNet, found a model without "
                f"{len(missing):,} of them, {missing[0]} first. Choose another model, or correct the list "
                "that --wnids gives."
            )
        return np.array([output_of[wnid] for wnid in wnids]), "outputs are matched to classes by WordNet ids"
    if outputs not in (len(wnids), BACKGROUND):
        raise VitkitError(
            f"{path} has {outputs:,} outputs: expected the 1,000 classes of ImageNet (or 1,001 with a "
            "background before them). For another model that has them among its classes, list the WordNet "
            "ids of its outputs in a file and give it with --wnids; for ImageNet-21k's 21,843 classes it is "
            "imagenet21k_goog_synsets.txt in timm/data/_info."
        )
    first = outputs - len(wnids)
    if class_names:
        wrong = [i for i, word in ANCHORS.items() if word not in class_names[first + i].lower()]
        if wrong:
            raise VitkitError(
                f"{path}: expected ImageNet's classes in their usual order, where class {wrong[0]} is "
                f"{ANCHORS[wrong[0]]}, found {class_names[first + wrong[0]]!r}. Give the WordNet ids of its "
                "outputs with --wnids."
            )
        reason = "as the names of three of them confirm"
    else:
        reason = "because it names no classes"
    order = "in the order of WordNet ids" + (", after a background" if first else "")
    return np.arange(first, outputs), f"outputs are taken for ImageNet's classes {order}, {reason}"


def five_likeliest(predictions: Predictions) -> NDArray[np.int64]:
    """Return the five classes with the largest logits of each image, `(N, 5)`, the largest first."""
    # The logits are mapped from a file where there are many: some rows at a time.
    parts = (likeliest(rows, TOP) for (rows,) in in_parts(predictions.logits))
    return np.concatenate([np.empty((0, TOP), np.int64), *parts])


def count_right(
    protocol: ProtocolName,
    images: LabelledImages,
    ids: NDArray[np.int64],
    guesses: NDArray[np.int64],
    candidates: NDArray[np.int64],
    note: str,
    class_names: Sequence[str] = (),
) -> ProtocolResult:
    """Count the images on which a model is right.

    Args:
        protocol: the test set.
        images: the right classes of each of its images.
        ids: the images that could be read.
        guesses: `(N, 5)` their likeliest classes, the likeliest first, numbers among the candidates.
        candidates: `(C,)` ImageNet classes that the model chose among.
        note: how the model's outputs were matched to classes.
        class_names: the model's names of the 1,000 classes, shown beside WordNet ids.

    Raises:
        VitkitError: there are no images that could be read.
    """
    if not len(ids):
        raise VitkitError(
            "None of the images could be read: there is nothing to count. Check the folder of the images."
        )
    counts, hits = np.zeros((2, len(images.groups)), np.int64)
    correct = top5 = 0
    for image, chosen in zip(ids.tolist(), candidates[guesses].tolist(), strict=True):
        right = images.right(image)
        is_right = chosen[0] in right
        correct += is_right
        top5 += not right.isdisjoint(chosen)
        for group in images.members[image]:
            counts[group] += 1
            hits[group] += is_right
    name_of = dict(zip(imagenet_wnids(), class_names, strict=True)) if class_names else {}
    scores = [
        GroupScore(f"{name} ({name_of[name]})" if name in name_of else name, count, hit, hit / count)
        for name, count, hit in zip(images.groups, counts.tolist(), hits.tolist(), strict=True)
        if count
    ]
    return ProtocolResult(
        protocol=protocol,
        count=len(ids),
        candidates=len(candidates),
        correct=correct,
        accuracy=correct / len(ids),
        accuracy_interval=binomial_interval(correct, len(ids)),
        top5_correct=top5,
        top5_accuracy=top5 / len(ids),
        top5_accuracy_interval=binomial_interval(top5, len(ids)),
        unreadable=len(images.members) - len(ids),
        left_out=images.left_out,
        per_class=tuple(sorted(scores, key=lambda score: (score.accuracy, -score.count, score.name))),
        note=note,
    )
