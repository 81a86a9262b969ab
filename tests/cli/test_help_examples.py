"""Every command that a help page shows, and every example of a docstring, runs on data of the kind it names.

Options that shorten a command are added behind it: the words of the example stay as they are.
"""

import doctest
import re
import shlex
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import vitkit
from tests.helpers.photos import picture
from tests.vtab_layout import small_task
from vitkit.cli.help import PAGES
from vitkit.cli.main import EXAMPLES, run
from vitkit.weights.model_card import ModelCard

pytestmark = pytest.mark.usefixtures("without_report")

SOURCE = Path(vitkit.__file__).parent
CLASSES = {"red fruit": (200, 60, 60), "sky": (60, 90, 220)}
SMALL = ["--model", "ViT-16x1x1/8", "--image-size", "16", "--warmup-steps", "0", "--batch-size", "8"]
TINY = [*SMALL, "--steps", "1"]
FRONT = [re.split(r"\s{2,}", line.strip())[0] for line in EXAMPLES.splitlines()[1:]]
COMMANDS = sorted({*FRONT, *(line for verb, page in PAGES.items() for line in page.examples(verb))})
SHORTER = {
    "ablate": ["--plan"],
    "advise": ["--seconds", "0.5"],
    "bench": ["--minutes", "0.02", "--batch-size", "1"],
    "finetune": ["--dry-run", "--yes"],
    "pretrain my_photos/ --minutes": [*SMALL, "--dry-run"],
    "pretrain my_photos/ --then": [*TINY, "--draws", "2", "--tune-steps", "1"],
    "reproduce": ["--plan"],
    "scale": ["--plan"],
    "scale my_photos/": ["--model", "ViT-64x2x1/16", "--image-size", "32"],
    "train": TINY,
    "vtab": ["--steps", "1", "--batch-size", "8"],
}
"""The options that are added behind commands that begin so."""
NEEDS = {"onnxruntime": "onnxruntime", "int8": "openvino"}
"""Packages that a word of an example needs, which may not be installed."""
QUICK = (
    *("card", "convert", "cost", "data check", "embed", "evaluate"),
    *("models", "predict", "recipes", "runs", "starts"),
)
"""Verbs whose examples are run every time; the others train, time or draw: they are slow tests."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, without_report: None) -> Iterator[Path]:
    """Stand in a folder that has what the examples name: runs, photos, published weights, a table."""
    root = tmp_path_factory.mktemp("examples")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.setenv("VITKIT_CACHE", str(root / "cache"))
        write_images()
        make_runs()
        yield root


def write_images() -> None:
    """Write photos of two classes, single ones, a table of labels, and two tasks of VTAB."""
    for number, folder in enumerate(("my_photos", "new_photos", "photos", "labelled")):
        for name, colour in CLASSES.items():
            Path(folder, name).mkdir(parents=True)
            for image in range(20):
                picture(colour, 1000 * number + 100 * len(name) + image).resize((160, 160)).save(
                    f"{folder}/{name}/{image}.png"
                )
    shutil.copytree("my_photos/sky", "holiday")
    for name in ("photo.jpg", "holiday.jpg", "scan.png", "one.png", "two.png"):
        picture((90, 160, 60), len(name)).save(name)
    rows = [f"my_photos/sky/{number}.png,{'blue;day' if number % 2 else 'blue'}\n" for number in range(20)]
    Path("labels.csv").write_text("path,labels\n" + "".join(rows))
    for task in ("dtd", "svhn"):
        small_task(Path("vtab", task), classes=2)


def make_runs() -> None:
    """Train a run on digits, one on photos and a series, and save what stands for published weights."""
    assert run(["train", "--recipe", "digits", "--out", "runs/digits", *TINY]) == 0
    assert run(["train", "--data", "my_photos", "--out", "runs/my_photos", *TINY]) == 0
    for copy in ("digits-seed0", "digits-seed1", "a", "b"):
        shutil.copytree("runs/digits", f"runs/{copy}")
    for copy in ("photos", "mine", "start"):
        shutil.copytree("runs/my_photos", f"runs/{copy}")
    shutil.copytree("runs/digits", "my_runs/digits")
    for name in ("vit-ti16-augreg-in21k", "vit-s16-augreg-in21k", "vit-b16-augreg-in21k"):
        model = vitkit.create_model("ViT-16x1x1/8", 3, 16)
        model.card = ModelCard("ViT-16x1x1/8")
        vitkit.save_model(model, f"cache/starts/{name}")
    frozen = ["finetune", "vit-ti16-augreg-in21k", "my_photos", "--freeze", "backbone"]
    assert run([*frozen, "--out", "runs/frozen"]) == 0
    assert run(["convert", "cache/starts/vit-ti16-augreg-in21k", "ViT-B_16.npz", "--to", "official"]) == 0


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(line, marks=[] if line.removeprefix("vitkit ").startswith(QUICK) else [pytest.mark.slow])
        for line in COMMANDS
    ],
)
def test_a_command_of_the_help_runs(example: str, world: Path) -> None:
    for word, package in NEEDS.items():
        if word in example:
            pytest.importorskip(package)
    program, *arguments = shlex.split(example.split(" > ")[0], comments=True)
    if arguments[-2:] == ["--out", "runs/my_photos"]:  # which the examples that follow evaluate
        arguments[-1] = "runs/new"
    line = shlex.join(arguments)
    asks = line.endswith("--help") or line == "reproduce"
    added = [] if asks else [word for begin in SHORTER if line.startswith(begin) for word in SHORTER[begin]]
    if arguments[-1] == "runs/my_photos-runs":
        series = ["--data", "my_photos", "--out", arguments[-1], "--runs", "2"]
        assert run(["train", *series, *TINY]) == 0
    assert program == "vitkit"
    assert run([*arguments, *(word for word in added if word not in arguments)]) == 0


def test_the_examples_of_docstrings_run(world: Path) -> None:
    parser, count = doctest.DocTestParser(), 0
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        images = [np.full((16, 16, 3), 40 * number, np.uint8) for number in range(6)]
        names = {
            "vitkit": vitkit,
            "model": vitkit.create_model("ViT-16x1x1/8", 2, 16),
            "images": np.stack(images),
            "labels": ["dark"] * 3 + ["light"] * 3,
            "others": np.stack(images),
            "run": vitkit.recipe("digits", model="ViT-16x1x1/8", steps=1, warmup_steps=0),
        }
        for example in parser.get_examples(text) if ">>>" in text else ():
            if "tensorboard" in example.source and find_spec("tensorboard") is None:
                continue
            exec(compile(example.source, f"{path.name}:{example.lineno + 1}", "single"), names)
            count += 1
    assert count > 5
