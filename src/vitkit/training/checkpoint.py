"""Checkpoints that survive anything: a new folder each, hashed, committed last.

    checkpoints/step-00000120/
        model.safetensors  average.safetensors  optimizer.safetensors  state.json
        manifest.json      size and SHA-256 of each of those
        COMMIT             SHA-256 of the manifest: written last; without it the folder counts for nothing

A save writes into a hidden folder, flushes every file, renames the folder, and writes COMMIT. Whatever moment
a process is killed at, the newest folder whose COMMIT and hashes agree is whole. No name is written twice.
"""

import hashlib
import json
import os
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitkit._version import __version__
from vitkit.config import from_json, to_json
from vitkit.durable import json_bytes, sync_folder, write_file
from vitkit.errors import VitkitError
from vitkit.models.weights.native import read_safetensors, safetensors_chunks

FOLDER = "checkpoints"


@dataclass(frozen=True)
class Progress:
    """Where a run stands: everything beside tensors that the next step depends on."""

    step: int = 0
    """Updates made so far."""
    best_value: float | None = None
    """The best validation value so far, and the step it was reached at."""
    best_step: int | None = None
    best_loss: float | None = None
    """Of that validation: of equal values the one with the smaller loss is the best."""
    evaluations_since_best: int = 0
    window: Mapping[str, float] = field(default_factory=dict)
    """Sums of the training metrics since the last line of the log."""
    window_steps: int = 0
    log_bytes: int = 0
    """Length of the metrics log: what is longer belongs to steps that will be made again."""
    finished: bool = False


@dataclass
class TrainState:
    """All that training changes."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    average: nn.Module | None
    """Polyak average of the weights."""
    progress: Progress


def environment(device: torch.device) -> dict[str, Any]:
    """What bit-identical results depend on, beside the state: recorded in every checkpoint."""
    return {
        "vitkit": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": processor_name(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "threads": torch.get_num_threads(),
        "world_size": 1,
    }


def processor_name() -> str:
    """The processor, as the system names it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def save_checkpoint(run: Path, state: TrainState, environment: Mapping[str, Any], keep: int) -> Path:
    """Commit a checkpoint of `state` in a run folder, then remove all but the last `keep` and the best.

    Raises:
        VitkitError: the disk refused. What was committed before is untouched, and nothing half-written is
            left under a checkpoint's name.
    """
    folder = run / FOLDER
    final = folder / _name(state.progress.step)
    temporary = folder / f".{final.name}.{os.getpid()}.tmp"
    files = _contents(state)
    needed = sum(len(chunk) for chunks in files.values() for chunk in chunks)
    try:
        os.makedirs(folder, exist_ok=True)
        _remove(temporary)
        os.mkdir(temporary)
        written = {name: write_file(temporary / name, chunks) for name, chunks in files.items()}
        manifest = json_bytes(
            {
                "step": state.progress.step,
                "environment": dict(environment),
                "files": {
                    name: {"bytes": size, "sha256": digest} for name, (size, digest) in written.items()
                },
            }
        )
        write_file(temporary / "manifest.json", [manifest])
        sync_folder(temporary)
        _remove(final)  # a damaged one of the same step: a whole one would have been resumed from
        os.rename(temporary, final)
        sync_folder(folder)
        write_file(final / "COMMIT", [hashlib.sha256(manifest).hexdigest().encode()])
        sync_folder(final)
    except OSError as error:
        for unfinished in (temporary, final):
            if not (unfinished / "COMMIT").exists():
                shutil.rmtree(unfinished, ignore_errors=True)
        raise VitkitError(
            f"The checkpoint of step {state.progress.step} could not be written to {folder}: "
            f"{error.strerror or error}. It needs {needed:,} bytes; {_free(folder)}. Checkpoints committed "
            "before are untouched: make room, then run the same command again to continue."
        ) from error
    try:
        _prune(folder, keep, state.progress)
    except OSError as error:
        raise VitkitError(
            f"The checkpoint of step {state.progress.step} is committed in {folder}, but an older one could "
            f"not be removed: {error.strerror or error}. Mend that, then run the same command again; "
            f"the next one needs {needed:,} bytes, {_free(folder)}."
        ) from error
    return final


def find_checkpoint(run: Path) -> tuple[Path | None, list[str]]:
    """The newest whole checkpoint of a run folder, and a sentence for each newer one that is not."""
    rejected: list[str] = []
    for folder in sorted((run / FOLDER).glob("step-*"), reverse=True):
        reason = damage(folder)
        if reason is None:
            return folder, rejected
        rejected.append(f"{folder} is not used: {reason}.")
    return None, rejected


