"""What a trained model refuses: learned when a run ends, kept in the model's own files, and dropped where it
would no longer be true."""

import csv
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

import vitkit
from tests.engines.models import fake_engines
from tests.helpers.cli import Cli
from tests.helpers.photos import TINY, picture
from tests.helpers.refusals import refused
from vitkit.runs.trained_model import read_refusal
from vitkit.weights.model_card import card_of

KINDS = {"grass": (40, 190, 60), "red fruit": (200, 40, 40), "sky": (60, 90, 220)}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    for name, colour in KINDS.items():
        (root / name).mkdir()
        for i in range(40):
            picture(colour, i).save(root / name / f"{i}.png")
    return root


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A white stripe on black, which is not like any of the kinds, and a file that is no image."""
    root = tmp_path_factory.mktemp("others")
    for i in range(6):
        image = picture((0, 0, 0), i).resize((24, 24))
        image.paste(picture((255, 255, 255), i).resize((24, 3)), (0, 3 * i))
        image.save(root / f"{i}.png")
    (root / "page.jpg").write_text("<html>not found</html>")
    return root


@pytest.fixture(scope="module")
def trained(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    options: dict[str, Any] = {"model": "ViT-16x2x2/4", "image_size": 16, "batch_size": 8, "epochs": 6}
    options |= {"splits_test_fraction": 0.5, "splits_val_fraction": 0.1, "quiet": True}
    return vitkit.train(str(photos), out, **options)


def test_a_run_counts_on_held_out_images_what_is_strange(trained: Path) -> None:
    record, card = read_refusal(trained), vitkit.load_model(trained).card
    assert record is not None and card.refusal is not None
    assert (record.split, record.share, dict(record.images)) == ("test", 0.02, dict.fromkeys(KINDS, 20))
    assert len(card.refusal.scores) == 60
    assert sum(record.refused.values()) == len(record.strangest)
    report = (trained / "report.html").read_text()
    assert "None of these" in report and record.sentence() in report
    # Nothing is said of what the network saw, which a head in closed form leaves as it was.
    assert "it refuses is not measured yet" in report and "trained with" not in report


def test_an_answer_says_how_typical_an_image_is(trained: Path, photos: Path, others: Path) -> None:
    predictor = vitkit.Predictor(trained)
    for path in (photos / "sky" / "3.png", photos / "grass" / "9.png"):
        answer = predictor(path)
        assert not answer.refused
        assert answer.typicality is not None
        # Of 60 held-out images some number is at least as strange, and the image itself.
        assert answer.typicality * 61 == pytest.approx(round(answer.typicality * 61))
    other = predictor(others / "2.png")
    assert other.refused and other[0].name in KINDS
    assert not vitkit.Predictor(trained, refuse=0)(others / "2.png").refused
    refused("smallest share that can be kept is 0.017, found 1e-09", vitkit.Predictor, trained, refuse=1e-9)
    # What is named as the smallest is taken.
    assert vitkit.Predictor(trained, refuse=0.017).refuse == 0.017


def test_the_verb_says_none_of_these_in_every_form(
    trained: Path, photos: Path, others: Path, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    paths = [str(others / "2.png"), str(photos / "sky" / "3.png")]
    for options, first in (([], "none of these  "), (["--top", "1"], "none of these")):
        lines = cli(["predict", str(trained), *paths, *options]).out.splitlines()
        assert [first in line for line in lines[1:3]] == [True, False]
    assert "none of these" not in cli(["predict", str(trained), *paths, "--refuse", "0"]).out
    printed = cli(["predict", str(trained), *paths, "--json"]).out.splitlines()
    assert [json.loads(line)["none_of_these"] for line in printed] == [True, False]
    table = list(csv.DictReader(io.StringIO(cli(["predict", str(trained), *paths, "--csv"]).out)))
    assert [row["none_of_these"] for row in table] == ["true", "false"]
    cli(["predict", str(trained), *paths, str(others / "page.jpg"), "--out", "out"], 1)
    columns = pq.read_table("out").to_pydict()
    assert columns["none_of_these"] == [True, False, None]
    assert columns["typicality"][0] == pytest.approx(1 / 61)
    # Another share is another table.
    cli(["predict", str(trained), *paths, "--out", "out", "--refuse", "0.5"], 1)


def test_images_of_something_else_are_measured(trained: Path, others: Path, cli: Cli, photos: Path) -> None:
    measured = vitkit.evaluate(trained, others=others)
    assert measured.others is not None
    assert (measured.others.images, measured.others.share) == (6, 0.02)
    assert measured.others.refused + len(measured.accepted) == 6
    said = cli(["evaluate", str(trained), "--others", str(others)]).text
    assert f"of 6 images in {others.name} as none of the classes (1 file could not be read)." in said
    assert "None of these" in (trained / "evaluation" / "others" / f"{others.name}.html").read_text()
    shown = json.loads(cli(["evaluate", str(trained), "--others", str(others), "--json"]).out)
    assert shown["others"]["images"] == 6
    own = vitkit.evaluate(trained, others=photos, refuse=0.5)
    page = own.sections()[-1]
    assert page.title == "None of these" and own.accepted
    assert "--others" in cli(["evaluate", str(trained), "--refuse", "0.1"], 1).err
    protocol = ["evaluate", str(trained), "--data", str(photos), "--protocol", "imagenet-real"]
    assert "measures no refusal" in cli([*protocol, "--others", str(others)], 1).err
    (others.parent / "empty").mkdir(exist_ok=True)
    assert "vitkit:" in cli(["evaluate", str(trained), "--others", str(others.parent / "empty")], 1).err


def test_it_travels_in_the_two_files_of_a_model(trained: Path, others: Path, tmp_path: Path) -> None:
    for name in ("model.safetensors", "model.json"):
        shutil.copy(trained / name, tmp_path)
    assert vitkit.Predictor(tmp_path)(others / "2.png").refused
    tensors = load_file(tmp_path / "model.safetensors")
    assert {name for name in tensors if name.startswith("novelty.")} == {
        f"novelty.{name}" for name in ("centre", "class_means", "scales", "whitening")
    }
    described = json.loads((tmp_path / "model.json").read_text())
    del described["refusal"]
    (tmp_path / "model.json").write_text(json.dumps(described))
    refused("do not agree whether the model refuses", vitkit.load_model, tmp_path)


def test_it_is_dropped_where_the_model_changes(trained: Path, tmp_path: Path) -> None:
    """With another head or image size scores mean nothing; other libraries' formats have no room for them."""
    assert vitkit.load_model(trained, num_classes=5).novelty is None
    assert vitkit.load_model(trained, num_classes=5).card.refusal is None
    larger = vitkit.load_model(trained, image_size=24)
    assert (larger.novelty, larger.card.refusal) == (None, None)
    model = vitkit.load_model(trained)
    copied = vitkit.load_model(vitkit.save_model(model, tmp_path / "timm", format="timm"))
    assert (copied.novelty, card_of(copied).refusal) == (None, None)
    again = vitkit.load_model(vitkit.save_model(model, tmp_path / "own"))
    assert again.novelty is not None and model.novelty is not None
    for name, tensor in model.novelty.tensors().items():
        assert torch.equal(again.novelty.tensors()[name], tensor)


