"""An exported folder is read and asked where there is no PyTorch, and answers as where there is."""

import json
from pathlib import Path

import vitkit
from tests.engines.models import exported as exported
from tests.helpers.without_torch import run_without_torch


def test_predictions_are_the_same(exported: Path, tmp_path: Path) -> None:
    """From the image file to the line of JSON, by `vitkit predict`."""
    image = tmp_path / "image.png"
    arguments = ("-m", "vitkit", "predict", str(exported), str(image), "--json")
    predicted = run_without_torch(tmp_path, *arguments, packages=tmp_path / "packages")
    guesses = vitkit.Predictor(exported)(image)
    expected = [{"class": guess.name, "probability": round(guess.probability, 6)} for guess in guesses]
    assert json.loads(predicted)["predictions"] == expected
    assert len({guess.probability for guess in guesses}) == 5


def test_arrays_and_opened_images_are_predicted_and_a_checkpoint_needs_torch(
    exported: Path, tmp_path: Path
) -> None:
    code = (
        "import sys, numpy, vitkit; from PIL import Image\n"
        "p = vitkit.Predictor(sys.argv[1]); image = Image.open(sys.argv[2])\n"
        "print([g.name for g in p(image)] == [g.name for g in p(numpy.asarray(image))])\n"
        "try: vitkit.Predictor(sys.argv[3])\nexcept ImportError as error: print(error)"
    )
    given = [str(path) for path in (exported, tmp_path / "image.png", tmp_path / "model")]
    printed = run_without_torch(tmp_path, "-c", code, *given, packages=tmp_path / "packages")
    assert printed.splitlines() == ["True", "no torch here"]
