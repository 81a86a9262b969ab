"""A request is planned once: nothing that it needs is listed, opened, built or read again."""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vitkit import load_model, save_model
from vitkit.cli.main import run as command
from vitkit.data import sources
from vitkit.data.layouts import repeats
from vitkit.models.config import ViTConfig
from vitkit.models.vit import ViT
from vitkit.training import checkpoint
from vitkit.training.trainer import Trainer
from vitkit.weights import loading
from vitkit.weights.formats import native

DEPTH = 3
"""Layers of the model of these tests."""
pytestmark = pytest.mark.usefixtures("without_report")

MODEL = ["--model", "ViT-16x3x2/2", "--image-size", "8", "--resize", "crop"]
TINY = ["--data", "digits", "--batch-size", "16", "--warmup-steps", "0", "--threads", "1"]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory, without_report: None) -> Path:
    """A finished run of one step on the digits."""
    folder = tmp_path_factory.mktemp("plan") / "start"
    assert command(["train", *TINY, *MODEL, "--steps", "1", "--out", str(folder)]) == 0
    return folder


class Counts:
    """The number of times that each thing was done, by what was done and to what."""

    def __init__(self) -> None:
        self.of: Counter[tuple[str, str]] = Counter()

    def __getitem__(self, what: str) -> int:
        """Return how often it was done to any one thing at most."""
        return max((count for (done, _), count in self.of.items() if done == what), default=0)

    def total(self, what: str) -> int:
        return sum(count for (done, _), count in self.of.items() if done == what)

    def note(self, what: str, where: object = "") -> None:
        self.of[what, str(where)] += 1


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counts:
    """Count what this process does, at the places through which everything passes."""
    counted = Counts()

    def wrap(owner: Any, name: str, what: str, where: Callable[..., object]) -> None:
        original = getattr(owner, name)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            counted.note(what, where(*args, **kwargs))
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, wrapper)

    wrap(sources, "_list", "list", lambda spec, *rest, **more: spec)
    wrap(repeats, "find_repeats", "search", lambda parts, decoded: "")
    wrap(loading, "open_source", "open", lambda path: Path(path).resolve())
    wrap(loading.OpenCheckpoint, "read", "read", lambda opened: opened.files[0].resolve())
    wrap(checkpoint, "load_weights", "read", lambda folder: folder.resolve())
    wrap(ViT, "__init__", "build", lambda model, config, *rest, **more: _part_or_whole(config))
    wrap(native, "verify", "hash", lambda path, expected: path.resolve())
    wrap(sources, "decode", "decode", lambda file, rule: file if isinstance(file, Path) else "")
    wrap(ViT, "init_weights", "draw", lambda model, *rest: "")
    return counted


def _part_or_whole(config: ViTConfig) -> str:
    """Name what is built: costs are measured on models of fewer layers."""
    return "whole" if config.depth == DEPTH else f"{config.depth} layers"


def require_once(counts: Counts, models: int) -> None:
    """Hold a request against what it may do: nothing twice, and so many models of a checkpoint or run."""
    assert max(counts[what] for what in ("list", "open", "hash", "read")) <= 1, counts.of
    assert counts.total("search") <= 1, counts.of
    # Parameters are counted on one more, which has no memory and is kept.
    assert counts.of["build", "whole"] - 1 <= models, counts.of


SHORT = ["--data", "digits", "--batch-size", "16", "--threads", "1"]
COMMANDS: dict[str, tuple[list[str], int]] = {
    "train": (["train", *TINY, *MODEL, "--steps", "2", "--layer-decay", "0.8", "--out", "OUT"], 2),
    "for minutes": (["train", *TINY, *MODEL, "--minutes", "0.01", "--measure-pixels", "--out", "OUT"], 2),
    "finetune": (["finetune", "START", *SHORT, "--steps", "2", "--out", "OUT"], 2),
    # The steps that are timed for a budget of minutes are those of another model.
    "finetune for minutes": (["finetune", "START", *SHORT, "--minutes", "0.01", "--out", "OUT"], 3),
    "another library": (["finetune", "LIBRARY", *SHORT, "--steps", "2", "--out", "OUT"], 2),
    "evaluate": (["evaluate", "START"], 2),
    "predict": (["predict", "START", "IMAGE"], 2),
    # The converted checkpoint is read back and compared, with another model.
    "convert": (["convert", "START", "OUT", "--to", "huggingface"], 2),
}
"""Commands, and the number of models that they may build."""


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_looks_at_everything_once(
    name: str, tmp_path: Path, start: Path, counts: Counts, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments, models = COMMANDS[name]
    library, image = tmp_path / "library", tmp_path / "image.png"
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(image)
    save_model(load_model(start), library, format="huggingface")
    for written in library.glob("*.json"):
        os.utime(written, (0, 0))  # a file that was written just now is read each time
    counts.of.clear()
    paths = {"OUT": tmp_path / "out", "START": start, "LIBRARY": library, "IMAGE": image}
    assert command([str(paths.get(word, word)) for word in arguments]) == 0
    require_once(counts, models)
    if name not in ("predict", "convert"):
        assert counts["list"] == 1
    if arguments[0] in ("train", "finetune"):
        assert counts.total("search") == 1
    if arguments[0] == "finetune":
        assert counts.total("draw") == (name == "finetune for minutes")
    if arguments[0] not in ("train",):
        assert counts["open"] == counts["read"] == 1
    if name == "for minutes":
        assert "".join(capfd.readouterr()).count("Pixels: mean") == 1


@pytest.mark.parametrize("fits", [True, False])
def test_an_image_is_decoded_once_before_the_first_step_where_it_is_kept_in_memory(
    tmp_path: Path, counts: Counts, monkeypatch: pytest.MonkeyPatch, fits: bool
) -> None:
    """Else it is decoded to be compared with the others, and again whenever it is seen."""
    for number in range(24):
        path = tmp_path / "images" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(path)
    before, fit = Counter[Any](), Trainer.fit

    def begin(*rest: Any) -> Any:
        before.update(counts.of)
        return fit(*rest)

    monkeypatch.setattr(Trainer, "fit", begin)
    # 24 images of 192 bytes take 4,608 bytes.
    memory = ["--memory-gib", str(4608 / 2**30 if fits else 4607 / 2**30)]
    options = [*MODEL, "--batch-size", "4", "--warmup-steps", "0", "--threads", "1", "--workers", "0"]
    place = ["--data", str(tmp_path / "images"), "--out", str(tmp_path / "run")]
    assert command(["train", *place, *options, *memory, "--steps", "1"]) == 0
    decoded = [count for (what, _), count in before.items() if what == "decode"]
    assert len(decoded) == 24
    assert (max(decoded) == 1) is fits
