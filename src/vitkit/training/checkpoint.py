"""Checkpoints that survive anything: a new folder each, hashed, committed last.

    checkpoints/step-00000120/
        model.safetensors  average.safetensors  objective.safetensors  optimizer.safetensors  state.json
        manifest.json      size and SHA-256 of each of those, the run's options and its environment
        COMMIT             SHA-256 of the manifest: written last; without it the folder counts for nothing

A save writes into a hidden folder, flushes every file, renames the folder, and puts COMMIT into place.
Whatever moment a process is killed at, the newest folder whose COMMIT and hashes agree is whole. No name is
written twice.

Which of them can be trusted, and what becomes of those that cannot, is in `checkpoint_files`.
"""

import hashlib
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
from vitkit.config import to_json
from vitkit.durable import (
    json_bytes,
    replace_file,
    sync_folder,
    write_file,
)
from vitkit.errors import VitkitError
from vitkit.training.checkpoint_files import (
    FOLDER,
    FileHash,
    Manifest,
    Progress,
    clear,
    commit_size,
    newest_first,
    read_manifest,
    read_progress,
    remove,
    step_name,
    survey,
    was_never_committed,
)
from vitkit.training.optim import state_names
from vitkit.weights.files.safetensors import read_safetensors, safetensors_chunks
from vitkit.weights.table import current_name


@dataclass
class TrainState:
    """The objects that training changes, and that a checkpoint therefore holds."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    average: nn.Module | None
    """Polyak average of the weights; None where the run keeps none."""
    progress: Progress
    objective: nn.Module = field(default_factory=nn.Module)
    """The loss, whose parameters and buffers are part of the state; most objectives have none."""


def environment(device: torch.device) -> dict[str, Any]:
    """List what decides the last bits of results besides the state: versions, processor, device, threads.

    Every checkpoint records it, and a resumed run names what has changed.
    """
    return {
        "vitkit": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": processor_name(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "threads": torch.get_num_threads(),
        "world_size": 1,  # processes; recorded because sums over several of them would round otherwise
    }


def processor_name() -> str:
    """Give the processor's name as the system has it: of Linux the model, elsewhere what Python knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def save_checkpoint(
    run: Path,
    state: TrainState,
    environment: Mapping[str, Any],
    keep: int,
    configuration: Mapping[str, Any] | None = None,
) -> Path:
    """Commit a checkpoint of `state` in a run folder, then remove all but the last `keep` and the best.

    Args:
        run: the run folder.
        state: everything that the checkpoint holds.
        environment: what else decides the bits of a run, as `environment` gives it.
        keep: how many checkpoints stay, besides the best.
        configuration: the options of the run, as plain data.

    Raises:
        VitkitError: the disk refused. What was committed before is untouched, and nothing half-written is
            left under a checkpoint's name.
    """
    folder = run / FOLDER
    final = folder / step_name(state.progress.step)
    temporary = folder / f".{final.name}.{os.getpid()}.tmp"  # hidden: nothing looks for checkpoints there
    files = _contents(state)
    needed = sum(len(chunk) for chunks in files.values() for chunk in chunks)  # bytes, for the error
    try:
        os.makedirs(folder, exist_ok=True)
        remove(temporary)  # a killed process may have had the same number
        os.mkdir(temporary)
        # `write_file` hashes what it writes and flushes it, so the hash is that of the bytes in memory.
        written = {name: FileHash(*write_file(temporary / name, chunks)) for name, chunks in files.items()}
        manifest = json_bytes(
            to_json(Manifest(state.progress.step, dict(environment), written, configuration))
        )
        write_file(temporary / "manifest.json", [manifest])
        # The order is the promise: after a power cut, a name that is on the disk leads to files that are
        # there whole. So each folder is flushed before anything refers to it, and COMMIT comes last.
        sync_folder(temporary)
        # What has this name already was not resumed from, so it is damaged or was never committed.
        clear(final)
        os.rename(temporary, final)
        sync_folder(folder)
        replace_file(final / "COMMIT", [hashlib.sha256(manifest).hexdigest().encode()])
    except OSError as error:
        for unfinished in (temporary, final):  # `final` where the rename was done and COMMIT was not
            if was_never_committed(unfinished):
                shutil.rmtree(unfinished, ignore_errors=True)
        raise VitkitError(
            f"The checkpoint of step {state.progress.step} could not be written to {folder}: "
            f"{error.strerror or error}. It needs {needed:,} bytes; {_free(folder)}. Checkpoints committed "
            "before are untouched: make room, then run the same command again to continue."
        ) from error
    _remove_older(folder, keep, state.progress, needed)
    return final