def test_an_exported_model_refuses_too(
    trained: Path, others: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = vitkit.load_model(trained)
    fake_engines(monkeypatch, model)
    exported = vitkit.export(trained, tmp_path / "engine")
    assert exported.agreement.same_refusals == exported.agreement.images
    answer, own = vitkit.Predictor(tmp_path / "engine")(others / "2.png"), vitkit.Predictor(trained)
    assert answer.refused and answer.typicality == own(others / "2.png").typicality
    # A graph without the second output is another model's.
    model.card = replace(model.card, refusal=None)
    refused("do not belong together", vitkit.Predictor, tmp_path / "engine")


def test_a_model_without_held_out_images_refuses_nothing(photos: Path, tmp_path: Path, cli: Cli) -> None:
    splits = ["--splits.test-fraction", "0", "--splits.val-fraction", "0"]
    cli(["train", "--data", str(photos), "--out", str(tmp_path / "run"), *TINY, *splits])
    assert read_refusal(tmp_path / "run") is None
    answer = vitkit.Predictor(tmp_path / "run")(photos / "sky" / "3.png")
    assert (answer.refused, answer.typicality) == (False, None)
    said = "has not learned which images .* where 10 images or more"
    refused(said, vitkit.Predictor, tmp_path / "run", refuse=0.02)
    few = ["--splits.test-fraction", "0.05", "--splits.val-fraction", "0"]
    heard = cli(["train", "--data", str(photos), "--out", str(tmp_path / "few"), *TINY, *few]).err
    assert "that takes 10 test images" in heard
