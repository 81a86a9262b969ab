"""Numbers and paths of every kind are refused in words, and never with a traceback."""

from pathlib import Path

import pytest
import torch

import vitkit
from tests.helpers.cli import Capture, Cli
from vitkit.cli.main import run

pytestmark = pytest.mark.usefixtures("inside")

NUMBERS = ["nan", "inf", "1e308", "-1", "0", "1" + "0" * 30, "", "x" * 300, "٣", "\0"]
PATHS = (
    *("", "\0", "p" * 5000, "images", "text.txt", "loop", "loop/x", "/dev/null", "~nobody_x/y"),
    "\udcff.png",
)
NUMERIC = {
    "predict model images/a/0.png": "--top --batch-size --max-pixels --num-heads --image-size",
    "evaluate model --data images": "--batch-size --workers --max-pixels --worker-timeout",
    "card model": "--num-heads --image-size",
    "convert model out": "--num-classes",
    "cost ViT-16x1x2/4 --images 1000": "--epochs --utilization --batch-size",
    "models ViT-Ti/16": "--image-size --num-classes",
    "data check images": "--splits.val-fraction --splits.seed --max-pixels",
}
NAMED = (
    *("", "predict model", "predict", "evaluate model --data", "evaluate", "inspect model --images", "card"),
    *("convert model", "cost", "models", "report", "data check", "train --out text.txt --data"),
    *("train --resume", "train --recipe", "train --model"),
)


def sane(arguments: list[str], capsys: Capture) -> None:
    code, (out, err) = run(arguments), capsys.readouterr()
    assert code == 0 or (code in (1, 2) and out + err), arguments
    assert "Traceback" not in err and "Exception" not in err, arguments


@pytest.mark.parametrize("command", NUMERIC)
def test_odd_numbers(command: str, capsys: Capture) -> None:
    for option in NUMERIC[command].split():
        for value in NUMBERS:
            sane([*command.split(), f"{option}={value}"], capsys)


@pytest.mark.parametrize("command", NAMED)
def test_odd_paths(command: str, capsys: Capture) -> None:
    for value in PATHS:
        sane([*command.split(), value, *(["images/a/0.png"] if command == "predict" else [])], capsys)


def test_weights_that_are_not_finite(tmp_path: Path, cli: Cli) -> None:
    model = vitkit.create_model("ViT-16x1x2/4", num_classes=2, image_size=(16, 16))
    with torch.no_grad():
        model.get_parameter("head.weight").fill_(float("inf"))
    vitkit.save_model(model, tmp_path / "broken")
    for options in ([], ["--json"]):
        captured = cli(["predict", "broken", "images", *options], 1)
        assert "not finite" in captured.err and captured.out.count("\n") == len(options)  # no answer