def damage(checkpoint: Path) -> str | None:
    """Why a checkpoint cannot be used; None if every byte is as it was written."""
    try:
        commit = (checkpoint / "COMMIT").read_text()
        manifest = (checkpoint / "manifest.json").read_bytes()
        if hashlib.sha256(manifest).hexdigest() != commit:
            return "manifest.json is damaged"
        for name, record in json.loads(manifest)["files"].items():
            with (checkpoint / name).open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != record["sha256"]:
                    return f"{name} is damaged"
    except FileNotFoundError as error:
        name = Path(error.filename).name
        return "it was never committed" if name == "COMMIT" else f"{name} is missing"
    except (OSError, ValueError) as error:
        return f"it cannot be read ({error})"
    return None


def load_checkpoint(checkpoint: Path, state: TrainState) -> dict[str, Any]:
    """Bring `state` to where a checkpoint stands, bit for bit.

    Returns:
        The environment it was written in.
    """
    state.model.load_state_dict(read_safetensors(checkpoint / "model.safetensors"))
    if state.average is not None:
        state.average.load_state_dict(read_safetensors(checkpoint / "average.safetensors"))
    _load_optimizer(state.optimizer, read_safetensors(checkpoint / "optimizer.safetensors"))
    progress = json.loads((checkpoint / "state.json").read_text())
    state.progress = from_json(Progress, progress, str(checkpoint / "state.json"))
    manifest: dict[str, Any] = json.loads((checkpoint / "manifest.json").read_text())
    return dict(manifest["environment"])


def load_weights(checkpoint: Path) -> dict[str, Tensor]:
    """The weights to use a checkpoint's model with: the Polyak average where there is one."""
    average = checkpoint / "average.safetensors"
    return read_safetensors(average if average.exists() else checkpoint / "model.safetensors")


def sweep(run: Path, checkpoint: Path | None) -> None:
    """Remove what killed saves left behind, and the damaged checkpoints newer than the one to continue from.

    Their steps will be made again. The caller holds the run's lock.
    """
    for path in (run / FOLDER).glob("step-*"):
        if checkpoint is None or path.name > checkpoint.name or not (path / "COMMIT").exists():
            _remove(path)
    for leftover in (run / FOLDER).glob(".step-*.tmp"):
        shutil.rmtree(leftover, ignore_errors=True)


def _contents(state: TrainState) -> dict[str, list[bytes | memoryview]]:
    tensors = {"model": state.model.state_dict(), "optimizer": _optimizer_tensors(state.optimizer)}
    if state.average is not None:
        tensors["average"] = state.average.state_dict()
    files = {f"{name}.safetensors": list(safetensors_chunks(values)) for name, values in tensors.items()}
    return files | {"state.json": [json_bytes(to_json(state.progress))]}


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Every tensor of the optimiser's state by "parameter number.name"; the groups follow from the run.

    Sorted, since a state that was loaded has another order than one that grew: the files are to be the same.
    """
    return {
        f"{index}.{name}": value
        for index, parameter in enumerate(_parameters(optimizer))
        for name, value in sorted(optimizer.state.get(parameter, {}).items())
    }


def _load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    # Not by `load_state_dict`, which would turn a bfloat16 momentum into float32.
    optimizer.state.clear()
    for index, parameter in enumerate(_parameters(optimizer)):
        prefix = f"{index}."
        values = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
        optimizer.state[parameter] = {name: value.to(parameter.device) for name, value in values.items()}


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _prune(folder: Path, keep: int, progress: Progress) -> None:
    """Remove all but the last `keep` checkpoints up to the one just written, and the best."""
    newest = _name(progress.step)
    committed = sorted(p for p in folder.glob("step-*") if p.name <= newest and (p / "COMMIT").exists())
    best = _name(progress.best_step) if progress.best_step is not None else None
    for path in committed[:-keep]:
        if path.name != best:
            _remove(path)


def _remove(path: Path) -> None:
    """Take a folder's name away before its files, so that no half of it is ever found under the name."""
    if path.exists():
        trash = (
            path if path.name.startswith(".") else path.with_name(f".{path.name}.{os.getpid()}.removed.tmp")
        )
        if trash != path:
            shutil.rmtree(trash, ignore_errors=True)
            os.rename(path, trash)
        shutil.rmtree(trash)


def _name(step: int) -> str:
    return f"step-{step:08d}"


def _free(folder: Path) -> str:
    try:
        return f"{shutil.disk_usage(folder if folder.exists() else folder.parent).free:,} are free"
    except OSError:
        return "how many are free is not known"
