"""The predictor takes ordinary things, and refuses the rest in words."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitkit
from tests.helpers.hostile import write_folder
from vitkit.errors import DecodeError, VitkitError


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path)
    monkeypatch.chdir(tmp_path)


def test_the_predictor_takes_ordinary_things() -> None:
    predictor = vitkit.Predictor("model")
    path = Path("images/a/0.png")
    with Image.open(path) as image:
        grey = np.asarray(image.convert("L"))
        pixels = np.asarray(image).copy()
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    expected = predictor(path)
    with path.open("rb") as file:
        things: list[Any] = [file, io.BytesIO(path.read_bytes()), bytearray(path.read_bytes()), tensor]
        assert all(predictor(thing) == expected for thing in things)
    batches: list[Any] = [
        [path, pixels],
        (path, tensor),
        np.stack([pixels, pixels]),
        tensor[None].repeat(2, 1, 1, 1),
    ]
    for batch in batches:
        probabilities = [guess.probability for guesses in predictor.many(batch) for guess in guesses]
        assert probabilities == pytest.approx([guess.probability for guess in expected] * 2, abs=1e-6)
    of_grey = predictor(np.repeat(grey[:, :, None], 3, 2))
    for thing in (grey, grey[:, :, None], torch.from_numpy(grey.copy()), torch.from_numpy(grey.copy())[None]):
        assert predictor(thing) == of_grey
    assert predictor.many([]) == []


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        (None, "found NoneType"),
        (7, "found int"),
        (np.zeros((4, 4)), r"float64"),
        (np.zeros((0, 4, 3), np.uint8), r"\(0, 4, 3\)"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), r"\(2, 3, 4, 4\)"),
        (torch.zeros(3, 4, 4), "float32"),
        (io.StringIO("x"), "mode 'rb'"),
        ("https://x.org/a.jpg", r"https://x\.org/a\.jpg is an address"),
        (Path("https://x.org/a.jpg"), r"https://x\.org/a\.jpg is an address"),
    ],
    ids=[
        "none",
        "number",
        "floats",
        "empty",
        "batch",
        "float-tensor",
        "text",
        "address",
        "path-of-address",
    ],
)
def test_the_predictor_refuses_the_rest_in_words(thing: Any, message: str) -> None:
    predictor = vitkit.Predictor("model")
    with pytest.raises(VitkitError, match=message):
        predictor(thing)


def test_the_predictor_names_the_file_and_what_is_several() -> None:
    predictor = vitkit.Predictor("model")
    with pytest.raises(DecodeError, match=r"nowhere\.png: no such file"):
        predictor("nowhere.png")
    with pytest.raises(DecodeError, match=r"text\.txt: "):
        predictor.many([Path("text.txt")])
    several: list[Any] = ["images/a/0.png", np.zeros((4, 4, 3), np.uint8), b"x"]
    for image in several:
        with pytest.raises(VitkitError, match="several images"):
            predictor.many(image)
    with pytest.raises(VitkitError, match="top is at least 1"):
        predictor("images/a/0.png", top=0)
    with pytest.raises(DecodeError, match="limit of 100"):
        vitkit.Predictor("model", max_pixels=100)("images/a/0.png")
    with pytest.raises(VitkitError, match="max_pixels is at least 1"):
        vitkit.Predictor("model", max_pixels=0)
