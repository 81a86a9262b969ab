"""Open the images of a few-shot evaluation, and compute the features of shots and test images."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitkit.data.config import DecodeRule, Splits
from vitkit.data.listing import class_numbers
from vitkit.data.paths import absolute_spec
from vitkit.data.sources import ImageData, Samples, open_data
from vitkit.errors import DecodeError, VitkitError
from vitkit.evaluation.features import Features
from vitkit.evaluation.fewshot.config import Learning
from vitkit.evaluation.fewshot.methods import Draws
from vitkit.evaluation.fewshot.scores import FewShotScore, LabelledFeatures, measure
from vitkit.listener import SILENT, Listener
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

    def draws(self, seeds: int) -> list[Draws]:
        """Draw the shots with the seeds 0, 1, 2 and so on."""
        labels = class_numbers(self.pool.labels)
        return [Draws(labels, self.classes, seed) for seed in range(seeds)]

    def decoded_by(self, rule: DecodeRule) -> "FewShotData":
        """Return the same images, decoded by another rule."""
        return FewShotData(self.data.seen_by(rule, self.data.class_names), self.test_split)


@dataclass(frozen=True)
class Shots:
    """The features of all drawn images."""

    features: LabelledFeatures
    pixels: NDArray[np.uint64]
    """`(n, 2)` hashes of the pixels that the model was shown."""
    unreadable: dict[int, str]
    """Index and reason of drawn images that cannot be read; others replace them."""


@dataclass(frozen=True)
class Measured:
    """The accuracies of a model, and the features that they were measured by."""

    scores: tuple[FewShotScore, ...]
    shots: Shots
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
    if world.size == 1:
        return FewShotData(data, split)
    with prepared_together(world):
        fingerprint = data.fingerprint()
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

    Args:
        data: the images.
        learning: the ways to learn.
        compute: computes the model's features.
        listener: hears the progress.
        name: of the model, for progress.

    Raises:
        VitkitError: as `compute`; there are no shots, or no test image can be read.
    """
    draws, indices = data.draws(learning.seeds), np.arange(len(data.test))
    shots = shot_features(data, draws, max(learning.shots), compute)
    computed = compute(data.test, indices, data.test_split)
    if not computed.readable.any():
        raise VitkitError(
            f"None of the {len(indices):,} {data.test_split} images of {data.data.spec} can be read. The "
            f"first, {data.test.key(0)}: {computed.reasons[0]}"
        )
    readable = indices[computed.readable]
    test = LabelledFeatures(readable, computed.rows, class_numbers(data.test.labels[readable]))
    fits = len(learning.methods) * len(learning.shots) * learning.seeds
    with listener.progress(f"learning from shots, {name}", fits) as progress:
        features, unreadable = shots.features, list(shots.unreadable)
        scores = measure(draws, learning, features, test, data.classes, unreadable, progress)
    return Measured(scores, shots, test, computed)


def shot_features(data: FewShotData, draws: Sequence[Draws], shots: int, compute: ComputeFeatures) -> Shots:
    """Compute the features of the drawn images, and of no others.

    The next image of the class replaces an unreadable one, until there is none.

    Args:
        data: the images.
        draws: one for each seed.
        shots: of each class at most.
        compute: computes the features of some of the pool's images.
    """
    computed = np.zeros(len(data.pool), bool)
    unreadable: dict[int, str] = {}
    parts: list[tuple[NDArray[np.int64], Features]] = []
    while True:
        drawn = np.unique(np.concatenate([draw.take(shots, unreadable) for draw in draws]))
        new = drawn[~computed[drawn]]
        if not len(new):
            break
        features = compute(data.pool, new, "shots")
        computed[new] = True
        unreadable |= dict(zip(new[~features.readable].tolist(), features.reasons, strict=True))
        parts.append((new[features.readable], features))
    indices = np.concatenate([part for part, _ in parts])
    order = indices.argsort()
    rows = np.concatenate([features.rows for _, features in parts])[order]
    pixels = np.concatenate([features.pixels for _, features in parts])[order]
    indices = indices[order]
    return Shots(LabelledFeatures(indices, rows, data.pool.labels[indices]), pixels, unreadable)


def count_repeated(
    data: FewShotData, shots: Shots, test: LabelledFeatures, pixels: NDArray[np.uint64]
) -> int:
    """Count the test images that are, pixel for pixel after decoding, among the shots.

    Only images that look the same to the model are decoded again to be compared.

    Args:
        data: the images.
        shots: all drawn images.
        test: the readable test images.
        pixels: `(M, 2)` hashes of the pixels that the model was shown.
    """
    same: dict[tuple[int, ...], list[int]] = {}
    for index, digest in zip(shots.features.indices.tolist(), shots.pixels.tolist(), strict=True):
        same.setdefault(tuple(digest), []).append(index)
    repeated = 0
    for index, digest in zip(test.indices.tolist(), pixels.tolist(), strict=True):
        candidates = same.get(tuple(digest), [])
        repeated += any(_are_equal(data.test, index, data.pool, other) for other in candidates)
    return repeated


def _are_equal(samples: Samples, index: int, others: Samples, other: int) -> bool:
    """Whether two images have the same pixels; an image that can no longer be read equals none."""
    try:
        return np.array_equal(samples.decode(index), others.decode(other))
    except DecodeError:
        return False
