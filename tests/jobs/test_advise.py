"""Advice before training: what is counted and measured, and what becomes of it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

import vitkit
from tests.helpers.cli import Cli
from tests.helpers.fewshot import class_folders
from tests.helpers.refusals import refused
from tests.jobs.hearing import Hearing
from vitkit.data.config import Splits
from vitkit.jobs import finetune as default_start
from vitkit.jobs.advise import Option, advise, choose
from vitkit.models.measure import forward_flops
from vitkit.runs import budget
from vitkit.weights.published import default_starts

pytestmark = pytest.mark.usefixtures("without_report")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    # Models of 224 pixels that a public checkpoint would have take seconds to be timed, and others some.
    models = ("ViT-8x1x1/112", "ViT-16x1x1/112")
    small = tuple(replace(start, model=model) for start, model in zip(default_starts(), models, strict=False))
    monkeypatch.setattr(default_start, "default_starts", lambda: small)
    monkeypatch.setattr(
        budget, "image_seconds", lambda model, *_: forward_flops(model.config, head=True) / 1e10
    )


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights that nobody trained: random features tell dark from bright images too."""
    model = vitkit.create_model("ViT-16x1x2/4", 10, 8, generator=torch.Generator().manual_seed(0))
    return vitkit.save_model(model, tmp_path_factory.mktemp("advise") / "start")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return class_folders(tmp_path / "photos", {"dark": 40, "bright": 40})


def test_few_images_are_told_not_to_be_trained_from_scratch(photos: Path, cli: Cli) -> None:
    advice = advise(str(photos))
    assert advice.images == 56 and advice.tested == 16 and advice.classes == 2
    text = " ".join(advice.sentences)
    assert text.startswith("56 training images: do not train from scratch")
    assert "Begin from vit-s16-augreg-in21k, the largest of 2 sizes that this machine fine-tunes" in text
    published = [option.published for option in advice.options]
    assert published == ["vit-ti16-augreg-in21k", "vit-s16-augreg-in21k"]
    assert advice.chosen is None and not advice.can_go
    assert "enlarges these images, of about 18 pixels, to 224" in text
    begin = f"vitkit advise {photos} vit-s16-augreg-in21k --go"
    refused(rf"do not train from scratch.*{begin}", advise, str(photos), go=True)
    assert f"Give one: {begin}." in cli(["advise", str(photos), "--go"], 1).err
    assert advice.following() == (f"vitkit finetune {photos}   (from {published[-1]})",)
    advised = json.loads(cli(["advise", str(photos), "--json"]).out)
    assert (advised["chosen"], advised["images"], advised["default"]) == (None, 56, published[-1])


def test_enough_small_images_are_told_to_be_trained_from_scratch_first() -> None:
    """Starts of 224 pixels would take hours for pictures of 8."""
    advice = advise("digits", seconds=5.0)
    assert advice.can_go and advice.chosen is None
    assert advice.sentences[0] == (
        "Train from scratch first: these images are small, of about 8 pixels, and there are enough of them."
    )


def test_the_few_shot_accuracy_of_a_start_and_its_cost_are_measured(photos: Path, start: Path) -> None:
    hearing = Hearing()
    advice = advise(str(photos), start, cache=False, listener=hearing)
    option = advice.chosen
    assert option is advice.options[0] and option is not None and advice.can_go
    tried = vitkit.try_starts(str(photos), start, cache=False)
    assert option.accuracy == tried.models[0].best.mean and option.tested == tried.test_images == 16
    assert option.steps == option.run.training.total_steps(56) == 202
    assert option.seconds > 0 and option.memory > 10_000
    text = " ".join(advice.sentences)
    assert f"Begin from {start}: {option.run.model} at 8x8, 202 steps of 32 images, about" in text
    assert (
        f"From 25 images of each class, its frozen features are right on {option.accuracy:.0%} of 16 test "
        "images of photos (95 % interval "
    ) in text
    assert f"features of shots, {start}" in hearing.loops
    json.dumps(advice.to_json())