def _remove_older(folder: Path, keep: int, progress: Progress, needed: int) -> None:
    """Remove all checkpoints but the last `keep` and the best.

    Raises:
        VitkitError: the system refuses; the new checkpoint is committed all the same.
    """
    try:
        _prune(folder, keep, progress)
    except OSError as error:
        raise VitkitError(
            f"The checkpoint of step {progress.step} is committed in {folder}, but an older one could "
            f"not be removed: {error.strerror or error}. Mend that, then run the same command again; "
            f"the next one needs {needed:,} bytes, {_free(folder)}."
        ) from error


def find_checkpoint(run: Path) -> tuple[Path | None, list[str]]:
    """Find the newest whole checkpoint of a run folder.

    Returns:
        Its folder, or None; and a sentence for each newer one that is damaged or was never committed.

    Raises:
        UnreadableError: the system refuses to list the checkpoints or to read one.
    """
    found = survey(run)
    sentences = [f"{path} is not used: {reason}." for path, reason in found.damaged.items()]
    sentences += [f"{path} was never committed: its save was cut short." for path in found.uncommitted]
    return found.whole, sentences


def load_checkpoint(checkpoint: Path, state: TrainState) -> Manifest:
    """Put the weights, optimiser state and progress of a whole checkpoint into `state`, bit for bit.

    Returns:
        Its manifest: the environment and the options it was written with.

    Raises:
        VitkitError: it is of another model or optimiser, or was damaged in the meantime.
    """
    manifest, progress = read_manifest(checkpoint), read_progress(checkpoint)
    # Everything is checked before it is loaded: with an average or an objective too many or too few, training
    # would go on, as another run than the one that was begun.
    averaged = "average.safetensors" in manifest.files
    if averaged != (state.average is not None):
        has, wants = ("a", "none") if averaged else ("no", "one")
        raise VitkitError(
            f"{checkpoint} holds {has} Polyak average of the weights, but polyak asks for {wants}. {_EDITED}"
        )
    kept, needed = "objective.safetensors" in manifest.files, bool(state.objective.state_dict())
    if kept != needed:
        has, wants = ("a", "one without any") if kept else ("no", "one that has some")
        raise VitkitError(
            f"{checkpoint} holds {has} state of an objective (parameters or buffers of the loss), but the "
            f"run's options describe {wants}. {_EDITED}"
        )
    try:
        state.model.load_state_dict(_read_model(checkpoint / "model.safetensors"))
        if state.average is not None:
            state.average.load_state_dict(_read_model(checkpoint / "average.safetensors"))
    except RuntimeError as error:
        raise _does_not_fit(checkpoint, "weights of another model", error) from error
    if needed:
        try:
            state.objective.load_state_dict(read_safetensors(checkpoint / "objective.safetensors"))
        except RuntimeError as error:
            raise _does_not_fit(checkpoint, "state of another objective", error) from error
    optimizer = read_safetensors(checkpoint / "optimizer.safetensors")
    if not _fits(state.optimizer, optimizer):
        raise VitkitError(
            f"{checkpoint} holds the state of another optimiser than the run's options describe. {_EDITED}"
        )
    _load_optimizer(state.optimizer, optimizer)
    state.progress = progress
    return manifest


_EDITED = (
    "Was config.json edited? Put back what it was when the run began, or start a new run with another --out."
)
"""The advice of the errors here: a checkpoint fits its run unless the options were changed."""


def _does_not_fit(checkpoint: Path, what: str, error: RuntimeError) -> VitkitError:
    """Make the error for tensors that do not fit, from what `load_state_dict` raised."""
    # Its first line names the class, the next ones keys and shapes: two of those are enough for a message.
    lines = [line.strip() for line in str(error).splitlines()]
    return VitkitError(
        f"{checkpoint} holds the {what} than the run's options describe: "
        f"{' '.join(lines[1:3] or lines)} {_EDITED}"
    )


