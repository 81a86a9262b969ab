"""Open the images of a few-shot evaluation, and compute the features of shots and test images."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from vitkit.data.config import DecodeRule, Splits
from vitkit.data.listing import class_numbers
from vitkit.data.paths import absolute_spec
from vitkit.data.sources import ImageData, Samples, open_data
from vitkit.errors import DecodeError, VitkitError
from vitkit.evaluation.features import FeatureExtractor, Features
from vitkit.evaluation.fewshot.config import (
    ALL_SHOTS,
    SEEDS,
    FewShotTracking,
    Learning,
    Method,
    accuracy_name,
)
from vitkit.evaluation.fewshot.methods import Draws, FewShotScore, LabelledFeatures, measure
from vitkit.listener import SILENT, Listener
from vitkit.models.image_model import ImageModel
from vitkit.weights.model_card import TrainingData
from vitkit.world import ALONE, World, prepared_together

POOL = "train"
"""The split that shots are drawn from."""
TEST_FRACTION = 0.2
"""Fraction of the images that is held out to test on where the data has no test and no validation split."""

ComputeFeatures = Callable[[Samples, NDArray[np.int64], str], Features]
"""Gives the features of some images of a split; the text names them for progress."""


@dataclass(frozen=True)
class FewShotData:
    """Images to learn from, and others to test on."""

    data: ImageData
    test_split: str
    """test, else val."""

    @property
    def pool(self) -> Samples:
        """The images that shots are drawn from."""
        return self.data.splits[POOL]

    @property
    def test(self) -> Samples:
        """The images to test on; none of them is in the pool."""
        return self.data.splits[self.test_split]

    @property
    def classes(self) -> int:
        return len(self.data.class_names)

    def decoded_by(self, rule: DecodeRule) -> "FewShotData":
        """Return the same images, decoded by another rule."""
        return FewShotData(self.data.seen_by(rule, self.data.class_names), self.test_split)


@dataclass(frozen=True)
class Measured:
    """The accuracies of a model, and the features that they were measured by."""

    scores: tuple[FewShotScore, ...]
    shots: LabelledFeatures
    """All drawn images."""
    pixels: NDArray[np.uint64]
    """`(n, 2)` hashes of the pixels of the shots as the model was shown them."""
    unreadable: dict[int, str]
    """Index and reason of drawn images that cannot be read; others replace them."""
    test: LabelledFeatures
    """The readable test images."""
    computed: Features
    """The features of all test images, as they were computed."""


def open_fewshot_data(
    spec: str, trained_on: Sequence[TrainingData] = (), world: World = ALONE
) -> FewShotData:
    """Open data for a few-shot evaluation.

    Test images are the test split, else the validation split, else a stratified part of the images that is
    cut off with seed 0. Data that a model was trained on is cut as it was then, so that none of its training
    images are test images.

    Args:
        spec: names the data, as for `open_data`.
        trained_on: the training data of the models.
        world: the processes that compute features together, all of which open the data.

    Raises:
        VitkitError: as `open_data`; there are no test images; two processes see different images.
    """
    own = next((record for record in trained_on if record.spec == absolute_spec(spec)), None)
    splits = Splits(val_fraction=0, test_fraction=0) if own is None else own.splits
    with prepared_together(world):
        data = open_data(spec, splits)
        if not {"test", "val"} & set(data.splits):
            data = open_data(spec, Splits(val_fraction=0, test_fraction=TEST_FRACTION))
        split = next((name for name in ("test", "val") if name in data.splits), None)
        if split is None:
            raise VitkitError(
                f"{spec} leaves nothing to test on: expected a class with two images or more, found one "
                "image of each. Add images, or a folder test/ with some."
            )
    # In a block of its own: a process without the images is at the end of the first one, and not in `tell`.
    with prepared_together(world):
        fingerprint = data.fingerprint() if world.size > 1 else ""
        expected = world.tell(fingerprint)
        if fingerprint != expected:
            raise VitkitError(
                f"The images of {spec} differ from the images of process 0: expected the fingerprint "
                f"{expected}, found {fingerprint}. All machines must see the same images."
            )
    return FewShotData(data, split)


def measure_data(
    data: FewShotData,
    learning: Learning,
    compute: ComputeFeatures,
    listener: Listener = SILENT,
    name: str = "",
) -> Measured:
    """Measure the accuracies of a model on data.

    Features are computed of the drawn images and of no others in their split. The next image of the class
    replaces an unreadable one, until there is none.

    Args:
        data: the images.
        learning: the ways to learn.
        compute: computes the model's features.
        listener: hears the progress.
        name: of the model, for progress.

    Raises:
        VitkitError: as `compute`; there are no shots, or no test image can be read.
    """
    labels, most = class_numbers(data.pool.labels), max(learning.shots)
    draws = [Draws(labels, data.classes, seed) for seed in range(learning.seeds)]
    is_computed = np.zeros(len(data.pool), bool)
    unreadable: dict[int, str] = {}
    parts: list[tuple[NDArray[Any], ...]] = []
    while True:
        drawn = np.unique(np.concatenate([draw.take(most, unreadable) for draw in draws]))
        new = drawn[~is_computed[drawn]]
        if not len(new):
            break
        features = compute(data.pool, new, "shots")
        is_computed[new] = True
        unreadable |= dict(zip(new[~features.readable].tolist(), features.reasons, strict=True))
        parts.append((new[features.readable], features.rows, features.pixels))
    indices, rows, pixels = map(np.concatenate, zip(*parts, strict=True))
    order = indices.argsort()
    shots = LabelledFeatures(indices[order], rows[order], labels[indices[order]])
    tested = np.arange(len(data.test))
    computed = compute(data.test, tested, data.test_split)
    if not computed.readable.any():
        raise VitkitError(
            f"None of the {len(tested):,} {data.test_split} images of {data.data.spec} can be read. The "
            f"first, {data.test.key(0)}: {computed.reasons[0]}"
        )
    readable = tested[computed.readable]
    test = LabelledFeatures(readable, computed.rows, class_numbers(data.test.labels[readable]))
    fits = len(learning.methods) * len(learning.shots) * learning.seeds
    with listener.progress(f"learning from shots, {name}", fits) as progress:
        scores = measure(draws, learning, shots, test, data.classes, list(unreadable), progress)
    return Measured(scores, shots, pixels[order], unreadable, test, computed)


def count_repeated(data: FewShotData, measured: Measured) -> int:
    """Count the test images that are, pixel for pixel after decoding, among the shots.

    Only images that look the same to the model are decoded again to be compared.
    """
    same: dict[tuple[int, ...], list[int]] = {}
    for index, digest in zip(measured.shots.indices.tolist(), measured.pixels.tolist(), strict=True):
        same.setdefault(tuple(digest), []).append(index)
    shown = zip(measured.test.indices.tolist(), measured.computed.pixels.tolist(), strict=True)
    return sum(
        any(_are_equal(data.test, index, data.pool, shot) for shot in same.get(tuple(digest), []))
        for index, digest in shown
    )


def _are_equal(samples: Samples, index: int, others: Samples, other: int) -> bool:
    """Whether two images have the same pixels; an image that can no longer be read equals none."""
    try:
        return np.array_equal(samples.decode(index), others.decode(other))
    except DecodeError:
        return False


def follow(
    tracking: FewShotTracking,
    extractor_of: Callable[[ImageModel], FeatureExtractor],
    methods: Sequence[Method] = ("ridge",),
    trained_on: Sequence[TrainingData] = (),
    world: World = ALONE,
) -> Callable[[nn.Module, nn.Module], Mapping[str, float]]:
    """Make a function that measures the few-shot accuracy of a model: an evaluator for the trainer.

    Shots and test images are the same at each call. Nothing is kept on the disk: the weights change each
    time. The model stays in its mode, and no random number of training is used up.

    Args:
        tracking: the images and the numbers of shots.
        extractor_of: computes the features of a model.
        methods: ways to learn from the features.
        trained_on: the training data of the model; if it is the same data, none of its training images are
            test images.
        world: the processes, each of which calls the function and computes a part of the features.

    Returns:
        A function of model and objective to the mean accuracies over the seeds by name, "ridge_5_shots".

    Raises:
        VitkitError: the data is not there, or leaves nothing to test on.
    """
    shots = tuple(sorted(set(tracking.shots)))
    # All images are the same every time.
    learning = Learning(shots, SEEDS if max(shots) != ALL_SHOTS else 1, methods)
    opened = open_fewshot_data(tracking.data, trained_on, world)

    def evaluate(model: nn.Module, objective: nn.Module) -> Mapping[str, float]:
        if not isinstance(model, ImageModel):
            raise VitkitError(f"Few-shot accuracy needs a model with features, found {type(model).__name__}.")
        extractor = extractor_of(model)
        data = opened.decoded_by(extractor.preprocessing.decode)

        def compute(samples: Samples, indices: NDArray[np.int64], _: str) -> Features:
            return extractor.compute(samples, indices, world=world)

        # All processes fit the same features, since they could only wait meanwhile, and need no message for
        # the result; one reports an error.
        with prepared_together(world):
            scores = measure_data(data, learning, compute).scores
        return {accuracy_name(score.method, score.shots): score.mean for score in scores}

    return evaluate
