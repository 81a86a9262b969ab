"""What is given away, a model, a report, a card, says nothing of the disk that it was made on."""

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import vitkit
from tests.helpers.cli import Cli
from tests.helpers.photos import noise_images
from tests.helpers.refusals import refused
from tests.helpers.small_digits import small_run
from tests.jobs.hearing import Hearing
from vitkit.data.config import Splits
from vitkit.jobs import train_run as training
from vitkit.jobs.finetune import suit_start
from vitkit.runs.config import Run, StartConfig
from vitkit.runs.start import load_any
from vitkit.weights.model_card import ModelCard, TrainingData, card_of, to_give_away

GIVEN = ("model.safetensors", "model.json", "report.html", "evaluation/test.json", "metrics.jsonl")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return noise_images(tmp_path_factory.mktemp("of a person") / "my photos")


@pytest.fixture(scope="module")
def tuned(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that began from another one; both have absolute paths."""
    place = tmp_path_factory.mktemp("runs of a person")
    made = replace(
        small_run(1, warmup_steps=0), data=str(photos), splits=Splits(val_fraction=0, test_fraction=0.5)
    )
    start = training.train_run(made, place / "start")
    line = shlex.join(["vitkit", "finetune", str(start), "--data", str(photos), f"--out={place / 'tuned'}"])
    tuned = replace(made, model="", start=StartConfig(str(start)))
    return training.train_run(tuned, place / "tuned", command=line)


def test_no_path_of_the_disk_is_in_what_is_given_away(tuned: Path, photos: Path, cli: Cli) -> None:
    for name in GIVEN:
        content = (tuned / name).read_bytes()
        assert b"of a person" not in content, name
    card = json.loads((tuned / "model.json").read_text())
    assert (card["data"]["spec"], card["data"]["name"]) == ("my photos", "my photos")
    assert card["origin"]["start"]["from"] == "start"
    shown = "vitkit finetune start --data &#39;my photos&#39; --out=tuned"
    assert shown in (tuned / "report.html").read_text()
    for options in ([], ["--json"]):
        printed = cli(["card", str(tuned), *options]).out.replace("\n", "")
        assert str(photos) not in printed and str(tuned.parent / "start") not in printed


def test_the_run_still_knows_where_its_images_are(tuned: Path, photos: Path) -> None:
    for path in (tuned, tuned / "model.safetensors"):
        record = card_of(load_any(path).model).data
        assert record is not None and record.spec == str(photos)
    assert vitkit.evaluate(tuned).result.count == 12
    # As a start too: its images are cut as they were, so that none of its training images is tested on.
    run = suit_start(Run(data=str(photos), model="", start=StartConfig(str(tuned)))).run
    assert run.splits.test_fraction == 0.5


def test_a_model_alone_asks_for_data_and_knows_it_again(tuned: Path, photos: Path, tmp_path: Path) -> None:
    for name in ("model.safetensors", "model.json"):
        shutil.copy(tuned / name, tmp_path)
    refused(r"its name is 'my photos'\): give it with data", vitkit.evaluate, tmp_path)
    # Its test images alone, and no training images.
    assert vitkit.evaluate(tmp_path, data=str(photos)).result.count == 12
    run = suit_start(Run(data=str(photos), model="", start=StartConfig(str(tmp_path)))).run
    assert run.splits.test_fraction == 0.5
    hearing = Hearing()
    few = vitkit.fewshot(tmp_path, str(photos), shots=[1], seeds=1, methods=["ridge"], listener=hearing)
    assert few.test_images == 12
    assert any("shots are training images of its own" in note for note in hearing.notes)
    other = shutil.copytree(photos, tmp_path / "others")
    (other / "a" / "00.png").unlink()
    assert vitkit.evaluate(tmp_path, data=str(other)).result.count == 23  # other images, and all of them


def test_a_place_is_a_path_or_the_built_in_data() -> None:
    """Images in a folder of the name digits are not the built-in ones."""
    for spec, has_place in (("/home/me/photos", True), ("digits", True), ("photos", False)):
        assert TrainingData(spec, "x", Splits(), "0").has_place == has_place
    card = to_give_away(ModelCard(data=TrainingData("/home/me/digits", "digits", Splits(), "0")))
    assert card.data is not None and not card.data.has_place and "me" not in card.data.spec
    assert to_give_away(card) == card