def test_of_several_starts_the_better_one_is_advised_and_one_that_sees_nothing_warned_of(
    start: Path, tmp_path: Path
) -> None:
    blind = vitkit.create_model("ViT-16x1x2/4", 10, 8)
    with torch.no_grad():
        for weight in blind.parameters():
            weight.zero_()
    worse = vitkit.save_model(blind, tmp_path / "blind")
    many = str(class_folders(tmp_path / "many", {"dark": 200, "bright": 200}))
    advice = advise(many, [worse, start], cache=False)
    assert [option.start for option in advice.options] == [str(worse), str(start)]
    assert advice.chosen is advice.options[1]
    assert "chosen among 2 that were tried" in " ".join(advice.sentences)
    advice = advise(many, worse, seconds=1e-3, cache=False)
    assert advice.chosen is advice.options[0] and advice.chosen.tested < 10
    assert "is not significantly better than guessing" in " ".join(advice.sentences)


def test_a_larger_size_is_tried_where_the_images_have_more_to_show(tmp_path: Path) -> None:
    """Photos are not said to be enlarged."""
    images = str(class_folders(tmp_path / "large", {"dark": 10, "bright": 10}))
    for path in (tmp_path / "large").glob("*/*.png"):
        Image.open(path).resize((66, 66)).save(path)
    assert "enlarges" not in " ".join(advise(images).sentences)
    smaller = vitkit.save_model(vitkit.create_model("ViT-16x1x2/4", 10, 20), tmp_path / "start20")
    advice = advise(images, smaller, cache=False)
    assert [option.run.preprocessing.image_size for option in advice.options] == [(20, 20), (32, 32)]
    assert advice.options[1].flops > advice.options[0].flops


def option_of(accuracy: float, flops: float, tested: int = 56) -> Option:
    run = vitkit.Run()
    return Option(
        run, steps=1, seconds=1.0, memory=1, flops=flops, start="a", accuracy=accuracy, tested=tested
    )


def test_the_cheapest_of_equally_good_starts_is_chosen() -> None:
    cheap, close, best = option_of(0.5, 1.0), option_of(0.76, 2.0), option_of(0.8, 3.0)
    assert choose((cheap, close, best)) is close, "0.053 is the standard error of 0.8 of 56 images"
    assert choose((cheap, option_of(0.7, 2.0), best)) is best
    assert choose((replace(best, accuracy=None),)) is None
    # The accuracy on very many images has hardly an error: the margin of a point alone decides.
    best = option_of(0.8, 3.0, tested=10**8)
    close, worse = option_of(0.7901, 2.0, tested=10**8), option_of(0.7899, 1.0, tested=10**8)
    assert choose((worse, close, best)) is close
    assert choose((worse, best)) is best


def test_imbalance_is_said(tmp_path: Path, start: Path) -> None:
    photos = str(class_folders(tmp_path / "data", {"dark": 44, "bright": 4}))
    advice = advise(photos, start, splits=Splits(val_fraction=0.0), cache=False)
    text = " ".join(advice.sentences)
    assert "The classes are unbalanced, " in text and "--logit-adjustment 1" in text


def test_advice_is_followed_and_continued(tmp_path: Path, start: Path, cli: Cli) -> None:
    again, folder = Hearing(), tmp_path / "run"
    images = str(class_folders(tmp_path / "few", {"dark": 9, "bright": 9}))
    cli(["advise", images, str(start), "--no-cache", "--go", "--out", str(folder)])
    assert json.loads((folder / "config.json").read_text())["command"].startswith("vitkit advise ")
    advice = advise(images, start, cache=False, go=True, out=folder, listener=again)
    assert advice.chosen is not None and advice.folder == folder
    assert advice.following() == (f"open {folder / 'report.html'} in a browser",)
    # The same advice goes on where it was.
    assert again.rows[-1] == ("", [f"This run has finished: {folder}"])
    assert vitkit.load_model(folder).config.num_classes == 2
    advice = advise(images, folder, cache=False)
    assert f"{folder} was trained on this data" in " ".join(advice.sentences)


def test_too_few_images_and_a_folder_without_a_run_are_refused(tmp_path: Path, start: Path) -> None:
    single = class_folders(tmp_path / "single", {"dark": 1, "bright": 1})
    refused("leaves nothing to test on", advise, str(single), start, cache=False)
    said = r"out is the folder of the run that (--)?go begins"
    refused(said, vitkit.advise, "digits", out=tmp_path / "run")
