"""`vitkit evaluate`: on which images, by which classes, precision and size a model is evaluated."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitkit
from tests.helpers.cli import Cli
from tests.helpers.photos import TINY, noise_image, picture, saved
from tests.helpers.refusals import refused
from tests.jobs.hearing import Hearing
from vitkit.cli.main import run
from vitkit.models.config import Precision

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")

PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16")


def test_evaluate_needs_the_run_alone(trained: Path, photos: Path, tmp_path: Path, cli: Cli) -> None:
    """And its training data, given by its path, is the run's own."""
    numbers = json.loads(cli(["evaluate", str(trained), "--split", "train", "--json"]).out)
    recorded = json.loads((trained / "evaluation" / "train.json").read_text())
    assert numbers["count"] == recorded["count"] and numbers["split"] == "train"
    counts = json.loads((trained / "data.json").read_text())["counts"]["train"]
    assert numbers["count"] + numbers["bad"] == sum(counts.values())
    model = shutil.copytree(trained, tmp_path / "run")
    (model / "evaluation" / "test.json").unlink()
    assert run(["evaluate", str(model), "--data", str(photos)]) == 0
    again = (model / "evaluation" / "test.json").read_bytes()
    assert again == (trained / "evaluation" / "test.json").read_bytes()
    assert not [path for path in (model / "evaluation").iterdir() if path.is_dir()]
    refused("no readable image", vitkit.evaluate, model, max_pixels=1)
    # Numbers by another limit, or of another size, are none of the run's.
    for options in (["--max-pixels", "1000000"], ["--image-size", "24"]):
        assert "Kept in" not in cli(["evaluate", str(model), *options]).out
        assert (model / "evaluation" / "test.json").read_bytes() == again


def test_the_precision_given_is_computed(trained: Path, photos: Path, cli: Cli) -> None:
    exact, rounded = (vitkit.evaluate(trained, precision=name) for name in PRECISIONS)
    assert (vitkit.evaluate(trained).predictions.logits == exact.predictions.logits).all()  # on a CPU
    assert (exact.predictions.logits != rounded.predictions.logits).any()
    np.testing.assert_allclose(exact.predictions.logits, rounded.predictions.logits, rtol=0, atol=0.1)
    # An image that is predicted is one that is evaluated: the same pixels, the same logits.
    predictor, samples = vitkit.Predictor(trained), exact.data.splits[exact.split]
    for row, index in enumerate(exact.predictions.ids[:5].tolist()):
        best = predictor(samples.file(index), top=1)[0]
        assert best.name == exact.data.class_names[exact.predictions.predicted[row]]
        logits = torch.from_numpy(exact.predictions.logits[row])
        assert best.probability == pytest.approx(logits.softmax(0).max().item(), abs=1e-5)
    image = photos / "sky" / "3.png"
    guesses = [vitkit.Predictor(trained, precision=name)(image)[0] for name in PRECISIONS]
    assert guesses[0].name == guesses[1].name and guesses[0].probability != guesses[1].probability
    assert predictor(image)[0] == guesses[0]
    line = ["predict", str(trained), str(image), "--json", "--precision", "bfloat16"]
    assert json.loads(cli(line).out)["predictions"][0]["probability"] != guesses[0].probability


def test_numbers_on_other_images_are_kept_beside_the_runs_own(
    trained: Path, tmp_path: Path, cli: Cli
) -> None:
    """Each data set has a folder of its own, also of the same name, and the run's own numbers stay."""
    model, new, namesake = (tmp_path / name for name in ("run", "new", "elsewhere/new"))
    shutil.copytree(trained, model)
    own = {path.name: path.read_bytes() for path in (model / "evaluation").iterdir()}
    for folder, names in ((new, ("sky", "red fruit")), (namesake, ("red fruit",))):
        for i, name in enumerate(names * 3):
            (folder / name).mkdir(parents=True, exist_ok=True)
            picture((60, 90, 220) if i else (90, 200, 90), 100 + i).save(folder / name / f"{i}.png")
    for data, count, name in (("new", 6, "new"), (str(namesake), 3, "new-2"), (f"{new}/", 6, "new")):
        numbers = json.loads(cli(["evaluate", str(model), "--data", data, "--json"]).out)
        place = model / "evaluation" / name
        assert (numbers["count"], numbers["data"], numbers["split"]) == (count, "new", "all")
        assert numbers["kept_in"] == str(place) and numbers["page"] == str(place / "all.html")
        assert json.loads((place / "all.json").read_text()).items() <= numbers.items()
        assert len(np.load(place / "all.logits.npy")) == count
        mistakes = json.loads((place / "all.mistakes.json").read_text())
        assert len(mistakes) == count - numbers["correct"] > 0
        for mistake in mistakes:
            (answer,) = mistake["predictions"]
            assert answer["class"] != mistake["image"].split("/")[0] and answer["probability"] > 0.5
    place = model / "evaluation" / "new"
    assert {path.name for path in (model / "evaluation").iterdir()} == {*own, "new", "new-2"}
    assert all((model / "evaluation" / name).read_bytes() == content for name, content in own.items())
    assert not [path for path in place.iterdir() if str(tmp_path).encode() in path.read_bytes()]
    page = (place / "all.html").read_text()
    assert "run on images of new" in page and page.count("<img") == 3
    assert 'href="evaluation/new-2/all.html"' in vitkit.write_report(model).read_text()
    assert run(["evaluate", str(model), "--out", str(tmp_path / "page.html")]) == 0  # of its own images
    assert "test images of" in (tmp_path / "page.html").read_text()
    (new / "sky").rename(new / "sea")
    assert "sea" in cli(["evaluate", str(model), "--data", "new"], 1).err


