"""Checkpoints of a small run for tests, and how to damage them."""

import hashlib
import json
from pathlib import Path
from typing import Any

from tests.training.small_run import small_trainer
from vitkit.training.trainer import Trainer


def trained(run: Path, steps: int) -> Trainer:
    trainer = small_trainer(run)
    for report in trainer.fit():
        if report.step == steps:
            break
    return trainer


def flip(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:40] + bytes([whole[40] ^ 1]) + whole[41:])


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def committed(checkpoint: Path, manifest: Any = None, state: Any = None) -> None:
    """Write a manifest or a state that somebody made up, with all hashes right."""
    old = json.loads((checkpoint / "manifest.json").read_text())
    if state is not None:
        data = json.dumps(state).encode()
        (checkpoint / "state.json").write_bytes(data)
        old["files"]["state.json"] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    made = manifest(old) if callable(manifest) else manifest
    data = json.dumps(old if made is None else made).encode()
    (checkpoint / "manifest.json").write_bytes(data)
    (checkpoint / "COMMIT").write_text(hashlib.sha256(data).hexdigest())
