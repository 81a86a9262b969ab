"""A page of training images shows the pixels that training sees."""

import base64
import io
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.helpers.photos import noise_images
from tests.helpers.refusals import refused
from vitkit.data.config import Augmentation, Preprocessing, Splits
from vitkit.data.sources import open_data
from vitkit.data.stream.loader import TrainLoader
from vitkit.data.transforms import preprocess
from vitkit.jobs.data_show import LABEL, MARGIN, describe_augmentation, see_images, show
from vitkit.runs.config import Run
from vitkit.training.config import ClassificationConfig, TrainingConfig

RUN = Run(
    data="digits",
    preprocessing=Preprocessing((16, 12)),
    augmentation=Augmentation(shift=2, rand_augment=1, random_erasing=0.5),
    splits=Splits(subset="[:10%]"),
    training=TrainingConfig(seed=7),
)
"""The options that the run changes, with their values."""


def test_the_versions_are_those_that_training_yields() -> None:
    """From the loader of a run with another batch size, in the first epochs; beside what is tested."""
    images = see_images(RUN, 3, 4)[2]
    samples = open_data("digits", RUN.splits).splits["train"]
    loader = TrainLoader(samples, RUN.preprocessing, RUN.augmentation, batch_size=64, seed=7)
    seen: dict[str, list[np.ndarray]] = {}
    steps = -(-4 * len(samples) // 64)
    for batch in loader.batches(0, steps):
        for number, pixels in zip(batch.ids.tolist(), batch.images, strict=True):
            seen.setdefault(samples.key(number), []).append(pixels.permute(1, 2, 0).numpy())
    numbers = next(loader.batches(0, 1)).ids[:3].tolist()
    assert [image.name for image in images] == [samples.key(number) for number in numbers]
    for number, image in zip(numbers, images, strict=True):
        assert len(image.versions) == 4
        for version, expected in zip(image.versions, seen[image.name], strict=False):
            np.testing.assert_array_equal(version, expected)
        assert not all((version == image.versions[0]).all() for version in image.versions)
        np.testing.assert_array_equal(image.tested, preprocess(samples.decode(number), RUN.preprocessing))
        assert image.label == str(samples.labels[number])


def test_the_files_hold_the_same_pixels(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"image_size": (16, 12), "shift": 2, "rand_augment": 1, "random_erasing": 0.5}
    changes |= {"images": 3, "versions": 4, "seed": 7, "splits_subset": "[:10%]"}
    out, run = show("digits", out=tmp_path / "a.html", **changes)
    assert replace(run, augmentation=RUN.augmentation) == RUN
    images, page = see_images(run, 3, 4)[2], out.read_text()
    (data,) = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    expected = [pixels for image in images for pixels in (image.tested, *image.versions)]
    assert all(f"<td>{image.name}</td>" in page for image in images)
    out, _ = show("digits", out=tmp_path / "a.png", **changes)
    factor = 7  # 16 pixels are enlarged to 112
    height, width = 16 * factor, 12 * factor
    for file in (io.BytesIO(base64.b64decode(data)), out):
        sheet = np.asarray(Image.open(file))
        top = len(sheet) - 3 * (height + MARGIN)
        for place, pixels in enumerate(expected):
            down, right = top + place // 5 * (height + MARGIN), LABEL + place % 5 * (width + MARGIN)
            tile = sheet[down : down + height : factor, right : right + width : factor]
            np.testing.assert_array_equal(tile, pixels)


def test_a_file_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    """And names are shown as text."""
    photos = noise_images(tmp_path / "photos")
    (photos / "b").rename(photos / "<b>dogs")
    run = replace(RUN, data=str(photos))
    names = [image.name for image in see_images(run, 100, 1)[2]]
    (photos / names[0]).write_bytes(b"no image")
    assert [image.name for image in see_images(run, 100, 1)[2]] == names[1:]
    page = show(str(photos), out=tmp_path / "a.html", image_size=16)[0].read_text()
    assert "&lt;b&gt;dogs" in page and "<b>dogs" not in page


def test_another_file_is_not_written_over(tmp_path: Path) -> None:
    out = tmp_path / "new" / "cat.png"
    first = show("digits", images=2, out=out, seed=7)[0].read_bytes()
    assert show("digits", images=2, out=out, seed=7)[0].read_bytes() == first  # the same command again
    refused(r"cat\.png is there already, with other contents", show, "digits", images=2, out=out, seed=8)
    assert out.read_bytes() == first
    refused(r"ends in \.html or \.png", show, "digits", out="views.jpg")


def test_every_change_is_told() -> None:
    """Every field is covered, later ones too: users do not see a change that is not described."""
    plain = Augmentation(rand_augment=1)
    changed = {
        "crop_area": (0.5, 1.0),
        "flip": False,
        "shift": 3,
        "rotate": 10.0,
        "jpeg_scaling": True,
        "rand_augment": 2,
        "rand_augment_magnitude": 3.0,
        "random_erasing": 0.25,
    }
    # The shape of the crop goes with its area, and has no words of its own.
    assert {field.name for field in fields(Augmentation)} - changed.keys() == {"crop_aspect"}
    for name, value in changed.items():
        other: Augmentation = replace(plain, **{name: value})  # type: ignore[arg-type]
        assert list(describe_augmentation(other)) != list(describe_augmentation(plain)), name


def test_what_changes_nothing_and_what_is_not_shown_is_said() -> None:
    plain = Augmentation(crop_area=None, flip=False)
    mixing = replace(RUN, augmentation=plain, objective=ClassificationConfig(mixup=0.2))
    said = " ".join(see_images(mixing, 1, 1)[1])
    assert "Changed at random in training: nothing." in said and "Not shown: mixup" in said