@pytest.mark.parametrize(
    ("num_classes", "pool", "message"), [(0, "mean", "has no head"), (2, "none", "no prediction")]
)
def test_a_model_that_names_no_classes(
    num_classes: int, pool: str, message: str, photos: Path, cli: Cli
) -> None:
    model = saved("ViT-16x1x2/4", num_classes, Path("features"), pool=pool)
    refused(message, vitkit.Predictor, model)
    assert message in cli(["evaluate", model, "--data", str(photos)], 1).err
    said = cli(["card", model]).out
    assert "vitkit predict" not in said and ("no head" in said) == (num_classes == 0)


def test_unnamed_outputs_have_an_order(photos: Path, tmp_path: Path, cli: Cli) -> None:
    two, three = (saved("ViT-16x1x2/4", count, tmp_path / str(count)) for count in (2, 3))
    captured = cli(["evaluate", two, "--data", str(photos)])
    assert "no class names" in captured.err and "alphabetical order: red fruit, sky." in captured.err
    assert f"on 48 images of {photos.name}" in captured.out
    for arguments, said in (([three], "3 outputs and no class names"), ([two, "--split", "test"], "--split")):
        assert said in cli(["evaluate", *arguments, "--data", str(photos)], 1).err


def test_another_size_and_heads_that_the_file_does_not_say(
    trained: Path, photos: Path, tmp_path: Path, cli: Cli
) -> None:
    image = str(photos / "sky" / "3.png")
    assert run(["predict", str(trained), "--image-size", "24", image]) == 0
    assert run(["inspect", str(trained), "--image-size", "24", "--out", "larger"]) == 0
    assert "24 x 24" in (tmp_path / "larger" / "attention-distance.svg").read_text()
    predictor = vitkit.Predictor(trained, image_size=24)
    assert predictor.preprocessing.image_size == predictor.model.config.image_size == (24, 24)
    model = vitkit.create_model("ViT-12x1x3/4", 2, 16)
    file = str(vitkit.save_model(model, tmp_path / "model.npz", format="official"))
    verbs = (["predict", file, image], ["evaluate", file, "--data", str(photos)])
    for arguments in (*verbs, ["inspect", file], ["card", file], ["cost", file]):
        assert "5" in cli([*arguments, "--num-heads", "5"], 1).err


def test_runs_without_splits_say_so(photos: Path, tmp_path: Path, cli: Cli) -> None:
    whole = ["--splits.val-fraction", "0", "--splits.test-fraction", "0", "--steps", "1"]
    cli(["train", "--data", str(photos), "--out", "run", *TINY, *whole])
    assert "trained on all of it" in cli(["evaluate", "run"], 1).err
    assert "train images of" in cli(["evaluate", "run", "--split", "train"]).out


def test_training_images_among_the_test_images_are_counted_where_they_are_at_hand(tmp_path: Path) -> None:
    """Three of the eight test images of each class are training images too."""
    for number, label in enumerate("ab"):
        for i in range(20):
            noise_image(tmp_path / "data" / "train" / label / f"{i}.png", i + 1000 * number)
        for i in range(8):
            seed = (i if i < 3 else 500 + i) + 1000 * number
            noise_image(tmp_path / "data" / "test" / label / f"{i}.png", seed)
        noise_image(tmp_path / "other" / label / "0.png", 2000 + number)
    heard = Hearing()
    options: dict[str, Any] = {"model": "ViT-8x1x2/4", "image_size": 8, "steps": 2, "batch_size": 8}
    folder = vitkit.train(tmp_path / "data", tmp_path / "run", **options, listener=heard)
    assert "6 images of test are in train too, pixel for pixel" in str(heard.warnings)
    assert "6 of these images are training images too" in (folder / "report.html").read_text()
    evaluated = vitkit.evaluate(folder)
    repeated = np.isin(evaluated.predictions.ids, [0, 1, 2, 8, 9, 10])
    right = evaluated.predictions.predicted == evaluated.predictions.labels
    assert evaluated.result.repeated.count == 6 and evaluated.result.accuracy == right.mean()
    assert evaluated.result.repeated.accuracy_without == right[~repeated].mean()
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    evaluated = vitkit.evaluate(folder, data=str(tmp_path / "other"), listener=heard)
    assert evaluated.result.repeated is None
    assert "training images are not where they were" in str(heard.notes)
