"""Runs on images of other than three channels, from the files to the predictions."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitkit
from tests.helpers.refusals import refused
from tests.helpers.small_digits import small_run
from tests.jobs.hearing import Hearing
from vitkit.data.config import Augmentation, DecodeRule, Preprocessing
from vitkit.data.sources import open_data
from vitkit.jobs import train_run as training
from vitkit.runs.config import Run, StartConfig
from vitkit.runs.plan import with_measured_pixels

SIZE = (16, 16)
pytestmark = pytest.mark.usefixtures("without_report")


def run_of(data: Path, channels: int, **changes: Any) -> Run:
    run = replace(
        small_run(60, evaluate_every=30, log_every=30),
        data=str(data),
        model="ViT-16x2x2/4",
        preprocessing=Preprocessing(SIZE, decode=DecodeRule(channels=channels)),
        augmentation=Augmentation(crop_area=None, flip=False),
    )
    return replace(run, **changes)


@pytest.fixture(scope="module")
def seen_by_alpha(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images whose class is in their alpha alone: noise in the colours, a bright half in the alpha."""
    root, rng = tmp_path_factory.mktemp("alpha"), np.random.default_rng(0)
    for name, rows in (("above", slice(0, 8)), ("below", slice(8, 16))):
        (root / name).mkdir()
        for number in range(40):
            pixels = rng.integers(100, 156, (*SIZE, 4), dtype=np.uint8)
            pixels[..., 3] = 0
            pixels[rows, :, 3] = 255
            Image.fromarray(pixels).save(root / name / f"{number}.png")
    return root


def test_four_channels_learn_from_alpha_and_predict_by_that_rule(tmp_path: Path, seen_by_alpha: Path) -> None:
    augmented = run_of(seen_by_alpha, 4, augmentation=Augmentation(rand_augment=2))
    refused(r"rand_augment.* 4 channels.*rand_augment 0", training.train_run, augmented, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    folder = training.train_run(run_of(seen_by_alpha, 4), tmp_path / "run")
    assert vitkit.load_model(folder).config.in_channels == 4
    assert vitkit.evaluate(folder).result.accuracy == 1.0
    predictor, above = vitkit.Predictor(folder), Image.open(seen_by_alpha / "above/3.png")
    array = np.asarray(above)
    assert predictor(seen_by_alpha / "below/3.png", top=1)[0].name == "below"
    assert predictor(above, top=1)[0].name == predictor(array, top=1)[0].name == "above"
    refused(r"\(height, width, 4\)", predictor, array[:, :, :3])
    assert vitkit.write_report(folder).read_text().count("data:image/") >= 4


@pytest.fixture(scope="module")
def bands(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Arrays of five bands: the class is which of the last two is the brighter; the first is constant."""
    root, rng = tmp_path_factory.mktemp("bands"), np.random.default_rng(0)
    for name, band in (("crop", 3), ("soil", 4)):
        (root / name).mkdir()
        for number in range(40):
            values = rng.uniform(0.1, 0.3, (20, 20, 5)).astype(np.float32)
            values[..., 0], values[..., band] = 0.5, values[..., band] + 0.6
            np.save(root / name / f"{number}.npy", values)
    return root


def test_bands_of_arrays_are_learned_with_measured_pixels(tmp_path: Path, bands: Path) -> None:
    run = run_of(bands, 5, start=StartConfig(measure_pixels=True))
    folder = training.train_run(run, tmp_path / "run")
    config = vitkit.load_model(folder).config
    assert config.image_mean == pytest.approx((128 / 255, 0.2, 0.2, 0.5, 0.5), abs=0.01)
    assert config.image_std[0] == pytest.approx(1 / 255, abs=1e-4)  # a constant band
    assert config.image_std[3:] == pytest.approx((0.3, 0.3), abs=0.02)
    assert vitkit.evaluate(folder).result.accuracy == 1.0
    assert vitkit.Predictor(folder)(bands / "soil/2.npy", top=1)[0].name == "soil"
    before = (folder / "model.safetensors").read_bytes()
    training.train_run(run, folder)  # the same again is the same run, which has finished
    assert (folder / "model.safetensors").read_bytes() == before
    other = replace(run, start=StartConfig(image_mean=(0.5,)))
    refused("holds another run", training.train_run, other, folder)


def test_pixels_are_measured_on_the_images_that_can_be_read(tmp_path: Path, bands: Path) -> None:
    run = run_of(shutil.copytree(bands, tmp_path / "bands"), 5, start=StartConfig(measure_pixels=True))
    data = open_data(run.data, run.splits, run.preprocessing.decode)
    train = data.splits["train"]
    Path(str(train.file(len(train) - 1))).write_bytes(b"no image")
    hearing = Hearing()
    with_measured_pixels(run, data, hearing)
    assert hearing.notes[0].endswith(f" on {len(train) - 1} training images.")
    assert hearing.done["measuring the pixels"] == len(train), "the bar reaches its end"
