"""Predictions: by the verb, of files, folders and lists; by `vitkit.Predictor`, of images in any form."""

import base64
import io
import json
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import vitkit
from tests.helpers.cli import Cli
from tests.helpers.refusals import refused, undecodable
from vitkit.errors import DecodeError, VitkitError
from vitkit.models.image_model import ImageModel
from vitkit.tasks.answering import Guess
from vitkit.weights.model_card import ModelCard

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")


def test_predict_takes_files_folders_and_lists(
    trained: Path, photos: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = cli(["predict", str(trained), str(photos / "red fruit"), "--json", "--top", "1"]).out
    lines = [json.loads(line) for line in printed.splitlines()]
    assert len(lines) == 24
    assert {line["predictions"][0]["class"] for line in lines} <= {"red fruit", "sky"}
    monkeypatch.setattr("sys.stdin", iter([f"{photos / 'sky' / '3.png'}\n", "\n"]))
    (line,) = [json.loads(line) for line in cli(["predict", str(trained), "-", "--json"]).out.splitlines()]
    assert sum(guess["probability"] for guess in line["predictions"]) == pytest.approx(1, abs=1e-4)


def test_what_cannot_be_read_is_said_and_the_rest_is_predicted(trained: Path, photos: Path, cli: Cli) -> None:
    paths = [str(photos / "sky" / "page.jpg"), str(photos / "sky" / "3.png"), "nowhere.png"]
    captured = cli(["predict", str(trained), *paths, "--json"], 1)
    lines = [json.loads(line) for line in captured.out.splitlines()]
    assert ["error" in line for line in lines] == [True, False, True, True]
    assert lines[-1]["exit_code"] == 1  # of the command, after those of its images
    assert "2 of 3 images could not be read; the others are above" in captured.err


NAMES = ("ant", "bee", "cat")


def built() -> ImageModel:
    torch.manual_seed(0)
    model = vitkit.create_model("ViT-16x1x2/4", num_classes=3, image_size=8)
    torch.nn.init.normal_(model.get_parameter("head.weight"))
    return model


@pytest.fixture
def predictor() -> vitkit.Predictor:
    return vitkit.Predictor(built(), class_names=NAMES)


@pytest.fixture(scope="module")
def images() -> NDArray[np.uint8]:
    return np.random.RandomState(0).randint(0, 256, (5, 12, 9, 3)).astype(np.uint8)


def png(image: NDArray[np.uint8]) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "PNG")
    return stream.getvalue()


def same(answers: Iterable[list[Guess]], expected: Sequence[list[Guess]]) -> None:
    """Compare answers; images that are computed together are rounded otherwise than alone."""
    for guesses, other in zip(answers, expected, strict=True):
        assert [guess.name for guess in guesses] == [guess.name for guess in other]
        shares = [guess.probability for guess in other]
        assert [guess.probability for guess in guesses] == pytest.approx(shares, rel=0, abs=1e-6)


def test_an_image_has_any_form(
    predictor: vitkit.Predictor, images: NDArray[np.uint8], tmp_path: Path
) -> None:
    image, path = images[0], tmp_path / "one.png"
    expected, grey = predictor(image), image[:, :, 0]
    probabilities = [guess.probability for guess in expected]
    assert probabilities == sorted(probabilities, reverse=True)
    path.write_bytes(png(image))
    tensor, units = torch.from_numpy(image).permute(2, 0, 1), image / 255
    text = base64.b64encode(png(image)).decode()
    address = f"data:image/png;base64,{text}"
    other = f"DATA:image/png;charset=x;BASE64,{text.replace('+', '%2B')}"
    opened = Image.open(path)
    with path.open("rb") as file:
        forms: list[Any] = [path, str(path), png(image), bytearray(png(image)), io.BytesIO(png(image)), file]
        forms += [opened, tensor, torch.from_numpy(image), image.transpose(2, 0, 1), address, other]
        assert all(predictor(form) == expected for form in forms)
    for form in (grey, grey[None], grey[:, :, None], torch.from_numpy(grey.copy())):
        assert predictor(form) == predictor(np.repeat(grey[:, :, None], 3, 2))
    both = image[:3, :, :]  # (3, 9, 3): arrays have their channels last, tensors first
    assert predictor(both) == predictor(png(both))
    assert predictor(torch.from_numpy(both)) == predictor(png(both.transpose(1, 2, 0)))
    fractions = torch.from_numpy(units).permute(2, 0, 1)
    for form in (units, units.astype(np.float32), fractions):
        assert predictor(form, unit_range=True) == expected
    for form in (fractions.bfloat16(), fractions.float().requires_grad_()):
        answered = predictor(form, unit_range=True)
        assert [guess.name for guess in answered] == [guess.name for guess in expected]


def test_several_images_have_answers(
    predictor: vitkit.Predictor, images: NDArray[np.uint8], tmp_path: Path
) -> None:
    expected = [predictor(image) for image in images]
    assert len({str(answer) for answer in expected}) == 5
    (tmp_path / "one.png").write_bytes(png(images[0]))
    same(predictor([tmp_path / "one.png", images[1]]), expected[:2])
    same(predictor(tuple(images)), expected)
    for form in (images, images.transpose(0, 3, 1, 2), torch.from_numpy(images).permute(0, 3, 1, 2)):
        same(predictor.many(form), expected)
    assert predictor([]) == predictor.many([]) == []
    assert len(predictor([images[0]], top=1)[0]) == 1


