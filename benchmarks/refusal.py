"""Measure "none of these": how many images are refused, by which score, and whether the promise holds.

    python -m benchmarks.refusal START OWN OTHERS ... --image-size 112

START is any checkpoint; OWN and OTHERS are data with labels. Features of the frozen start are computed once,
and a head in closed form learns OWN. Each class of OWN is left out in turn: head, statistics and threshold
are made of the others alone. OTHERS are shown to a head of all classes. The threshold is set on the images
that are learned from, by cross-conformal prediction, at 2 %. Beside the score of vitkit stand its two parts
and two usual ones, by the same heads and images. `--draws 200` learns from as many random sets of `--learned`
images of OWN and counts how many of the rest are refused.
"""

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import vitkit
from vitkit.data.config import Splits
from vitkit.data.listing import class_numbers
from vitkit.data.sources import open_data
from vitkit.evaluation.features import FeatureExtractor
from vitkit.evaluation.refusal import cross_calibrate, describe_rate, nearest_distance, typicality
from vitkit.evaluation.ridge import solve_head
from vitkit.weights.model_card import preprocessing_of

SHARE = 0.02
MOST = 1_000
"""Images of each data set, spread evenly."""
FOLDS = 5
NEIGHBOURS = 5

Floats = NDArray[np.floating[Any]]
Score = Callable[[NDArray[np.float32], Floats], Floats]
"""Features and logits of images to scores, the higher the stranger."""


def energy(logits: Floats) -> Floats:
    """Compute the energy of logits."""
    return np.asarray(-np.logaddexp.reduce(logits, axis=1))


def surprise(logits: Floats) -> Floats:
    """Compute minus the largest softmax probability, as its logarithm."""
    return np.asarray(-(logits.max(1) + energy(logits)), np.float64)


def neighbour_distance(rows: NDArray[np.float32], features: NDArray[np.float32]) -> Floats:
    """Compute the cosine distance to the fifth nearest of some rows."""
    bank, others = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (rows, features))
    return np.asarray(
        np.partition(1.0 - others @ bank.T, NEIGHBOURS - 1, axis=1)[:, NEIGHBOURS - 1], np.float64
    )


def refused(
    rows: NDArray[np.float32], labels: NDArray[np.int64], others: NDArray[np.float32]
) -> dict[str, NDArray[np.bool_]]:
    """Learn rows, and say by each score which other images are refused."""
    head = solve_head(rows, labels, int(labels.max()) + 1)
    parts, scores = cross_calibrate(rows, labels, head.logits_without)
    logits = others @ head.weights.T + head.bias
    scales = parts["scales"].astype(np.float64)
    fold = np.arange(len(rows)) % FOLDS
    neighbours = np.empty(len(rows))
    for number in range(FOLDS):
        neighbours[fold == number] = neighbour_distance(rows[fold != number], rows[fold == number])
    distance = nearest_distance(parts, others)
    own_energy = energy(head.logits_without)
    pairs = {
        "vitkit": (scores, distance / scales[0] + energy(logits) / scales[1]),
        "distance": ((scores - own_energy / scales[1]) * scales[0], distance),
        "energy": (own_energy, energy(logits)),
        "maximum softmax": (surprise(head.logits_without), surprise(logits)),
        "5 neighbours": (neighbours, neighbour_distance(rows, others)),
    }
    return {name: typicality(new, np.sort(own).tolist()) <= SHARE for name, (own, new) in pairs.items()}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("start")
    parser.add_argument("data", nargs="+")
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--draws", type=int, default=0)
    parser.add_argument("--learned", type=int, default=200)
    given = parser.parse_args()
    model = vitkit.load_model(given.start, num_classes=0, image_size=given.image_size).eval()
    extractor = FeatureExtractor(model, preprocessing_of(model), torch.device("cpu"), batch_size=64)
    sets = list[tuple[str, NDArray[np.float32], NDArray[np.int64]]]()
    for spec in given.data:
        data = open_data(spec, Splits(0, 0))
        for split in ("train", "test") if not sets else ("test" if "test" in data.splits else "train",):
            if split in data.splits:
                samples = data.splits[split]
                indices = np.random.default_rng(0).permutation(len(samples))[:MOST]
                computed = extractor.compute(samples, indices)
                labels = class_numbers(samples.labels)[indices[computed.readable]]
                sets.append((f"{data.name} {split}", computed.rows, labels))
    (name, rows, labels), (_, own, own_labels), *others = sets
    classes = int(labels.max()) + 1
    counts: dict[str, dict[str, tuple[int, int]]] = {}

    def count(what: str, answers: dict[str, NDArray[np.bool_]]) -> None:
        for score, each in answers.items():
            before = counts.setdefault(score, {}).get(what, (0, 0))
            counts[score][what] = before[0] + int(each.sum()), before[1] + len(each)

    print(f"{len(rows):,} images of {name}, {classes} classes, {rows.shape[1]} features")
    count("own, new images", refused(rows, labels, own))
    for other, features, _ in others:
        count(other, refused(rows, labels, features))
    for number in range(classes):
        rest = labels != number
        relabelled = labels[rest] - (labels[rest] > number)
        count("classes left out", refused(rows[rest], relabelled, own[own_labels == number]))
    for score, cells in counts.items():
        print(f"{score:16s}" + "".join(f"  {what} {describe_rate(*cell)}" for what, cell in cells.items()))
    if given.draws:
        pooled, pooled_labels = np.concatenate([rows, own]), np.concatenate([labels, own_labels])
        rates = []
        for seed in range(given.draws):
            order = np.random.default_rng(seed).permutation(len(pooled))
            learned, rest = order[: given.learned], order[given.learned :]
            present, relabelled = np.unique(pooled_labels[learned], return_inverse=True)
            rest = rest[np.isin(pooled_labels[rest], present)]
            rates.append(refused(pooled[learned], relabelled, pooled[rest])["vitkit"].mean())
        error = np.std(rates, ddof=1) / len(rates) ** 0.5
        print(
            f"{given.draws} draws of {given.learned} images: {np.mean(rates):.2%} of the others refused ",
            end="",
        )
        print(f"(standard error {error:.2%}), {SHARE:.0%} may be")


if __name__ == "__main__":
    main()
