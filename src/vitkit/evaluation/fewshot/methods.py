"""Fit few-shot classifiers to frozen features, a few labelled images of each class, and measure them; open
the images, and compute these features.

The paper's few-shot accuracy (4.1, Figure 4) is `ridge`: a least-squares fit of the features to -1 and 1, in
closed form, as in big_vision `evaluators/fewshot_lsr.py`. The others are nearest neighbours and logistic
regression. `measure` draws the shots several times.

Shapes: N training images (the shots), M test images, D features, K classes, S seeds; n images with features,
the shots among them.
"""

import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from vitkit.config import IN_MEMORY_ALONE
from vitkit.data.config import DecodeRule, Splits
from vitkit.data.layouts.cutting import draws
from vitkit.data.listing import class_numbers
from vitkit.data.paths import absolute_spec
from vitkit.data.sources import ImageData, Samples, open_data
from vitkit.errors import DecodeError, VitkitError
from vitkit.evaluation.features import FeatureExtractor, Features
from vitkit.evaluation.fewshot import config
from vitkit.evaluation.ridge import BIAS, Floats, Integers, Ridge, statistics
from vitkit.listener import SILENT, Listener
from vitkit.models.image_model import ImageModel
from vitkit.weights.model_card import TrainingData
from vitkit.world import ALONE, World, prepared_together

