"""`vitkit.Predictor` takes images and models in the forms in which programs have them."""

import base64
import io
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
from vitkit.errors import DecodeError, VitkitError
from vitkit.models.image_model import ImageModel
from vitkit.tasks.answering import Guess
from vitkit.weights.model_card import ModelCard

NAMES = ("ant", "bee", "cat")


def built() -> ImageModel:
    model = vitkit.create_model(
        "ViT-16x1x2/4", num_classes=3, image_size=8, generator=torch.Generator().manual_seed(0)
    )
    torch.nn.init.normal_(model.get_parameter("head.weight"), generator=torch.Generator().manual_seed(1))
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
    answers = list(answers)
    assert [[guess.name for guess in guesses] for guesses in answers] == [
        [guess.name for guess in guesses] for guesses in expected
    ]
    for guesses, other in zip(answers, expected, strict=True):
        assert np.allclose(
            [guess.probability for guess in guesses],
            [guess.probability for guess in other],
            rtol=0,
            atol=1e-6,
        )


def test_several_images_give_several_answers(
    predictor: vitkit.Predictor, images: NDArray[np.uint8], tmp_path: Path
) -> None:
    expected = [predictor(image) for image in images]
    assert len({str(answer) for answer in expected}) == 5
    (tmp_path / "one.png").write_bytes(png(images[0]))
    same(predictor([tmp_path / "one.png", images[1]]), expected[:2])
    same(predictor(tuple(images)), expected)
    same(predictor.many(images), expected)
    assert predictor([]) == []
    assert len(predictor([images[0]], top=1)[0]) == 1
    with pytest.raises(VitkitError, match=r"many\(\) takes several images"):
        predictor(images)


def test_a_generator_is_answered_while_it_runs(
    predictor: vitkit.Predictor, images: NDArray[np.uint8]
) -> None:
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
        with pytest.raises(VitkitError, match=r"many\(\) takes several images"):
            predictor.many(image)  # type: ignore[arg-type]
        with pytest.raises(VitkitError, match=r"stream\(\) takes several images"):
            predictor.stream(image)  # type: ignore[arg-type]
    with pytest.raises(VitkitError, match=r"give a generator to stream\(\)"):
        predictor.many(iter(images))  # type: ignore[arg-type]


def test_an_image_that_cannot_be_read_ends_a_stream_after_those_before_it(
    predictor: vitkit.Predictor, images: NDArray[np.uint8]
) -> None:
    answers = predictor.stream([images[0], b"no image", images[1]], batch_size=1)
    assert next(answers) == predictor(images[0])
    with pytest.raises(DecodeError):
        next(answers)
    with pytest.raises(VitkitError, match="batch_size is at least 1"):
        predictor.stream(images, batch_size=0)
    with pytest.raises(VitkitError, match="top is at least 1"):
        predictor.stream(images, top=0)


def test_floats_are_taken_where_it_is_said(predictor: vitkit.Predictor, images: NDArray[np.uint8]) -> None:
    units = images[0] / 255
    assert predictor(units, unit_range=True) == predictor(images[0])
    assert predictor(units.astype(np.float32), unit_range=True) == predictor(images[0])
    tensor = torch.from_numpy(units).permute(2, 0, 1)
    for form in (tensor, tensor.bfloat16(), tensor.float().requires_grad_()):
        assert [guess.name for guess in predictor(form, unit_range=True)] == [
            guess.name for guess in predictor(images[0])
        ]
    assert predictor(tensor, unit_range=True) == predictor(images[0])
    with pytest.raises(
        VitkitError, match=r"with unit_range=True of floats in 0\.\.1; found \(12, 9, 3\) of float64"
    ):
        predictor(units)
    with pytest.raises(VitkitError, match=r"floats from 0 to 1, found float64 from -1\.0 to"):
        predictor(np.where(units < 0.5, -1.0, units), unit_range=True)
    with pytest.raises(VitkitError, match="floats from 0 to 1, found uint8"):
        predictor(images[0], unit_range=True)