def load_weights(checkpoint: Path) -> dict[str, Tensor]:
    """Read the weights that a checkpoint's model is used with: the Polyak average where there is one.

    Raises:
        VitkitError: the file is damaged.
    """
    return _read_model(weights_file(checkpoint))


def _read_model(path: Path) -> dict[str, Tensor]:
    """Read a model's parameters, by the names that they have today."""
    return {current_name(key): value for key, value in read_safetensors(path).items()}


def weights_file(checkpoint: Path) -> Path:
    """Return the path of the file that `load_weights` reads.

    Raises:
        VitkitError: the manifest is damaged.
    """
    # By the manifest, not by what is in the folder: nothing says what a file is that it does not list.
    averaged = "average.safetensors" in read_manifest(checkpoint).files
    return checkpoint / ("average.safetensors" if averaged else "model.safetensors")


def _contents(state: TrainState) -> dict[str, list[bytes | memoryview]]:
    """Give the bytes of a checkpoint's files, by name; tensors on the CPU are not copied."""
    tensors = {"model": state.model.state_dict(), "optimizer": _optimizer_tensors(state.optimizer)}
    if state.average is not None:
        tensors["average"] = state.average.state_dict()
    # A file of its own: what belongs to the loss alone is not part of the model that a run ends with.
    if objective := state.objective.state_dict():
        tensors["objective"] = objective
    files = {f"{name}.safetensors": list(safetensors_chunks(values)) for name, values in tensors.items()}
    return files | {"state.json": [json_bytes(to_json(state.progress))]}


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Give the tensors of the optimiser's state, named "parameter number.name", such as "12.exp_avg".

    Parameters are numbered in the order of the groups, which the run's options decide. The names are sorted,
    since a state that was loaded has another order than one that grew, and both must write the same bytes.
    """
    return {
        f"{index}.{name}": value
        for index, parameter in enumerate(_parameters(optimizer))
        for name, value in sorted(optimizer.state.get(parameter, {}).items())
    }


def _fits(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> bool:
    """Whether `tensors` are those that the optimiser keeps for its parameters, in the right shapes."""
    shapes: dict[str, dict[str, torch.Size]] = {}
    for key, value in tensors.items():
        index, _, name = key.partition(".")
        shapes.setdefault(index, {})[name] = value.shape
    parameters = {str(index): parameter.shape for index, parameter in enumerate(_parameters(optimizer))}
    # A parameter that never had a gradient has no state, hence <=. A state is of its parameter's shape, or a
    # scalar: the number of steps that Adam counts.
    return shapes.keys() <= parameters.keys() and all(
        found.keys() == state_names(optimizer) and set(found.values()) <= {torch.Size(), parameters[index]}
        for index, found in shapes.items()
    )


def _load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Replace the optimiser's state by tensors named as `_optimizer_tensors` names them."""
    # Not by `load_state_dict`, which would turn a bfloat16 momentum into float32, the parameter's type.
    optimizer.state.clear()
    for index, parameter in enumerate(_parameters(optimizer)):
        prefix = f"{index}."
        values = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
        optimizer.state[parameter] = {name: value.to(parameter.device) for name, value in values.items()}


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """List the parameters in the order in which a checkpoint numbers them."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _prune(folder: Path, keep: int, progress: Progress) -> None:
    """Remove all checkpoints up to the one just written, but for the last `keep` and the best."""
    # Later ones than the one just written are not counted, or this one could be removed at once. Nor is one
    # with an empty COMMIT (size 0), from which nothing can be resumed.
    committed = [
        path
        for path in newest_first(folder)
        if int(path.name.removeprefix("step-")) <= progress.step and commit_size(path)
    ]
    best = step_name(progress.best_step) if progress.best_step is not None else None
    for path in committed[keep:]:
        if path.name != best:
            remove(path)


def _free(folder: Path) -> str:
    """Say how many bytes are free on a folder's disk, as the rest of a sentence."""
    try:
        return f"{shutil.disk_usage(folder if folder.exists() else folder.parent).free:,} are free"
    except OSError:
        return "the free space is unknown"