NEIGHBOURS = (1, 3, 5, 10, 20, 50)
"""Numbers of neighbours that are tried on the shots."""
INVERSE_PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""The values of scikit-learn's C that are tried on a held-out part of the shots, the strongest penalty first.
"""
HELD_OUT = 5
"""One shot of each class in `HELD_OUT` is held out to choose C; of two to nine shots, one."""
MAX_ITERATIONS = 2000
"""The most iterations of L-BFGS; on standardised features a hundred or two are usual."""
PART = 1 << 22
"""Numbers in an array that is made of a part of the rows: 32 MiB in float64."""


@dataclass(frozen=True, eq=False)
class Fitted:
    """A classifier that was fitted to the shots."""

    predict: Callable[[Floats], Integers]
    """Features `(M, D)` to class numbers `(M,)`."""
    setting: float
    """The setting of the fit: the penalty of `ridge`, the k of `knn`, the C of `logistic`."""
    converged: bool = True
    """Whether the optimiser of `logistic` came to an end before its last iteration."""


class Draws:
    """The images that are drawn as shots: a function of labels and seed alone, the same for every checkpoint.

    The order of each class is the original's: NumPy's default generator with the seed, one permutation for
    each class in turn. Fewer shots are the first of more. NumPy does not promise this stream for ever, as it
    does the streams of raw bit generators; the authors' fixture in the tests would show a change.

    Args:
        labels: `(P,)` of all images to draw from.
        classes: K.
        seed: from 0.
    """

    def __init__(self, labels: Integers, classes: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self._orders = [rng.permutation(np.flatnonzero(labels == number)) for number in range(classes)]

    def take(self, shots: int, without: Collection[int] = ()) -> Integers:
        """Give the images of the first `shots` of each class, class after class.

        Args:
            shots: of each class at most.
            without: unreadable images: the next image of the class replaces each.
        """
        left_out = np.fromiter(without, np.int64, len(without))
        orders = [order[~np.isin(order, left_out)] for order in self._orders] if without else self._orders
        return np.concatenate([order[:shots] for order in orders]).astype(np.int64)


def fit(
    method: config.Method,
    features: Floats,
    labels: Integers,
    classes: int,
    *,
    l2: float = config.L2,
    neighbours: int | None = None,
) -> Fitted:
    """Fit a classifier to the shots.

    Args:
        method: "ridge", "knn" or "logistic".
        features: `(N, D)`, finite.
        labels: `(N,)` from 0 to K - 1, each class's images in the order in which they were drawn.
        classes: K.
        l2: the penalty of `ridge`.
        neighbours: of `knn`; None: chosen among `NEIGHBOURS`, by leaving out one shot at a time.

    Raises:
        VitkitError: there are no shots.
    """
    if not len(labels):
        raise VitkitError("There are no shots to learn from: no image of any class can be read.")
    features = features.astype(np.float64)
    if method == "ridge":
        return fit_ridge(features, labels, classes, l2)
    if method == "knn":
        return fit_neighbours(features, labels, classes, neighbours)
    return fit_logistic(features, labels)


def fit_ridge(features: Floats, labels: Integers, classes: int, l2: float = config.L2) -> Fitted:
    """Fit least squares with an L2 penalty to targets of -1 and 1, as `vitkit.evaluation.ridge` solves it."""
    ridge = Ridge(features, labels, classes)
    weights = ridge.weights(l2)  # (D + 1, K)

    def predict(rows: Floats) -> Integers:
        whitened = ((part - ridge.mean) / ridge.std for _, part in _parts(rows, classes))
        scores = (part @ weights[:-1] + BIAS * weights[-1] for part in whitened)
        return np.concatenate([score.argmax(1) for score in scores])

    return Fitted(predict, l2)


def fit_neighbours(features: Floats, labels: Integers, classes: int, neighbours: int | None = None) -> Fitted:
    """Classify an image as most of its nearest shots, by the cosine of the features.

    Among classes with equal votes the larger sum of cosines decides, then the lower class number. Without
    `neighbours`, k is the number of `NEIGHBOURS` that predicts most shots rightly from the other shots; among
    equals the smallest, so always 1 with one shot a class.
    """
    shots = _directions(features)

    def vote(rows: Floats, tried: Sequence[int], first: int | None = None) -> list[Integers]:
        """Name the classes of directions `(M, D)` by each number of neighbours.

        Where the rows are shots, `first` is the number of the first: no shot is its own neighbour.
        """
        cosines = rows @ shots.T  # (M, N)
        if first is not None:
            cosines[np.arange(len(rows)), first + np.arange(len(rows))] = -np.inf
        nearest = np.argsort(-cosines, axis=1, kind="stable")[:, : max(tried)]  # of equals the first
        cosines = np.take_along_axis(cosines, nearest, 1)
        return [_most_votes(labels[nearest[:, :k]], cosines[:, :k], classes) for k in tried]

    if neighbours is None:
        tried = [k for k in NEIGHBOURS if k < len(labels)] or [1]
        right = np.zeros(len(tried), np.int64)
        if len(labels) > 1:
            for start, part in _parts(shots, len(labels)):
                own = labels[start : start + len(part)]
                right += [int((predicted == own).sum()) for predicted in vote(part, tried, start)]
        neighbours = tried[int(right.argmax())]
    count = min(neighbours, len(labels))

    def predict(rows: Floats) -> Integers:
        parts = _parts(rows, len(labels))
        return np.concatenate([vote(_directions(part), [count])[0] for _, part in parts])

    return Fitted(predict, count)


def fit_logistic(features: Floats, labels: Integers) -> Fitted:
    """Fit multinomial logistic regression with an L2 penalty by L-BFGS, on whitened features.

    The penalty is the value of `INVERSE_PENALTIES` that predicts most held-out shots rightly, among equals
    the value with the least cross entropy there; then all shots are fitted with it. With one shot a class,
    none can be held out: C is 1.
    """
    mean, std = statistics(features)
    x = (features - mean) / std
    penalty = 1.0
    held_out = np.zeros(len(labels), bool)  # the last shots of each class; none of a single one
    for number in np.unique(labels):
        if len(own := np.flatnonzero(labels == number)) > 1:
            held_out[own[-max(1, len(own) // HELD_OUT) :]] = True
    if held_out.any():
        trials = []
        for inverse in INVERSE_PENALTIES:
            model, _ = _logistic(x[~held_out], labels[~held_out], inverse)
            scores = np.log(np.maximum(model.predict_proba(x[held_out]), 1e-300))
            true = scores[np.arange(len(scores)), np.searchsorted(model.classes_, labels[held_out])]
            right = int((model.classes_[scores.argmax(1)] == labels[held_out]).sum())
            trials.append((-right, -float(true.sum()), inverse))
        penalty = min(trials)[2]
    model, converged = _logistic(x, labels, penalty)

    def predict(rows: Floats) -> Integers:
        parts = _parts(rows, len(model.classes_))
        predicted: Integers = np.concatenate([model.predict((part - mean) / std) for _, part in parts])
        return predicted

    return Fitted(predict, penalty, converged)


def _logistic(features: Floats, labels: Integers, inverse_penalty: float) -> tuple[Any, bool]:
    """Fit scikit-learn's model; returns it and whether L-BFGS converged."""
    from sklearn.dummy import DummyClassifier
    from sklearn.exceptions import ConvergenceWarning  # a second to import, which only this method needs
    from sklearn.linear_model import LogisticRegression

    if len(np.unique(labels)) == 1:
        return DummyClassifier().fit(features, labels), True  # the other refuses a single class
    model = LogisticRegression(C=inverse_penalty, solver="lbfgs", tol=1e-4, max_iter=MAX_ITERATIONS)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        model.fit(features, labels)
    return model, not any(issubclass(warning.category, ConvergenceWarning) for warning in caught)


