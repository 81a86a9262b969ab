"""RandAugment's operations and random erasing."""

import numpy as np
import pytest
import torch
from PIL import Image

from vitkit.data.augment_ops import OPERATIONS, _identity, distort, erase
from vitkit.data.config import Augmentation, Preprocessing, Splits
from vitkit.data.sources import open_data
from vitkit.data.stream.loader import TrainLoader
from vitkit.data.transforms import augment
from vitkit.errors import VitkitError

DISTORTED = Augmentation(crop_area=None, rand_augment=2, random_erasing=0.5)
NAMES = [operation.__name__ for operation in OPERATIONS]


def noise(height: int = 20, width: int = 33, low: int = 60, high: int = 200) -> np.ndarray:
    return np.random.default_rng(0).integers(low, high, (height, width, 3), np.uint8)


def picture(image: np.ndarray) -> Image.Image:
    return Image.fromarray(image)


@pytest.mark.parametrize("size", [(20, 33), (1, 1), (3, 200)])
@pytest.mark.parametrize("strength", [-1.0, -0.4, 0.0, 0.4, 1.0])
@pytest.mark.parametrize("operation", OPERATIONS, ids=NAMES)
def test_an_operation_keeps_shape_and_type(operation, strength: float, size: tuple[int, int]) -> None:  # type: ignore[no-untyped-def]
    image = noise(*size)
    changed = np.asarray(operation(picture(image), strength))
    assert changed.shape == image.shape and changed.dtype == np.uint8
    free = operation is _identity or operation.__name__ in ("_auto_contrast", "_equalize")
    if strength == 0 and not free:
        assert np.array_equal(changed, image)
    if abs(strength) == 1 and size == (20, 33) and operation is not _identity:
        assert not np.array_equal(changed, image)


@pytest.mark.parametrize("operation", OPERATIONS, ids=NAMES)
def test_what_is_uncovered_has_the_mean_colour(operation) -> None:  # type: ignore[no-untyped-def]
    image = np.empty((16, 16, 3), np.uint8)
    image[:] = (50, 100, 150)
    changed = np.asarray(operation(picture(image), 1.0))
    if operation.__name__ in ("_rotate", "_shear_x", "_shear_y", "_translate_x", "_translate_y"):
        assert np.array_equal(changed, image)


def test_a_translation_moves_by_the_share_of_the_side_that_its_strength_says() -> None:
    image = noise(10, 331)
    moved = np.asarray(OPERATIONS[NAMES.index("_translate_x")](picture(image), 0.1))
    assert np.array_equal(moved[:, :300], image[:, 15:315])


def test_distortions_follow_from_the_generator_alone_and_differ() -> None:
    image = noise()
    images = [distort(image, DISTORTED, np.random.default_rng(seed)) for seed in range(40)]
    again = [distort(image, DISTORTED, np.random.default_rng(seed)) for seed in range(40)]
    assert all(np.array_equal(one, other) for one, other in zip(images, again, strict=True))
    assert len({one.tobytes() for one in images}) > 30
    assert all(one.shape == image.shape and one.dtype == np.uint8 for one in images)


def test_without_distortions_nothing_is_drawn_or_changed() -> None:
    image, rng = noise(), np.random.default_rng(5)
    assert distort(image, Augmentation(), rng) is image
    assert rng.random() == np.random.default_rng(5).random()


def test_distortions_come_after_everything_else_that_is_drawn() -> None:
    preprocessing = Preprocessing(image_size=(16, 16))
    plain = augment(noise(), preprocessing, Augmentation(shift=2, rotate=5), np.random.default_rng(3))
    still = Augmentation(shift=2, rotate=5, random_erasing=1e-9)
    assert np.array_equal(augment(noise(), preprocessing, still, np.random.default_rng(3)), plain)


def test_erasing_fills_one_box_with_noise() -> None:
    image = np.zeros((40, 60, 3), np.uint8)
    for seed in range(30):
        changed = erase(image, np.random.default_rng(seed)).max(2) > 0
        rows, columns = np.flatnonzero(changed.any(1)), np.flatnonzero(changed.any(0))
        box = changed[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        assert box.mean() > 0.99  # noise is seldom black
        assert 0.015 < box.size / changed.size < 0.36
    assert not image.any()  # the image itself, which may be kept in memory, is as it was


def test_an_image_too_small_for_a_box_stays() -> None:
    image = noise(1, 1)
    assert np.array_equal(erase(image, np.random.default_rng(0)), image)


def test_erasing_is_as_frequent_as_asked() -> None:
    image, rng = noise(), np.random.default_rng(0)
    config = Augmentation(random_erasing=0.25)
    erased = sum(not np.array_equal(distort(image, config, rng), image) for _ in range(2000))
    assert 430 < erased < 570


def test_any_number_of_workers_draws_the_same() -> None:
    samples = open_data("digits", Splits()).splits["train"]

    def batches(workers: int) -> list[torch.Tensor]:
        loader = TrainLoader(
            samples, Preprocessing(image_size=(16, 16)), DISTORTED, batch_size=8, seed=1, workers=workers
        )
        return [batch.images for batch in loader.batches(0, 3)]

    for one, other in zip(batches(0), batches(2), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    "options",
    [{"rand_augment": -1}, {"rand_augment": 15}, {"rand_augment_magnitude": 11.0}, {"random_erasing": 2.0}],
)
def test_impossible_options_are_explained(options: dict[str, float]) -> None:
    with pytest.raises(VitkitError, match=next(iter(options))):
        Augmentation(**options)  # type: ignore[arg-type]
