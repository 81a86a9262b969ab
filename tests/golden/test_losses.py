"""The losses of each recipe's first twenty steps, which a change that keeps the computation keeps too.

The recipes are for large models and data sets: here each trains a tiny model of the same family, on small
pictures, in batches of eight, for twenty steps of which five warm up. Every other option is the recipe's own:
what is pinned is its optimiser, rate, form of the schedule, decay, clipping, dropout, augmentation, resizing,
objective and head. The recipes for two cores keep their models where these are small enough.
"""

import fcntl
import json
from pathlib import Path

import pytest
import torch
from _pytest.mark import ParameterSet

from tests.helpers.photos import picture, saved
from vitkit.cli.main import run
from vitkit.jobs.recipes import RECIPES

pytestmark = pytest.mark.usefixtures("without_report")

LOSSES = Path(__file__).parent / "losses.json"
"""The losses of every recipe, one to a line."""
STEPS = 20
TOLERANCE = 2e-4
"""The relative difference that is allowed in the first step, and as much again in each step after it.

Processors take sums in other orders, and Adam divides each gradient by its own size, so that the last bits of
small ones become visible. The oldest processor of scripts/test-processors makes 1.1e-3 in twenty steps.
"""
CONVOLUTIONS, THEIR_STEPS, THEIR_TOLERANCE = ("small-images-conv", "small-images-bit"), 12, 5e-4
"""In batches of eight a difference of these doubles with each step: 1e-4 in the fifth, at most 2e-3 in the
twelfth, 1e-1 in the twentieth, on three imitated processors."""

COLOURS = ((150, 90, 70), (120, 110, 80), (90, 100, 130))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty pictures of three classes, whose colours the noise almost hides."""
    root = tmp_path_factory.mktemp("losses")
    for number in range(60):
        path = root / "pictures" / "abc"[number % 3] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(COLOURS[number % 3], number).save(path)
    torch.manual_seed(0)
    saved("ViT-16x2x2/4", 5, root / "start")
    return root


def command(name: str, root: Path, out: Path) -> list[str]:
    """Give the command line of a recipe at this size."""
    options = RECIPES[name]()
    model = options.model
    size = ["--image-size", "16"]
    if not model:
        verb = ["finetune", str(root / "start"), "--data"]
    else:
        verb = ["train", "--data"] if options.task == "classification" else ["pretrain"]
        if model.startswith("BiT-"):
            size += ["--model", "BiT-R1-1x0.5"]
        elif model.startswith("R50+"):
            size += ["--model", "R1-1x0.5+ViT-16x1x2/8"]
        elif options.preprocessing.image_size[0] > 32:
            size += ["--model", "ViT-16x2x2/4"]
        else:
            size = []
    if options.task == "mae" and not name.endswith("small"):
        size += ["--decoder-width", "16", "--decoder-depth", "1", "--decoder-heads", "2"]
    length = ["--steps", str(STEPS), "--warmup-steps", "5", "--batch-size", "8", "--log-every", "1"]
    return [
        *(*verb, str(root / "pictures"), "--recipe", name, *size, *length),
        *("--device", "cpu", "--threads", "1", "--out", str(out)),
    ]


def losses(folder: Path) -> list[float]:
    """Read the loss of every step."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if line["kind"] == "train"]


def cases() -> list[ParameterSet]:
    """List the recipes; a row of a table that differs from one before in data and length alone is slow."""
    table = json.loads(LOSSES.read_text())
    numbers = {name: table.get(name, name) for name in RECIPES}
    first = [name for place, name in enumerate(numbers) if numbers[name] not in [*numbers.values()][:place]]
    return [pytest.param(name, marks=[] if name in first else [pytest.mark.slow]) for name in numbers]


def update(name: str, measured: list[float]) -> None:
    """Write a recipe's losses anew, though another process may write those of another."""
    with LOSSES.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        table = json.load(file) | {name: measured}
        lines = [
            f"{json.dumps(recipe)}: {json.dumps(table[recipe])}" for recipe in RECIPES if recipe in table
        ]
        file.seek(0)
        file.truncate()
        file.write("{\n" + ",\n".join(lines) + "\n}\n")


@pytest.mark.parametrize("name", cases())
def test_losses_of_the_first_steps(name: str, pictures: Path, tmp_path: Path, updating: bool) -> None:
    assert run(command(name, pictures, tmp_path / "run")) == 0
    measured = losses(tmp_path / "run")
    if updating:
        update(name, measured)
    expected = json.loads(LOSSES.read_text())[name]
    assert len(measured) == len(expected) == STEPS
    convolutions = name in CONVOLUTIONS
    compared = slice(THEIR_STEPS if convolutions else STEPS)
    for step, (loss, before) in enumerate(zip(measured[compared], expected[compared], strict=True), 1):
        tolerance = THEIR_TOLERANCE if convolutions else TOLERANCE
        assert loss == pytest.approx(before, rel=tolerance * step), step


def test_no_losses_are_those_of_a_recipe_that_has_gone() -> None:
    assert json.loads(LOSSES.read_text()).keys() == RECIPES.keys()
