"""`vitkit predict`: the classes of files, folders and lists, by a run folder or by two of its files."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import vitkit
from vitkit.cli.main import run
from vitkit.data.decode.image import decode
from vitkit.data.transforms import preprocess
from vitkit.weights.model_card import LossFunction, ModelCard, Task

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")


def test_two_files_are_enough_anywhere(
    trained: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("model.safetensors", "model.json"):
        shutil.copy(trained / name, tmp_path / name)
    assert run(["predict", "model.safetensors", str(photos / "sky" / "3.png")]) == 0
    assert "%" in capsys.readouterr().out
    assert run(["evaluate", "model.safetensors"]) == 1  # they do not say where the images are
    assert "does not say where its data is" in capsys.readouterr().err
    assert run(["evaluate", "model.safetensors", "--data", str(photos)]) == 0


def test_predict_takes_files_folders_and_lists(
    trained: Path, photos: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["predict", str(trained), str(photos / "red fruit"), "--json", "--top", "1"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 24
    assert {line["predictions"][0]["class"] for line in lines} <= {"red fruit", "sky"}
    monkeypatch.setattr("sys.stdin", iter([f"{photos / 'sky' / '3.png'}\n", "\n"]))
    assert run(["predict", str(trained), "-", "--json"]) == 0
    (line,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sum(guess["probability"] for guess in line["predictions"]) == pytest.approx(1, abs=1e-4)


def test_what_cannot_be_read_is_said_and_the_rest_is_predicted(
    trained: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [str(photos / "sky" / "page.jpg"), str(photos / "sky" / "3.png"), "nowhere.png"]
    assert run(["predict", str(trained), *paths, "--json"]) == 1
    captured = capsys.readouterr()
    lines = [json.loads(line) for line in captured.out.splitlines()]
    assert ["error" in line for line in lines] == [True, False, True, True]
    assert lines[-1]["exit_code"] == 1  # of the command, after those of its images
    assert "2 of 3 images could not be read; the others are above" in captured.err
    assert run(["predict", str(trained), "nowhere.png"]) == 1
    assert "1 of 1 images could not be read.\n" in capsys.readouterr().err


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_predictions_are_probabilities_by_the_loss_of_the_model(
    loss: LossFunction, photos: Path, tmp_path: Path
) -> None:
    model, path = vitkit.create_model("ViT-8x1x2/8", 3, 16), photos / "sky" / "3.png"
    torch.nn.init.normal_(model.get_parameter("head.weight"))
    model.card = ModelCard(class_names=("a", "b", "c"), task=Task(loss=loss))
    predictor = vitkit.Predictor(vitkit.save_model(model, tmp_path / "model"), device="cpu")
    guesses, rule = predictor(path, top=3), predictor.preprocessing
    pixels = torch.from_numpy(preprocess(decode(path, rule.decode), rule)).permute(2, 0, 1)
    with torch.no_grad():
        logits = model.eval()(pixels[None])[0]
    shares = logits.sigmoid() if loss == "sigmoid" else logits.softmax(0)
    expected = sorted(zip(shares.tolist(), "abc", strict=True), reverse=True)
    assert [guess.name for guess in guesses] == [name for _, name in expected]
    probabilities = [guess.probability for guess in guesses]
    assert probabilities == pytest.approx([share for share, _ in expected], abs=1e-6)
    assert (sum(probabilities) == pytest.approx(1)) == (loss == "softmax")
