"""Damaged checkpoints of every layout and exports: read, or one clean refusal; no code of theirs runs."""

import contextlib
import importlib.util
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Literal

import numpy as np
import torch
from safetensors.torch import load_file

import vitkit
from tests.faults.entry import Refusal, small_resnet, small_vit
from tests.faults.harness import Kind, Outcome
from tests.faults.mutate import damage
from vitkit.engines.folder import EngineModel
from vitkit.weights.loading import identify

OWN = ("vitkit", "vitkit-resnet")
"""The layouts whose files carry a check sum: a changed weight is refused."""


def seeds(folder: Path) -> None:
    """Write one small checkpoint of every layout, a folder each."""
    vit, resnet = small_vit(), small_resnet()
    theirs = small_vit(gelu="erf", image_mean=(0.485, 0.456, 0.406), image_std=(0.229, 0.224, 0.225))
    for name in ("official", "bit", "big_vision", "torchvision", "official-compressed"):
        (folder / name).mkdir()
    vitkit.save_model(vit, folder / "vitkit", "vitkit")
    vitkit.save_model(resnet, folder / "vitkit-resnet", "vitkit")
    vitkit.save_model(vit, folder / "official/vit.npz", "official")
    vitkit.save_model(resnet, folder / "bit/bit.npz", "official")
    vitkit.save_model(small_vit(pool="map"), folder / "big_vision/vit.npz", "big_vision")
    vitkit.save_model(theirs, folder / "timm", "timm")
    vitkit.save_model(theirs, folder / "huggingface", "huggingface")
    vitkit.save_model(theirs, folder / "torchvision/vit.pth", "torchvision")
    with np.load(folder / "official" / "vit.npz") as arrays:
        np.savez_compressed(folder / "official-compressed/vit.npz", **arrays)
    for layout, name in (("timm", "model.pth"), ("huggingface", "pytorch_model.bin")):
        other = folder / f"{layout}-pickled"
        shutil.copytree(folder / layout, other)
        (weights,) = other.glob("*.safetensors")
        torch.save(load_file(weights), other / name, _use_new_zipfile_serialization=layout == "timm")
        weights.unlink()


class _Call:
    """Unpickles into a call: what a malicious file does."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


def malicious(folder: Path, canary: Path, draw: Random) -> Path:
    """Write a file that would touch the canary if any code of it were run."""
    calls = (
        _Call(os.system, f"touch {canary}"),
        _Call(eval, f"open({str(canary)!r}, 'w')"),
        _Call(open, str(canary), "w"),
        _Call(shutil.copyfile, "/etc/hostname", str(canary)),
        _Call(getattr(os, "mkdir"), str(canary)),  # noqa: B009 (pickled by its name)
    )
    state = {"a": torch.zeros(2), "b": draw.choice(calls)}
    path = folder / ("x" + draw.choice((".pth", ".bin", ".pt", ".npz", ".safetensors")))
    match draw.randrange(4):
        case 0:
            torch.save(state, path)
        case 1:
            torch.save(state, path, _use_new_zipfile_serialization=False)
        case 2:
            path.write_bytes(pickle.dumps(state, protocol=draw.randrange(6)))
        case 3:
            with path.open("wb") as file:
                np.savez(file, a=np.array([state], object), allow_pickle=True)
    return path


class Checkpoints(Kind):
    """Damage to a file of a checkpoint of every layout, and pickles that would run code."""

    name, count, limit = "checkpoints", 6_000, 20.0
    sample = tuple(range(45))
    # The files have 100 to 600 kB. What a reader may take on the word of a header is less than this.
    most_memory = 256 << 20
    per_process = 300

    def prepare(self, folder: Path) -> None:
        seeds(folder)

    def attempt(self, number: int, draw: Random, shared: Path, folder: Path) -> Outcome:
        if number % 30 == 0:
            canary = folder / "canary"
            path = malicious(folder, canary, draw)
            outcome = tried(path)
            return Outcome("wrong", f"code of {path.name} was run") if canary.exists() else outcome
        layouts = sorted(path.name for path in shared.iterdir() if path.is_dir())
        layout = folder / layouts[number % len(layouts)]
        shutil.copytree(shared / layout.name, layout)
        files = sorted(layout.iterdir())
        weights = next(path for path in files if path.suffix != ".json")
        flipped = layout.name in OWN and draw.random() < 0.4
        if flipped:  # one bit of the numbers themselves, which nothing but a check sum can notice
            changed = bytearray(weights.read_bytes())
            start = 8 + int.from_bytes(changed[:8], "little")
            changed[draw.randrange(start, len(changed))] ^= 1 << draw.randrange(8)
            weights.write_bytes(changed)
            done = "a flipped bit"
        else:
            done = damage(weights if draw.random() < 0.6 else draw.choice(files), draw)
        outcome = tried(layout if len(files) > 1 else weights)
        if flipped and outcome.verdict == "right":
            outcome = Outcome("wrong", "it was loaded without a word")
        return Outcome(outcome.verdict, f"{layout.name}, {done}: {outcome.detail}")


def tried(path: Path) -> Outcome:
    """Load a checkpoint and describe it: what one refuses the other may read, but neither may fall over."""
    try:
        vitkit.load_model(path)
        outcome = Outcome("right")
    except Refusal as refusal:
        outcome = Outcome("words", str(refusal))
    with contextlib.suppress(Refusal):
        identify(str(path))
    return outcome


PACKAGES: dict[Literal["openvino", "onnx"], tuple[str, ...]] = {
    "openvino": ("openvino",),
    "onnx": ("onnxruntime", "onnx", "onnxscript"),
}


class EngineBundles(Kind):
    """Damage to a file of an exported folder: predicted from as before, or refused; never other answers."""

    name, count, limit = "engine_bundles", 600, 60.0
    sample = tuple(range(12))
    most_memory = 512 << 20  # an engine that reads its graph; the files have 200 kB

    def prepare(self, folder: Path) -> None:
        checkpoint = vitkit.save_model(small_vit(), folder / "model", "vitkit")
        for name, packages in PACKAGES.items():
            if all(map(importlib.util.find_spec, packages)):
                vitkit.export(checkpoint, folder / name, format=name)
            else:
                print(f"{self.name}: {name} is not installed, its folders are left out")

    def total(self, shared: Path) -> int:
        return self.count if _engines(shared) else 0

    def attempt(self, number: int, draw: Random, shared: Path, folder: Path) -> Outcome:
        engines = _engines(shared)
        whole = engines[number % len(engines)]
        damaged = folder / whole.name
        shutil.copytree(whole, damaged)
        done = f"{whole.name}, {damage(draw.choice(sorted(damaged.iterdir())), draw)}"
        try:
            logits = _logits(damaged)
        except Refusal as refusal:
            return Outcome("words", f"{done}: {refusal}")
        return Outcome("right" if logits == _logits(whole) else "wrong", f"{done}: read")


def _engines(shared: Path) -> list[Path]:
    return [shared / name for name in PACKAGES if (shared / name).exists()]


def _logits(folder: Path) -> list[list[float]]:
    """Compute the logits of one made-up image from the folder of an export. Raises Refusal."""
    model = vitkit.Predictor(folder).model
    assert isinstance(model, EngineModel)
    logits: list[list[float]] = model(np.arange(3 * 8 * 8, dtype=np.uint8).reshape(1, 3, 8, 8)).tolist()
    return logits