def _most_votes(nearest: Integers, cosines: Floats, classes: int) -> Integers:
    """Name the class with the most votes `(M,)`, by classes and cosines `(M, k)` of the nearest shots."""
    rows = np.arange(len(nearest))[:, None]
    votes, sums = np.zeros((2, len(nearest), classes))
    np.add.at(votes, (rows, nearest), 1.0)
    np.add.at(sums, (rows, nearest), cosines)
    most = votes == votes.max(1, keepdims=True)
    named: Integers = np.where(most, sums, -np.inf).argmax(1)
    return named


def _directions(features: Floats) -> Floats:
    """Scale each row to length 1; a row of zeros stays as it is, with a cosine of 0 to all."""
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    directions: Floats = features / np.where(lengths == 0, 1, lengths)
    return directions


def _parts(rows: Floats, columns: int) -> list[tuple[int, Floats]]:
    """Split `(M, D)` into parts, each with the number of its first row, for arrays `(part, columns)`."""
    size = max(1, PART // max(columns, rows.shape[1]))
    starts = range(0, max(len(rows), 1), size)
    return [(start, rows[start : start + size]) for start in starts]


_STREAM = 7  # of the draws: not the stream by which splits are cut


def mixed_order(labels: Integers) -> Integers:
    """Order images at random, so that every beginning of the order holds the classes in their proportions.

    Args:
        labels: `(N,)` class numbers.
    """
    order = np.lexsort((draws(len(labels), 0, _STREAM), labels))  # class by class, each at random
    sizes = np.unique(labels, return_counts=True)[1]
    place = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)  # within the class
    spread = (place + 0.5) / np.repeat(sizes, sizes)
    mixed: Integers = order[np.lexsort((draws(len(labels), 0, _STREAM + 1), spread))]
    return mixed


@dataclass(frozen=True, eq=False)
class LabelledFeatures:
    """Features of images of a split."""

    indices: Integers
    """`(n,)` of the images in their split, ascending."""
    rows: Floats
    """`(n, D)`"""
    labels: Integers
    """`(n,)`"""

    def taken(self, indices: Integers) -> tuple[Floats, Integers]:
        """Give the rows and labels of images that are among these, in the order given."""
        where = np.searchsorted(self.indices, indices)
        return self.rows[where], self.labels[where]