def test_a_generator_is_answered_as_it_runs(predictor: vitkit.Predictor, images: NDArray[np.uint8]) -> None:
    drawn, threads = list[int](), set[str]()

    def endless() -> Iterator[NDArray[np.uint8]]:
        while True:
            threads.add(threading.current_thread().name)
            drawn.append(len(drawn))
            yield images[len(drawn) % 5]

    answers = predictor.stream(endless(), batch_size=2)
    assert drawn == []  # nothing is asked for before an answer is
    same([next(answers), next(answers)], [predictor(images[1]), predictor(images[2])])
    assert len(drawn) == 4  # the batch that is computed, and the next one
    assert threads == {threading.current_thread().name}
    same(predictor(image for image in images), predictor.many(images))


def test_one_image_in_place_of_several_is_refused(
    predictor: vitkit.Predictor, images: NDArray[np.uint8], tmp_path: Path
) -> None:
    drawn = Image.fromarray(images[0])
    for image in (images[0], torch.from_numpy(images[0]), drawn, png(images[0]), "a.png", tmp_path):
        refused(r"many\(\) takes several images", predictor.many, image)
        refused(r"stream\(\) takes several images", predictor.stream, image)
    refused(r"give a generator to stream\(\)", predictor.many, iter(images))


def test_an_image_that_cannot_be_read_ends_a_stream_after_those_before_it(
    predictor: vitkit.Predictor, images: NDArray[np.uint8]
) -> None:
    answers = predictor.stream([images[0], b"no image", images[1]], batch_size=1)
    assert next(answers) == predictor(images[0])
    undecodable("not an image", next, answers)
    refused("batch_size is at least 1", predictor.stream, images, batch_size=0)
    refused("top is at least 1", predictor.stream, images, top=0)


ADDRESS = "https://x.org/a.jpg"
REFUSED: list[tuple[Any, str]] = [
    *((None, "found NoneType"), (7, "found int"), (torch.zeros(3, 4, 4), "float32")),
    (np.zeros((0, 4, 3), np.uint8), r"\(0, 4, 3\)"),
    (np.zeros((12, 9, 2), np.uint8), r"found \(12, 9, 2\)"),
    (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), r"\(2, 3, 4, 4\)"),
    (np.zeros((12, 9, 3)), r"with unit_range=True of floats in 0\.\.1; found \(12, 9, 3\) of float64"),
    (np.zeros((5, 12, 9, 3), np.uint8), r"many\(\) takes several images"),
    (io.StringIO("x"), "mode 'rb'"),
    *((form, rf"{ADDRESS} is an address") for form in (ADDRESS, Path(ADDRESS))),
    *((f"data:{rest}", ".") for rest in ("image/png;base64,!!", "image/png", ",", ",text")),
    ("nowhere.png", r"nowhere\.png: no such file"),
]


def test_the_rest_is_refused(predictor: vitkit.Predictor, images: NDArray[np.uint8]) -> None:
    for thing, message in REFUSED:
        with pytest.raises((VitkitError, DecodeError), match=message):
            predictor(thing)
    units = images[0] / 255
    for form, kind in ((np.where(units < 0.5, -1.0, units), r"float64 from -1\.0 to"), (images[0], "uint8")):
        refused(f"floats from 0 to 1, found {kind}", predictor, form, unit_range=True)
    refused("top is at least 1", predictor, images[0], top=0)
    undecodable("limit of 100", vitkit.Predictor(built(), max_pixels=100), png(images[0]))
    refused("max_pixels is at least 1", vitkit.Predictor, built(), max_pixels=0)


def test_a_model_that_is_built_predicts_as_it_stands(images: NDArray[np.uint8], tmp_path: Path) -> None:
    """Class names that are given take the place of others."""
    model = built().train()
    unnamed = vitkit.Predictor(model)(images[0], top=3)
    assert model.training and {guess.name for guess in unnamed} == {"class 0", "class 1", "class 2"}
    model.card = ModelCard(class_names=("x", "y", "z"))
    folder = vitkit.save_model(model, tmp_path / "model")
    named = vitkit.Predictor(model, class_names=NAMES)(images[0], top=3)
    assert [NAMES.index(guess.name) for guess in named] == [int(guess.name[-1]) for guess in unnamed]
    same([vitkit.Predictor(folder, class_names=list(NAMES))(images[0], top=3)], [named])
    own = vitkit.Predictor(folder)(images[0], top=3)
    assert ["xyz".index(guess.name) for guess in own] == [NAMES.index(guess.name) for guess in named]
    assert model.card.class_names == ("x", "y", "z")
    refused("names of 3 classes, found 2", vitkit.Predictor, model, class_names=("a", "b"))
    with torch.no_grad():
        model.get_parameter("head.weight").neg_()
    assert vitkit.Predictor(model)(images[0])[0].name != own[0].name


def test_options_of_reading_a_model_are_refused_for_one_that_is_built() -> None:
    cases: tuple[dict[str, Any], ...] = ({"engine": "openvino"}, {"image_size": 16}, {"exact": True})
    for options in cases:
        said = f"{next(iter(options))} is for a model that is read from a path"
        refused(said, vitkit.Predictor, built(), **options)
    refused("Expected a path or a model of vitkit, found Linear", vitkit.Predictor, torch.nn.Linear(1, 1))
