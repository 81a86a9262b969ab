"""Damaged files of every layout: a model, or words; no other exception, nor memory or time without end."""

import json
import random
import resource
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType

import pytest
import torch
from safetensors.torch import load_file

from tests.helpers.random_models import random_model
from tests.helpers.timm_files import TINY as RECTANGULAR
from vitkit.errors import VitkitError
from vitkit.weights.format_names import Format, LoadOptions
from vitkit.weights.loading import load
from vitkit.weights.saving import save_model

TINY = replace(RECTANGULAR, image_size=(16, 16))
MUTANTS = 22
"""Of each layout, in a test; more of them by hand: `mutate_and_load(make, folder, seeds)`."""
SECONDS = 20
"""Far more than any of them takes; a test that waits for ever shall fail."""
GROWTH = 256 << 20
"""Bytes that all of them together may add to the memory of the process."""


def saved(format: Format, suffix: str = "") -> Callable[[Path], Path]:
    return lambda folder: save_model(random_model(TINY), folder / f"model{suffix}", format)


def shards(folder: Path) -> Path:
    path = saved("huggingface")(folder)
    (path / "model.safetensors").rename(path / "model-1.safetensors")
    where = dict.fromkeys(load_file(path / "model-1.safetensors"), "model-1.safetensors")
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return path


def pickled(name: str, zipped: bool) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        file = saved("torchvision", ".pth")(folder)
        contents = {
            "model": torch.load(file, weights_only=True),
            "epoch": 3,
            "optimizer": {"a": torch.ones(3)},
        }
        torch.save(contents, folder / name, _use_new_zipfile_serialization=zipped)
        file.unlink()
        return folder / name

    return make


LAYOUTS: dict[str, Callable[[Path], Path]] = {
    "vitkit": saved("vitkit"),
    "timm": saved("timm"),
    "huggingface": saved("huggingface"),
    "shards": shards,
    "official": saved("official", ".npz"),
    "big_vision": saved("big_vision", ".npz"),
    "torchvision": saved("torchvision", ".pth"),
    "bin": pickled("wrapped.bin", zipped=True),
    "legacy": pickled("legacy.pth.tar", zipped=False),
}


def mutated(data: bytes, generator: random.Random) -> bytes:
    """Flip, cut, repeat, zero or replace a piece of a file, mostly where its structure is: begin and end."""
    first, last = min(len(data), 600), max(0, len(data) - 1 - generator.randrange(min(len(data), 3000)))
    place = generator.choice([generator.randrange(len(data)), generator.randrange(first), last])
    length = generator.choice([1, 1, 1, 2, 4, 8, 64, 1000])
    piece, after = data[place : place + length], data[place + length :]
    changed = generator.choice(
        [
            bytes([data[place] ^ (1 << generator.randrange(8))]) + data[place + 1 :],
            b"",
            piece + data[place:],
            bytes(len(piece)) + after,
            generator.randbytes(len(piece)) + after,
            b"\xff" * len(piece) + after,
        ]
    )
    return data[:place] + changed


class TooLongError(Exception):
    """A mutant that took more than its time."""


def mutate_and_load(make: Callable[[Path], Path], folder: Path, seeds: range) -> tuple[int, int]:
    """Load so many mutants of a checkpoint.

    Returns:
        How many were loaded all the same, and how many were refused in words.
    """
    (folder / "whole").mkdir()
    whole = make(folder / "whole")
    load(whole, LoadOptions(num_heads=4, image_size=(16, 16)))

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGALRM, stop)
    loaded = refused = 0
    try:
        for seed in seeds:
            generator = random.Random(seed)
            target = folder / f"mutant{whole.suffix}"
            if whole.is_dir():
                shutil.copytree(whole, target)
                changed = generator.choice(sorted(target.iterdir()))
            else:
                target = folder / f"mutant-{whole.name}"
                shutil.copy(whole, target)
                changed = target
            changed.write_bytes(mutated(changed.read_bytes(), generator))
            signal.alarm(SECONDS)
            try:
                load(target, LoadOptions(num_heads=4, image_size=(16, 16)))
                loaded += 1
            except VitkitError:
                refused += 1
            except Exception as error:
                raise AssertionError(f"seed {seed}, {changed.name}: {error!r}") from error
            finally:
                signal.alarm(0)
                shutil.rmtree(target) if target.is_dir() else target.unlink()
    finally:
        signal.signal(signal.SIGALRM, before)
    return loaded, refused


@pytest.mark.filterwarnings("ignore")  # numpy and torch warn of what they then refuse
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_damaged_file_is_a_model_or_words(layout: str, tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _, refused = mutate_and_load(LAYOUTS[layout], tmp_path, range(MUTANTS))
    assert refused > 0
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < GROWTH
