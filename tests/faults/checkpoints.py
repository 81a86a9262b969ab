"""Damaged checkpoints of every layout: loaded, or one clean refusal; and no code of theirs is run."""

import contextlib
import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

from tests.faults.entry import Refusal, describe, load, save, small_resnet, small_vit
from tests.faults.harness import Kind, Outcome
from tests.faults.mutate import REPLACEMENTS, json_text, leaves, mutant, replaced

OWN = ("vitkit", "vitkit-resnet")
"""The layouts whose files carry a check sum: a changed weight is refused."""


def seeds(folder: Path) -> None:
    """Write one small checkpoint of every layout, a folder each."""
    vit, resnet = small_vit(), small_resnet()
    exact = {"gelu": "erf", "image_mean": (0.485, 0.456, 0.406), "image_std": (0.229, 0.224, 0.225)}
    save(vit, folder / "vitkit", "vitkit")
    save(resnet, folder / "vitkit-resnet", "vitkit")
    save(vit, _made(folder / "official") / "vit.npz", "official")
    save(resnet, _made(folder / "bit") / "bit.npz", "official")
    save(small_vit(pool="map"), _made(folder / "big_vision") / "vit.npz", "big_vision")
    save(small_vit(**exact), folder / "timm", "timm")
    save(small_vit(**exact), folder / "huggingface", "huggingface")
    save(small_vit(**exact), _made(folder / "torchvision") / "vit.pth", "torchvision")
    with np.load(folder / "official" / "vit.npz") as arrays:
        np.savez_compressed(_made(folder / "official-compressed") / "vit.npz", **arrays)
    for layout, name in (("timm", "model.pth"), ("huggingface", "pytorch_model.bin")):
        other = folder / f"{layout}-pickled"
        shutil.copytree(folder / layout, other)
        (weights,) = other.glob("*.safetensors")
        torch.save(_tensors(weights), other / name, _use_new_zipfile_serialization=layout == "timm")
        weights.unlink()


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _tensors(path: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(path)


class _Call:
    """Unpickles into a call: what a malicious file does."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


def malicious(path: Path, canary: Path, draw: Random) -> Path:
    """Write a file that would touch the canary if any code of it were run."""
    function, arguments = draw.choice(
        (
            (os.system, (f"touch {canary}",)),
            (eval, (f"open({str(canary)!r}, 'w')",)),
            (exec, (f"open({str(canary)!r}, 'w')",)),
            (open, (str(canary), "w")),
            (shutil.copyfile, ("/etc/hostname", str(canary))),
            (getattr(os, "mkdir"), (str(canary),)),  # noqa: B009 (pickled by its name)
        )
    )
    state = {"a": torch.zeros(2), "b": _Call(function, *arguments)}
    path = path.with_name("x" + draw.choice((".pth", ".bin", ".pt", ".npz", ".safetensors")))
    match draw.randrange(4):
        case 0:
            torch.save(state, path)
        case 1:
            torch.save(state, path, _use_new_zipfile_serialization=False)
        case 2:
            path.write_bytes(pickle.dumps(state, protocol=draw.randrange(6)))
        case 3:
            array = (
                b"\x93NUMPY\x01\x00\x46\x00"
                + b"{'descr': '|O', 'fortran_order': False, 'shape': (1,)}".ljust(69)
            )
            with zipfile.ZipFile(path, "w") as file:
                file.writestr("a.npy", array + b"\n" + pickle.dumps([_Call(function, *arguments)]))
    return path


class Checkpoints(Kind):
    """Mutants of a checkpoint of every layout, edited JSON beside it, and pickles that would run code."""

    name, count, limit = "checkpoints", 6_000, 20.0
    sample = tuple(range(60))
    # The files have 100 to 600 kB. What a reader may take on the word of a header is less than this.
    most_memory = 256 << 20
    per_process = 300

    def prepare(self, folder: Path) -> None:
        seeds(folder)

    def attempt(self, number: int, draw: Random, shared: Path, folder: Path) -> Outcome:
        if number % 30 == 0:
            canary = folder / "canary"
            path = malicious(folder / "x", canary, draw)
            outcome = tried(path)
            return Outcome("wrong", f"code of {path.name} was run") if canary.exists() else outcome
        layouts = sorted(path.name for path in shared.iterdir() if path.is_dir())
        layout = layouts[number % len(layouts)]
        shutil.copytree(shared / layout, folder / layout)
        files = sorted((folder / layout).iterdir())
        weights = [path for path in files if path.suffix != ".json"]
        described = [path for path in files if path.suffix == ".json"]
        target = weights[0] if len(weights) == 1 and not described else None
        if described and draw.random() < 0.4:
            return _edited(draw.choice(described), folder / layout, draw)
        damaged = target or draw.choice(weights if draw.random() < 0.8 else files)
        before = damaged.read_bytes()
        if layout in OWN and damaged in weights and draw.random() < 0.5:
            return _flipped(damaged, before, draw)
        damaged.write_bytes(mutant(before, draw))
        outcome = tried(target or folder / layout)
        return Outcome(outcome.verdict, f"{layout}, {damaged.name}: {outcome.detail}")


def _flipped(weights: Path, before: bytes, draw: Random) -> Outcome:
    """One bit of the numbers themselves, which nothing but a check sum can notice."""
    changed = bytearray(before)
    start = 8 + int.from_bytes(before[:8], "little")
    changed[draw.randrange(start, len(before))] ^= 1 << draw.randrange(8)
    weights.write_bytes(changed)
    outcome = tried(weights.parent, also_described=False)
    if outcome.verdict == "right":
        return Outcome("wrong", f"{weights.parent.name}: a changed weight was loaded without a word")
    return outcome


def _edited(path: Path, checkpoint: Path, draw: Random) -> Outcome:
    """One field of the JSON replaced."""
    data = json.loads(path.read_text())
    field, value = draw.choice(list(leaves(data))), draw.choice(REPLACEMENTS)
    path.write_text(json_text(replaced(data, field, value)))
    outcome = tried(checkpoint)
    return Outcome(
        outcome.verdict, f"{checkpoint.name}, {path.name}, {'.'.join(map(str, field))}: {outcome.detail}"
    )


def tried(path: Path, also_described: bool = True) -> Outcome:
    """Load a checkpoint and describe it: what one refuses the other may read, but neither may fall over."""
    try:
        load(path)
        outcome = Outcome("right")
    except Refusal as refusal:
        outcome = Outcome("words", str(refusal))
    if also_described:
        with contextlib.suppress(Refusal):
            describe(path)
    return outcome
