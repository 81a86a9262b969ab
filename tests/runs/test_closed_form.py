"""What a head in closed form learned from: added to, taken from, kept in a file that is never trusted."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

import vitkit
from tests.helpers.refusals import refused
from vitkit.models.image_model import ImageModel
from vitkit.runs import closed_form
from vitkit.runs.closed_form import LearnedImages, as_keys, refit
from vitkit.weights import loading
from vitkit.weights.model_card import ModelCard, card_of

WIDTH = 24
NOTHING = np.zeros((0, 32), np.uint8)


def drawn(count: int, classes: int, seed: int = 0) -> LearnedImages:
    """Images with features of classes that lie apart, in the order of their hashes."""
    generator = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    rows = 2 * np.eye(classes, WIDTH)[labels] + generator.normal(size=(count, WIDTH))
    hashes = generator.integers(0, 256, (count, 32)).astype(np.uint8)
    images = LearnedImages(rows.astype(np.float32), hashes, labels, NOTHING)
    return images.take(np.argsort(as_keys(hashes)))


def test_after_a_thousand_random_changes_the_head_is_that_of_training_on_what_is_left() -> None:
    everything, classes = drawn(400, 6), 6
    generator = np.random.default_rng(1)
    present = np.ones(400, bool)
    images = everything
    for step in range(1_000):
        chosen = generator.integers(0, 400, generator.integers(1, 6))
        if step % 50 == 0:  # a whole class goes, or comes
            chosen = np.flatnonzero(everything.labels == generator.integers(0, classes))
        is_adding = not present[chosen[0]]
        rows = np.zeros(400, bool)
        rows[chosen] = True
        changed = rows & (present != is_adding)
        after = present ^ changed
        if len(np.unique(everything.labels[after])) < 2:
            continue
        present = after
        if is_adding:
            images = images.add(everything.take(changed))
        else:
            images = images.take(~np.isin(as_keys(images.hashes), as_keys(everything.hashes[changed])))
        if step % 20 == 0 or step == 999:
            fresh = everything.take(present)
            # Trained on exactly what is left, whatever order the images came in.
            shuffled = fresh.take(generator.permutation(len(fresh)))
            expected = refit(shuffled.take(np.argsort(as_keys(shuffled.hashes))), classes)
            head = refit(images, classes)
            assert head.weights.tobytes() == expected.weights.tobytes()
            assert head.bias.tobytes() == expected.bias.tobytes()
            assert (head.penalty, head.scale) == (expected.penalty, expected.scale)
    assert 0 < present.sum() < 400


def small_model(classes: int = 3, names: tuple[str, ...] = ("a", "b", "c")) -> ImageModel:
    model = vitkit.create_model(f"ViT-{WIDTH}x1x2/4", num_classes=classes, image_size=8).eval()
    model.card = ModelCard("small", names)
    return model


def write_model(folder: Path, images: LearnedImages) -> ImageModel:
    closed_form.write_model(folder, small_model(), refit(images, 3), images, len(images))
    return loading.load(folder).model


def test_a_model_and_its_images_are_read_as_they_were_written(tmp_path: Path) -> None:
    images = drawn(30, 3)
    model = write_model(tmp_path, images)
    _, again = closed_form.read_model(tmp_path)
    assert again.rows.tobytes() == images.rows.tobytes() and (again.labels == images.labels).all()
    assert closed_form.difference_of(model, refit(again, 3)) == 0
    (change,) = again.record.changes
    assert (change.added, change.removed, change.images) == (30, (), 30)
    assert card_of(model).origin["head"]["images"] == {"a": 10, "b": 10, "c": 10}
    features = torch.from_numpy(images.rows)
    head = refit(images, 3)
    expected = images.rows @ head.weights.T + head.bias
    assert np.allclose(model.head(features).detach().numpy(), expected, atol=1e-4)


Damage = Callable[[dict[str, np.ndarray]], object]
DAMAGES: dict[str, tuple[Damage, str]] = {
    "fewer labels": (lambda a: a.update(labels=a["labels"][:-1]), "other shapes or types"),
    "another width": (lambda a: a.update(rows=a["rows"][:, 1:].copy()), "other shapes or types"),
    "another type": (lambda a: a.update(rows=a["rows"].astype(np.float64)), "other shapes or types"),
    "no record": (lambda a: a.pop("record"), "other shapes or types"),
    "one more array": (lambda a: a.update(more=a["labels"]), "other shapes or types"),
    "a label too high": (lambda a: a["labels"].__setitem__(0, 3), "no class of the model"),
    "a label below 0": (lambda a: a["labels"].__setitem__(0, -1), "no class of the model"),
    "not finite": (lambda a: a["rows"].__setitem__((0, 0), np.nan), "not finite"),
    "hashes out of order": (lambda a: a.update(hashes=a["hashes"][::-1].copy()), "out of order"),
    "an image twice": (lambda a: a["hashes"].__setitem__(1, a["hashes"][0]), "twice"),
    "a class without images": (lambda a: a["labels"].__setitem__(slice(None), 1), "without images"),
    "a record that is no JSON": (lambda a: a.update(record=np.zeros(4, np.uint8)), "no JSON"),
    "no dimension": (lambda a: a.update(labels=np.zeros((), np.int64)), "other shapes or types"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_of_images_is_refused(name: str, tmp_path: Path) -> None:
    write_model(tmp_path, drawn(30, 3))
    damage, error = DAMAGES[name]
    arrays = load_file(tmp_path / closed_form.FILE)
    damage(arrays)
    save_file(arrays, tmp_path / closed_form.FILE)
    refused(error, closed_form.read_model, tmp_path)


def test_images_of_another_head_and_of_none_are_refused(tmp_path: Path) -> None:
    write_model(tmp_path / "first", drawn(30, 3))
    write_model(tmp_path / "second", drawn(30, 3, seed=1))
    (tmp_path / "first" / closed_form.FILE).replace(tmp_path / "second" / closed_form.FILE)
    refused("belongs to another head", closed_form.read_model, tmp_path / "second")
    refused("--freeze backbone", closed_form.read_model, tmp_path / "first")