def test_channels_may_come_first_where_only_that_can_be_meant(
    predictor: vitkit.Predictor, images: NDArray[np.uint8]
) -> None:
    expected = predictor(images[0])
    assert predictor(images[0].transpose(2, 0, 1)) == expected
    assert predictor(torch.from_numpy(images[0])) == expected
    assert predictor.many(images.transpose(0, 3, 1, 2)) == predictor.many(images)
    both = images[0][:3, :, :]  # (3, 9, 3): arrays have their channels last, tensors first
    assert predictor(both) == predictor(png(both))
    assert predictor(torch.from_numpy(both)) == predictor(png(both.transpose(1, 2, 0)))
    grey = images[0][:, :, 0]
    assert predictor(grey[None]) == predictor(grey[:, :, None]) == predictor(grey)
    with pytest.raises(VitkitError, match=r"found \(12, 9, 2\)"):
        predictor(images[0][:, :, :2])


@pytest.mark.parametrize("scheme", ["data:image/png;base64,", "DATA:image/png;charset=x;BASE64,"])
def test_an_address_that_holds_its_image_is_read(
    predictor: vitkit.Predictor, images: NDArray[np.uint8], scheme: str
) -> None:
    address = scheme + base64.b64encode(png(images[0])).decode()
    assert predictor(address) == predictor(images[0])
    assert predictor(address.replace("+", "%2B")) == predictor(images[0])


@pytest.mark.parametrize("address", ["data:image/png;base64,!!", "data:image/png", "data:,", "data:,text"])
def test_an_address_that_holds_none_is_refused(predictor: vitkit.Predictor, address: str) -> None:
    with pytest.raises(DecodeError):
        predictor(address)


def test_a_model_that_is_built_predicts_as_it_stands(images: NDArray[np.uint8], tmp_path: Path) -> None:
    model = built().train()
    unnamed = vitkit.Predictor(model)(images[0], top=3)
    assert model.training and [guess.name for guess in unnamed] != [*NAMES]
    assert {guess.name for guess in unnamed} == {"class 0", "class 1", "class 2"}
    model.card = ModelCard(class_names=NAMES)
    named = vitkit.Predictor(model)(images[0], top=3)
    saved = vitkit.Predictor(vitkit.save_model(model, tmp_path / "model"))(images[0], top=3)
    assert [guess.name for guess in named] == [guess.name for guess in saved]
    assert np.allclose(
        [guess.probability for guess in named], [guess.probability for guess in saved], atol=1e-5
    )
    with torch.no_grad():
        model.get_parameter("head.weight").neg_()
    assert vitkit.Predictor(model)(images[0])[0].name != named[0].name


def test_class_names_that_are_given_take_the_place_of_others(
    images: NDArray[np.uint8], tmp_path: Path
) -> None:
    model = built()
    model.card = ModelCard(class_names=("x", "y", "z"))
    folder = vitkit.save_model(model, tmp_path / "model")
    expected = vitkit.Predictor(model, class_names=NAMES)(images[0])
    guesses = vitkit.Predictor(folder, class_names=list(NAMES))(images[0])
    assert [guess.name for guess in guesses] == [guess.name for guess in expected]
    assert model.card.class_names == ("x", "y", "z")
    with pytest.raises(VitkitError, match="names of 3 classes, found 2"):
        vitkit.Predictor(model, class_names=("a", "b"))


@pytest.mark.parametrize("options", [{"engine": "openvino"}, {"image_size": 16}, {"exact": True}])
def test_options_of_reading_a_model_are_refused_for_one_that_is_built(options: dict[str, Any]) -> None:
    with pytest.raises(VitkitError, match=f"{next(iter(options))} is for a model that is read from a path"):
        vitkit.Predictor(built(), **options)
    with pytest.raises(VitkitError, match="Expected a path or a model of vitkit, found Linear"):
        vitkit.Predictor(torch.nn.Linear(1, 1))  # type: ignore[arg-type]