@dataclass(frozen=True)
class FewShotScore:
    """The accuracies of one method with one number of shots, from 0 to 1."""

    method: config.Method
    shots: int
    """Images of each class at most."""
    accuracies: tuple[float, ...]
    """On all test images, of each seed."""
    mean: float
    deviation: float | None
    """Standard deviation of a single draw (divided by S - 1); None of one seed."""
    interval: tuple[float, float] | None
    """95 % interval of the mean over draws, by Student's t; None of one seed. It does not cover the chance in
    the choice of test images."""
    class_accuracy: tuple[float | None, ...]
    """Accuracy on each class's test images, mean over seeds; None of a class without test images."""
    settings: tuple[float, ...]
    """The setting of each seed's fit: the penalty of ridge, the k of knn, the C of logistic."""
    converged: tuple[bool, ...]
    """Whether the optimiser of logistic came to an end, for each seed."""
    right: Any = field(default=None, compare=False, repr=False, metadata=IN_MEMORY_ALONE)
    """`(S, M)` bool, whether each prediction is right, for paired comparisons."""

    @property
    def shown_interval(self) -> tuple[float, float] | None:
        """Give the interval where the draws differ; None where all accuracies are equal, as when every image
        is a shot: they do not show the chance in drawing."""
        return self.interval if len(set(self.accuracies)) > 1 else None


def measure(
    draws: Sequence[Draws],
    learning: config.Learning,
    pool: LabelledFeatures,
    test: LabelledFeatures,
    classes: int,
    unreadable: Sequence[int] = (),
    progress: Callable[[int], None] = lambda done: None,
) -> tuple[FewShotScore, ...]:
    """Fit every method to the shots and measure its accuracy on the test images.

    Args:
        draws: one for each seed.
        learning: the numbers of shots and the methods.
        pool: features of all drawn images.
        test: of the test images.
        classes: K.
        unreadable: indices in the pool's split of images that are not drawn.
        progress: called after each fit with the number of fits done.

    Raises:
        VitkitError: there are no shots.
    """
    scores, done = [], 0
    counts = np.bincount(test.labels, minlength=classes)
    for method in learning.methods:
        for shots in learning.shots:
            fits, rights = [], []
            for draw in draws:
                features, labels = pool.taken(draw.take(shots, unreadable))
                fits.append(
                    fit(method, features, labels, classes, l2=learning.l2, neighbours=learning.neighbours)
                )
                rights.append(fits[-1].predict(test.rows) == test.labels)
                done += 1
                progress(done)
            accuracies = tuple(float(right.mean()) for right in rights)
            sums = np.bincount(test.labels, weights=np.array(rights).mean(0), minlength=classes)
            by_class = zip(sums, counts, strict=True)
            of_classes = tuple(float(total / images) if images else None for total, images in by_class)
            deviation, interval = _spread(accuracies)
            score = FewShotScore(
                method=method,
                shots=shots,
                accuracies=accuracies,
                mean=math.fsum(accuracies) / len(accuracies),
                deviation=deviation,
                interval=interval,
                class_accuracy=of_classes,
                settings=tuple(fitted.setting for fitted in fits),
                converged=tuple(fitted.converged for fitted in fits),
                right=np.array(rights),
            )
            scores.append(score)
    return tuple(scores)


def _spread(values: Sequence[float]) -> tuple[float | None, tuple[float, float] | None]:
    """Compute standard deviation and 95 % interval of the mean, within 0 to 1; none of a single value."""
    if (count := len(values)) < 2:
        return None, None
    from scipy.special import stdtrit  # half a second to import, which only several seeds need

    mean, deviation = math.fsum(values) / count, float(np.std(values, ddof=1))
    half = float(stdtrit(count - 1, 0.975)) * deviation / math.sqrt(count)
    return deviation, (max(0.0, mean - half), min(1.0, mean + half))


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
        if (split := next((name for name in ("test", "val") if name in data.splits), None)) is None:
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
    learning: config.Learning,
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
        if not len(new := drawn[~is_computed[drawn]]):
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
    tracking: config.FewShotTracking,
    extractor_of: Callable[[ImageModel], FeatureExtractor],
    methods: Sequence[config.Method] = ("ridge",),
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
    learning = config.Learning(shots, config.SEEDS if max(shots) != config.ALL_SHOTS else 1, methods)
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
        return {config.accuracy_name(score.method, score.shots): score.mean for score in scores}

    return evaluate
