"""Damaged folders of vitkit export: predicted from as before, or one clean refusal; never other answers."""

import importlib.util
import json
import os
import shutil
import sys
from pathlib import Path
from random import Random

from tests.faults.entry import Refusal, export, logits_of_export, save, small_vit
from tests.faults.harness import Kind, Outcome
from tests.faults.mutate import REPLACEMENTS, json_text, leaves, mutant, replaced

PACKAGES = {"openvino": ("openvino",), "onnxruntime": ("onnxruntime", "onnx", "onnxscript")}


def installed() -> list[str]:
    """List the engines whose packages are there."""
    return [name for name, packages in PACKAGES.items() if all(map(importlib.util.find_spec, packages))]


class EngineBundles(Kind):
    """Flips, cuts, missing files, links and pipes in both engines' folders, and every leaf of engine.json."""

    name, count, limit = "engine_bundles", 600, 60.0
    sample = tuple(range(12))
    most_memory = 512 << 20  # an engine that reads its graph; the files have 200 kB

    def prepare(self, folder: Path) -> None:
        checkpoint = save(small_vit(), folder / "model", "vitkit")
        engines = installed()
        for name in PACKAGES.keys() - engines:
            print(f"{self.name}: {name} is not installed, its folders are left out", file=sys.stderr)
        for name in engines:
            export(checkpoint, folder / name, name)
        (folder / "engines.json").write_text(json.dumps(engines))

    def total(self, shared: Path) -> int:
        return sys.maxsize if json.loads((shared / "engines.json").read_text()) else 0

    def attempt(self, number: int, draw: Random, shared: Path, folder: Path) -> Outcome:
        engines = json.loads((shared / "engines.json").read_text())
        engine = engines[number % len(engines)]
        whole, damaged = shared / engine, folder / engine
        shutil.copytree(whole, damaged)
        what = _damage(damaged, draw)
        try:
            logits = logits_of_export(damaged)
        except Refusal as refusal:
            return Outcome("words", f"{engine}, {what}: {refusal}")
        if logits != logits_of_export(whole):
            return Outcome("wrong", f"{engine}, {what}: other logits without a word")
        return Outcome("right", f"{engine}, {what}")


def _damage(folder: Path, draw: Random) -> str:
    """Damage one file of a folder; returns what was done."""
    path = draw.choice(sorted(folder.iterdir()))
    before = path.read_bytes()
    match draw.choice(("bytes", "cut", "missing", "link", "pipe", "folder", "leaf", "leaf", "leaf")):
        case "bytes":
            path.write_bytes(mutant(before, draw))
            return f"{path.name} damaged"
        case "cut":
            path.write_bytes(before[: draw.randrange(len(before))])
            return f"{path.name} cut"
        case "missing":
            path.unlink()
            return f"{path.name} missing"
        case "link":
            place = draw.choice((folder / "other", folder.parent / "other", path))
            path.unlink()
            if place != path:
                place.write_bytes(before)
            path.symlink_to(place)
            return f"{path.name} a link to {place}"
        case "pipe":
            path.unlink()
            os.mkfifo(path)
            return f"{path.name} a pipe"
        case "folder":
            path.unlink()
            path.mkdir()
            return f"{path.name} a folder"
    path = folder / "engine.json"
    data = json.loads(path.read_text())
    field, value = draw.choice(list(leaves(data))), draw.choice((*REPLACEMENTS, "../other", "/etc/hostname"))
    path.write_text(json_text(replaced(data, field, value)))
    return f"engine.json, {'.'.join(map(str, field))}"
