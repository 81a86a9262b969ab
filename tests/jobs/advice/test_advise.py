"""Advice before training: what is counted, measured and expected, and what becomes of it."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitkit
from tests.jobs.hearing import Hearing
from vitkit.data.config import Splits
from vitkit.errors import VitkitError
from vitkit.evaluation.fewshot.folds import Folded
from vitkit.jobs import default_start
from vitkit.jobs import train_run as training
from vitkit.jobs.advice import advise as advising
from vitkit.jobs.advice.advise import Option, advise, choose, follow
from vitkit.jobs.advice.forecast import LARGEST_START
from vitkit.jobs.advice.probe import Probe
from vitkit.models.build import create_model
from vitkit.runs.config import Run
from vitkit.runs.records import AdviceRecord, Forecast, compare_with_advice, keep_advice, read_advice
from vitkit.training.config import TrainingConfig
from vitkit.weights.published import default_starts
from vitkit.weights.saving import save_model

pytestmark = pytest.mark.usefixtures("without_report")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    # Models of 224 pixels that a public checkpoint would have take seconds to be timed.
    models = ("ViT-8x1x1/112", "ViT-16x1x1/112")
    small = tuple(replace(start, model=model) for start, model in zip(default_starts(), models, strict=False))
    monkeypatch.setattr(default_start, "default_starts", lambda: small)


@pytest.fixture
def weak_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small pictures tell little: brightness, by which the pictures of these tests differ, tells all."""
    right = {"ridge": 30, "knn": 20}
    monkeypatch.setattr(advising, "probe_pixels", lambda *_: Probe(Folded(100, right, right), 0.0))


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights that nobody trained: random features tell dark from bright images too."""
    model = create_model("ViT-16x1x2/4", 10, 8, generator=torch.Generator().manual_seed(0))
    return save_model(model, tmp_path_factory.mktemp("advise") / "start")


def write_photos(root: Path, counts: dict[str, int], seed: int = 0, side: int = 12) -> Path:
    """Small noisy pictures of classes that differ in brightness."""
    draw = np.random.default_rng(seed)
    for number, (label, count) in enumerate(counts.items()):
        for i in range(count):
            pixels = draw.integers(0, 60, (side, side + i % 3, 3)) + 60 * number
            path = root / label / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.astype(np.uint8)).save(path)
    return root


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_photos(tmp_path / "photos", {"dark": 40, "bright": 40})


def test_few_images_are_told_not_to_be_trained_from_scratch(photos: Path) -> None:
    advice = advise(str(photos))
    assert advice.images == 56 and advice.tested == 16 and advice.classes == 2
    text = " ".join(advice.sentences)
    assert text.startswith("56 training images: do not train from scratch")
    assert "Begin from vit-s16-augreg-in21k, the largest of 2 sizes that this machine fine-tunes" in text
    assert [option.published for option in advice.options] == [
        "vit-ti16-augreg-in21k",
        "vit-s16-augreg-in21k",
    ]
    assert "From scratch (recipe small-images, ViT-96x6x3/4 at 32x32" in text
    assert advice.chosen is None and not advice.can_go
    assert advice.scratch.forecast is None and advice.scratch.folded is not None
    assert "there is no forecast: no such runs were measured" in text
    assert "enlarges these images, of about 13 pixels, to 224" in text
    assert "Train from scratch first" not in text
    with pytest.raises(VitkitError, match=r"do not train from scratch.*vit-s16-augreg-in21k --go"):
        follow(advice)


def test_the_advised_run_keeps_a_stem_that_no_name_tells(tmp_path: Path) -> None:
    images = write_photos(tmp_path / "images", {"dark": 8, "bright": 8}, side=32)
    run = advise(str(images)).scratch.run
    assert run.recipe == "small-images-conv" and run.architecture == vitkit.recipe(run.recipe).architecture


def test_enough_small_images_are_told_to_be_trained_from_scratch_first() -> None:
    """Starts of 224 pixels would take hours for pictures of 8."""
    advice = advise("digits", seconds=5.0)
    assert advice.can_go and advice.chosen is None
    assert advice.sentences[0] == (
        "Train from scratch first: these images are small, of about 8 pixels, and there are enough of them."
    )
    assert "enlarges these images, of about 8 pixels, to 224" in advice.sentences[2]
    assert advice.sentences[3].startswith("From scratch (recipe digits")


def test_photos_are_not_said_to_be_enlarged(tmp_path: Path) -> None:
    for number in range(20):
        path = tmp_path / "large" / str(number % 2) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((70, 60, 3), 100 * (number % 2) + number, np.uint8)).save(path)
    assert "enlarges" not in " ".join(advise(str(tmp_path / "large")).sentences)


@pytest.mark.usefixtures("weak_pixels")
def test_a_start_is_probed_and_its_cost_is_measured(photos: Path, start: Path) -> None:
    hearing = Hearing()
    advice = advise(str(photos), start, cache=False, listener=hearing)
    option = advice.chosen
    assert option is advice.options[0] and option is not None and advice.can_go
    assert option.folded is not None and option.folded.images == 56
    assert option.forecast is not None and option.forecast.low < option.forecast.accuracy
    assert option.steps == option.run.training.total_steps(56) == 202
    assert option.seconds > 0 and option.memory > 10_000
    text = " ".join(advice.sentences)
    assert f"Begin from {start}: {option.run.model} at 8x8, 202 steps of 32 images, about" in text
    assert f"Expect {option.forecast.percentages} of the test images to be right" in text
    assert "Freeze nothing: the new head learns 6 times as fast as the last layer" in text
    assert f"features by {start}" in hearing.loops
    json.dumps(advice.to_json())


@pytest.mark.usefixtures("weak_pixels")
def test_of_several_starts_the_one_with_the_better_features_is_advised(photos: Path, start: Path) -> None:
    blind = create_model("ViT-16x1x2/4", 10, 8)
    with torch.no_grad():
        for weight in blind.parameters():
            weight.zero_()
    worse = save_model(blind, start.parent / "blind")
    advice = advise(str(photos), [worse, start], cache=False)
    assert [option.start for option in advice.options] == [str(worse), str(start)]
    assert advice.chosen is advice.options[1]
    assert "chosen among 2 that were tried" in " ".join(advice.sentences)


def test_a_larger_size_is_tried_where_the_images_have_more_to_show(tmp_path: Path, start: Path) -> None:
    for number in range(24):
        path = tmp_path / "large" / str(number % 2) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((40, 40, 3), 100 * (number % 2) + number, np.uint8)).save(path)
    larger = save_model(create_model("ViT-16x1x2/4", 10, 20), tmp_path / "start20")
    advice = advise(str(tmp_path / "large"), larger, cache=False)
    assert [option.run.preprocessing.image_size for option in advice.options] == [(20, 20), (32, 32)]
    assert advice.options[1].flops > advice.options[0].flops


def test_the_cheapest_of_equally_good_options_is_chosen(photos: Path, start: Path) -> None:
    option = advise(str(photos), start, cache=False).options[0]

    def like(accuracy: float, flops: float) -> Any:
        return replace(option, forecast=Forecast(accuracy, 0.0, 1.0), flops=flops)

    cheap, close, best = like(0.5, 1.0), like(0.76, 2.0), like(0.8, 3.0)
    assert choose((cheap, close, best)) is close, "0.053 is the standard error of 0.8 of 56 images"
    assert choose((cheap, like(0.7, 2.0), best)) is best
    assert choose((replace(option, forecast=None),)) is None


def option_of(accuracy: float, flops: float, start: str = "start", images: int = 0) -> Option:
    right = {"ridge": round(accuracy * images), "knn": 0}
    return Option(
        start=start,
        run=Run(),
        steps=1,
        seconds=1.0,
        memory=1,
        flops=flops,
        folded=Folded(images, right, right) if images else None,
        forecast=Forecast(accuracy, accuracy - 0.1, accuracy + 0.1),
    )


def test_less_than_a_point_is_no_reason_to_compute_more() -> None:
    """The probe of very many images has hardly an error: the margin alone decides."""
    best = option_of(0.8, 3.0, images=10**8)
    close, worse = option_of(0.7901, 2.0), option_of(0.7899, 1.0)
    assert choose((worse, close, best)) is close
    assert choose((worse, best)) is best


def test_no_start_is_chosen_where_small_pictures_alone_tell_more() -> None:
    """65 of 80 are 81 %, and with 95 % certainty more than 71 %."""
    pixels = Folded(80, {"ridge": 65, "knn": 30}, {"ridge": 50, "knn": 30})
    assert choose((option_of(0.42, 1.0), option_of(0.70, 2.0)), pixels) is None
    enough = option_of(0.72, 2.0)
    assert choose((option_of(0.42, 1.0), enough), pixels) is enough
    assert choose((option_of(0.42, 1.0),)) is not None


@pytest.mark.usefixtures("weak_pixels")
def test_a_forecast_beyond_the_runs_it_was_fitted_to_is_said_to_be(photos: Path, start: Path) -> None:
    said = "which had 45 to 450 training images and starts of fewer than 500,000 parameters"
    assert said not in " ".join(advise(str(photos), start, cache=False).sentences)
    for path in [*photos.glob("*/*.png")]:
        if int(path.stem) >= 20:
            path.unlink()
    assert said in " ".join(advise(str(photos), start, cache=False).sentences)


def test_imbalance_leaks_and_copies_are_said(tmp_path: Path, start: Path) -> None:
    root = tmp_path / "data"
    write_photos(root / "train", {"dark": 44, "bright": 4})
    write_photos(root / "test", {"dark": 5, "bright": 5}, seed=0)  # the same seed: some images are the same
    advice = advise(str(root), start, splits=Splits(val_fraction=0.0), cache=False)
    assert advice.check is not None and advice.check.leaks["train-test"] == 5
    text = " ".join(advice.sentences)
    assert "The classes are unbalanced, 11 to 1" in text and "--logit-adjustment 1" in text
    assert "5 images of test are in train too, pixel for pixel, so that the accuracy will look" in text


def test_photos_that_are_too_many_to_look_at_are_compared_all_the_same(
    tmp_path: Path, start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advising, "CHECKED_PIXELS", 1000)
    write_photos(tmp_path / "data" / "train", {"dark": 20, "bright": 20})
    write_photos(tmp_path / "data" / "test", {"dark": 5, "bright": 5}, seed=0)
    hearing = Hearing()
    whole = Splits(val_fraction=0.0)
    advice = advise(str(tmp_path / "data"), start, splits=whole, cache=False, listener=hearing)
    assert advice.check is None and "50 images are too many, or too large" in hearing.notes[0]
    assert "5 images of test are in train too" in " ".join(advice.sentences)


@pytest.mark.usefixtures("weak_pixels")
def test_a_start_that_has_seen_these_images_is_said_to_have(tmp_path: Path, photos: Path) -> None:
    run = Run(
        data=str(photos),
        model="ViT-16x1x2/4",
        preprocessing=replace(Run().preprocessing, image_size=(8, 8)),
        training=TrainingConfig(steps=2, batch_size=8),
    )
    seen = training.train_run(run, tmp_path / "seen")
    advice = advise(str(photos), seen, cache=False)
    assert f"{seen}: it was trained on these images" in " ".join(advice.sentences)


@pytest.mark.usefixtures("weak_pixels")
def test_what_was_expected_is_kept_and_compared_with_what_came_out(
    tmp_path: Path, photos: Path, start: Path
) -> None:
    advice = advise(str(photos), start, cache=False)
    assert advice.chosen is not None and advice.chosen.forecast is not None
    hearing = Hearing()
    folder = follow(advice, tmp_path / "run", listener=hearing)
    record = read_advice(folder)
    assert record is not None and record.expected == advice.chosen.forecast
    accuracy = json.loads((folder / "evaluation" / "test.json").read_text())["accuracy"]
    sentence = compare_with_advice(folder)
    assert sentence.startswith(
        f"Accuracy on the test images: expected {record.expected.percentages}, "
        f"came out {100 * accuracy:.0f} %"
    )
    expectations = [lines for heading, lines in hearing.rows if heading == "advice"]
    assert expectations[0] == [
        f"expected by the advice before it: {record.expected.percentages} of the test images right"
    ]
    assert expectations[-1] == [sentence]
    again = Hearing()
    assert follow(advice, folder, listener=again) == folder, "the same advice goes on where it was"
    assert ("advice", [sentence]) in again.rows
    assert vitkit.load_model(folder).config.num_classes == 2


def test_a_run_without_advice_is_compared_with_nothing(tmp_path: Path) -> None:
    assert read_advice(tmp_path) is None and compare_with_advice(tmp_path) == ""
    keep_advice(tmp_path, None)
    assert not list(tmp_path.iterdir())
    keep_advice(tmp_path, AdviceRecord(Forecast(0.5, 0.4, 0.6), 60.0, ("Begin.",)))
    assert compare_with_advice(tmp_path) == "", "nothing was measured yet"
    keep_advice(tmp_path, AdviceRecord(Forecast(0.9, 0.8, 0.95), 60.0, ()))
    record = read_advice(tmp_path)
    assert record is not None and record.expected.accuracy == 0.5, "what was said first is not changed"
    (tmp_path / "advice.json").write_text("{}")
    with pytest.raises(VitkitError, match=r"advice\.json"):
        read_advice(tmp_path)


def test_a_start_that_sees_less_than_small_pictures_is_not_advised(
    photos: Path, start: Path, tmp_path: Path
) -> None:
    blind = create_model("ViT-16x1x2/4", 10, 8)
    with torch.no_grad():
        for weight in blind.parameters():
            weight.zero_()
    useless = save_model(blind, tmp_path / "useless")
    advice = advise(str(photos), useless, cache=False)
    assert advice.chosen is None and advice.record is None and not advice.can_go
    (option,) = advice.options
    folded = advice.scratch.folded
    assert option.forecast is not None and folded is not None
    pixels = f"small pictures of 12x12 pixels alone tell {folded.accuracy:.0%} of 56 training images"
    assert advice.sentences[0] == (
        f"No start is advised: {pixels} right, and {option.forecast.percentages} is expected of fine-tuning "
        f"{useless}. Look for one that was trained on images more like these."
    )
    assert advice.sentences[1].startswith("56 training images: do not train from scratch")
    assert "Look for a ViT" not in " ".join(advice.sentences)
    with pytest.raises(VitkitError, match=r"No start is advised: .*START --go"):
        follow(advice)


@pytest.mark.usefixtures("weak_pixels")
@pytest.mark.parametrize("measured", [True, False])
def test_8_of_10_are_promised_only_where_runs_were_measured(
    measured: bool, photos: Path, start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not measured:
        monkeypatch.setattr(advising, "parameters", lambda config: LARGEST_START + 1)
    text = " ".join(advise(str(photos), start, cache=False).sentences)
    assert ("8 of 10 runs should lie inside" in text) == measured
    caveat = (
        "a guess, 2 times as wide as for the runs that were measured, which had 45 to 450 training images"
    )
    assert (caveat in text) != measured


@pytest.fixture
def unreadable(photos: Path) -> Iterator[Path]:
    for path in sorted((photos / "dark").iterdir())[:3]:
        path.write_bytes(b"no image")
    yield photos


def test_bad_files_are_left_out_of_the_probe(unreadable: Path, start: Path) -> None:
    advice = advise(str(unreadable), start, splits=Splits(test_fraction=0.0, val_fraction=0.0), cache=False)
    assert advice.options[0].folded is not None and advice.options[0].folded.images == 77
    assert advice.check is not None and len(advice.check.bad) == 3
    assert advice.tested == 0


def test_too_few_images_are_refused(tmp_path: Path, start: Path) -> None:
    write_photos(tmp_path / "few", {"dark": 3, "bright": 3})
    with pytest.raises(VitkitError, match="Expected at least 10 training images"):
        advise(str(tmp_path / "few"), start, cache=False)
