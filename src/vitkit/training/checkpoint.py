"""Checkpoints that survive anything: a new folder each, hashed, committed last.

    checkpoints/step-00000120/
        model.safetensors  average.safetensors  optimizer.safetensors  state.json
        objective.safetensors  averaged_objective.safetensors
        manifest.json      size and SHA-256 of each of these files, the run's options and its environment
        COMMIT             SHA-256 of the manifest: written last; without it the folder is ignored

A save writes into a hidden folder, flushes every file, renames the folder, and puts COMMIT into place.
Whatever moment a process is killed at, the newest folder whose COMMIT and hashes agree is whole. Nothing is
overwritten. A large checkpoint is written from a copy of the state, while training goes on.

A committed checkpoint is removed for two reasons only: newer ones were committed after it, or its run of a
series has ended (`remove_checkpoints`). A checkpoint that is damaged is set aside under another name,
`damaged-step-00000120`; one that cannot be read, because the disk or the system refuses, stops the run and
stays as it is.

From top to bottom: the records of a checkpoint, saving, the search for a whole checkpoint, loading, its files
(names, commits, setting aside, removing), and a run whose checkpoints are no longer needed.
"""

import errno
import hashlib
import itertools
import os
import platform
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from vitkit import durable
from vitkit._version import __version__
from vitkit.config import Count, from_json, read, to_json, write
from vitkit.errors import VitkitError
from vitkit.training import gradients, optim
from vitkit.weights.files.source import read_safetensors, safetensors_chunks

FOLDER = "checkpoints"
"""The folder of a run folder that holds its checkpoints."""
_REQUIRED = ("model.safetensors", "optimizer.safetensors", "state.json")
"""The files of every checkpoint; an average and an objective's state are there where the run has them."""
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)
"""The system's errors when there is no such file: nothing has its name, its folder is a file, or it is itself
a folder. Any other error (no permission, a disk that fails, too many open files) says nothing about the file,
which may be whole."""
_EDITED = (
    "Was config.json edited? Put back what it was when the run began, or start a new run with another --out."
)
"""The advice of the errors here: a checkpoint fits its run unless the options were changed."""
BACKGROUND_BYTES = 64 * 2**20
"""The smallest checkpoint, in bytes, that is written while training goes on: a smaller one takes less than
half a second, and a copy and a thread would gain nothing."""
_T = TypeVar("_T")


class UnreadableError(VitkitError):
    """The system refuses to read a checkpoint, which may well be whole: nothing was changed."""


@dataclass(frozen=True)
class Progress:
    """The progress of a run: everything besides tensors that the next step depends on."""

    step: int = 0
    """Updates made so far."""
    best_value: float | None = None
    """The best value so far of the metric that is monitored; None before the first."""
    best_step: Count | None = None
    """The step after which it was measured."""
    best_tie: float | None = None
    """The monitor's tie breaker at that step, which decides between equal values."""
    evaluations_since_best: int = 0
    """Evaluations without a better value, which `patience` counts."""
    window: Mapping[str, float] = field(default_factory=dict)
    """Sums of the training metrics since the last line of the log."""
    window_steps: Count = 0
    """Steps in these sums."""
    log_bytes: Count = 0
    """Length of the metrics log: all bytes after it belong to steps that will be made again."""
    log_sha256: str | None = None
    """SHA-256 of the log up to that length; None before the first checkpoint."""
    finished: bool = False
    """Whether no update follows: all steps are made, or patience was used up."""


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
    averaged_objective: nn.Module | None = None
    """The objective with the Polyak average of its parameters; None where there is nothing to average."""


@dataclass(frozen=True)
class FileHash:
    """The length and hash that a file of a checkpoint had when it was written."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The content of a checkpoint's `manifest.json`."""

    step: int
    environment: Mapping[str, Any]
    """Versions, processor, device and threads, as `environment` gives them."""
    files: Mapping[str, FileHash]
    """Every file of the folder but the manifest and COMMIT, by name."""
    configuration: Mapping[str, Any]
    """The options of the run that made it."""


@dataclass(frozen=True)
class Survey:
    """The state of the checkpoints of a run folder. Checkpoints older than `whole` are not verified."""

    whole: Path | None
    """The newest checkpoint whose bytes are all as they were written."""
    damaged: Mapping[Path, str]
    """Newer ones that were committed and are damaged, with the reason."""
    uncommitted: tuple[Path, ...]
    """Folders of saves that were cut short."""
    lost: bool
    """Whether checkpoints were committed and none of them is whole."""


def environment(device: torch.device, processes: int = 1) -> dict[str, Any]:
    """List the versions, processor, device and threads, which decide the last bits of results too.

    Every checkpoint records it, and a resumed run names what has changed.

    Args:
        device: the device that the model is trained on.
        processes: the processes that train it together.
    """
    return {
        "vitkit": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": processor_name(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "threads": torch.get_num_threads(),
        "world_size": processes,  # sums over another number of processes are rounded differently
    }


def processor_name() -> str:
    """Give the processor's name: its model on Linux, elsewhere what Python reports."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


@dataclass(frozen=True)
class Snapshot:
    """A checkpoint before it is written: its bytes, and the fields of its manifest."""

    files: Mapping[str, Iterable[bytes | memoryview]]
    """The content of each file, by name, in the order of writing. Chunks may be read only once."""
    bytes: int
    """The bytes of all tensors."""
    progress: Progress
    environment: Mapping[str, Any]
    configuration: Mapping[str, Any]


def take_snapshot(
    state: TrainState,
    environment: Mapping[str, Any],
    configuration: Mapping[str, Any] | None = None,
    copied: bool = False,
) -> Snapshot:
    """Give the bytes of a checkpoint of `state`.

    Args:
        state: everything that the checkpoint holds.
        environment: as `environment` gives it.
        configuration: the options of the run, as plain data.
        copied: whether the tensors are copied, because `state` may change before the bytes are written; else
            they are read while they are written.
    """
    files: dict[str, Iterable[bytes | memoryview]] = {}
    tensors = _tensors(state)
    for name, values in tensors.items():
        # Sharded tensors are collected one after the other, each when it is written.
        chunks = safetensors_chunks(values, read=_copy if copied else gradients.collect)
        files[f"{name}.safetensors"] = list(chunks) if copied else chunks
    files["state.json"] = [durable.json_bytes(to_json(state.progress))]
    return Snapshot(files, _count_bytes(tensors), state.progress, dict(environment), configuration or {})


def _copy(tensor: Tensor) -> Tensor:
    """Copy a tensor, unless reading it makes a copy: from a GPU, or from several processes."""
    is_read_in_place = tensor.device.type == "cpu" and not gradients.is_sharded(tensor)
    return tensor.clone() if is_read_in_place else gradients.collect(tensor)


def _modules(state: TrainState) -> dict[str, nn.Module]:
    """List the modules of a state that have tensors, by the file of a checkpoint that holds these."""
    modules = {
        "model": state.model,
        "average": state.average,
        # A file of its own: the state of the loss is not part of the model that a run ends with.
        "objective": state.objective,
        "averaged_objective": state.averaged_objective,
    }
    return {name: module for name, module in modules.items() if module is not None and module.state_dict()}


def _tensors(state: TrainState) -> dict[str, Mapping[str, Tensor]]:
    """List the tensors of a state, by the file of a checkpoint that holds them.

    All processes go through them in this order: each sharded tensor is collected from all at the same time.
    """
    of_modules = {name: module.state_dict() for name, module in _modules(state).items()}
    # "parameter number.name", such as "12.exp_avg". Parameters are numbered in the order of the groups, which
    # the run's options decide. The names are sorted, since a state that was loaded has another order than one
    # that grew, and both must write the same bytes.
    of_optimizer = {
        f"{index}.{name}": value
        for index, parameter in enumerate(_parameters(state.optimizer))
        for name, value in sorted(state.optimizer.state.get(parameter, {}).items())
    }
    return {"model": of_modules.pop("model"), "optimizer": of_optimizer, **of_modules}


def _count_bytes(tensors: Mapping[str, Mapping[str, Tensor]]) -> int:
    """Count the bytes of the tensors of all files."""
    return sum(value.nbytes for values in tensors.values() for value in values.values())


def give_parts(state: TrainState) -> None:
    """Give this process's part of a sharded state to the process that takes a snapshot of it.

    A process with replicas has nothing to give.
    """
    for tensors in _tensors(state).values():
        for tensor in tensors.values():
            gradients.collect(tensor)  # the process that takes the snapshot uses it, the others drop it


def make_folder(run: Path) -> None:
    """Make the folder for the checkpoints of a run, once, while its run folder is known to be the run's own.

    Later saves do not make it: where the run folder was replaced by an empty one, they would begin a second
    half of the run there.

    Raises:
        VitkitError: it cannot be made.
    """
    try:
        (run / FOLDER).mkdir(exist_ok=True)
    except OSError as error:
        if not run.is_dir():
            raise durable.moved_error(run) from error
        raise VitkitError(
            f"The folder {run / FOLDER} cannot be made: {error.strerror or error}. Correct this, then run "
            "the same command again."
        ) from error


def commit(run: Path, snapshot: Snapshot, keep: int) -> Path:
    """Commit a checkpoint in a run folder, then remove all but the last `keep` and the best.

    Args:
        run: the run folder, in which `make_folder` has made one for checkpoints.
        snapshot: by `take_snapshot`.
        keep: how many checkpoints stay, besides the best.

    Raises:
        VitkitError: the disk refused. What was committed before is untouched, and nothing half-written is
            left under a checkpoint's name.
    """
    folder, step = run / FOLDER, snapshot.progress.step
    final = folder / step_name(step)
    temporary = folder / f".{final.name}.{os.getpid()}.tmp"  # hidden: nothing looks for checkpoints there
    try:
        remove(temporary)  # left by a killed process that had the same process number
        os.mkdir(temporary)
        # `write_file` hashes the bytes in memory, before the disk can damage them.
        written = {
            name: FileHash(*durable.write_file(temporary / name, chunks))
            for name, chunks in snapshot.files.items()
        }
        record = Manifest(step, snapshot.environment, written, snapshot.configuration)
        manifest = durable.json_bytes(to_json(record))
        durable.write_file(temporary / "manifest.json", [manifest])
        # The order is the promise: after a power cut, a name that is on the disk leads to files that are
        # there whole. So each folder is flushed before anything refers to it, and COMMIT comes last.
        durable.sync_folder(temporary)
        # A folder that has this name already was not resumed from: it is damaged or was never committed.
        if was_never_committed(final):
            remove(final)
        else:
            set_aside(final)
        os.rename(temporary, final)
        durable.sync_folder(folder)
        durable.replace_file(final / "COMMIT", [hashlib.sha256(manifest).hexdigest().encode()])
    except OSError as error:
        for unfinished in (temporary, final):  # `final` where the rename was done and COMMIT was not
            if was_never_committed(unfinished):
                shutil.rmtree(unfinished, ignore_errors=True)
        if not folder.is_dir():
            raise durable.moved_error(run) from error
        raise VitkitError(
            f"The checkpoint of step {step} could not be written to {folder}: "
            f"{error.strerror or error}. It needs {snapshot.bytes:,} bytes; {_free(folder)}. Checkpoints "
            "committed before are untouched: make room, then run the same command again to continue."
        ) from error
    _remove_older(folder, keep, snapshot.progress, snapshot.bytes)
    return final


class CheckpointWriter:
    """Commits the checkpoints of a run, one after the other; large ones from a copy while training goes on.

    Args:
        run: the run folder.
        keep: how many checkpoints stay, besides the best.
        spare_memory: gives the bytes of memory that a copy may take; None: training waits for every save.
    """

    def __init__(self, run: Path, keep: int, spare_memory: Callable[[], int | None] | None = None) -> None:
        self._run, self._keep, self._spare_memory = run, keep, spare_memory
        # A process that ends waits for its thread, and so finishes the save.
        self._background = ThreadPoolExecutor(1, "checkpoint")
        self._saving: Future[Path] | None = None
        self._committed: Path | None = None

    def save(
        self,
        state: TrainState,
        environment: Mapping[str, Any],
        configuration: Mapping[str, Any] | None,
        at_once: bool,
    ) -> None:
        """Save a checkpoint, after the save before.

        Args:
            state, environment, configuration: as for `take_snapshot`.
            at_once: whether to wait until it is committed.

        Raises:
            VitkitError: as `commit`, for this save or the one before.
        """
        self.wait()
        in_background = False
        if not at_once and self._spare_memory is not None:
            size, spare = _count_bytes(_tensors(state)), self._spare_memory()
            in_background = size >= BACKGROUND_BYTES and spare is not None and size <= spare / 2
        snapshot = take_snapshot(state, environment, configuration, copied=in_background)
        if in_background:
            self._saving = self._background.submit(commit, self._run, snapshot, self._keep)
        else:
            self._committed = commit(self._run, snapshot, self._keep)

    def take_committed(self) -> Path | None:
        """Give the checkpoint that was committed since this was called last, if one was.

        Raises:
            VitkitError: as `commit`, for a save that has failed since.
        """
        if self._saving is not None and self._saving.done():
            self.wait()
        path, self._committed = self._committed, None
        return path

    def wait(self) -> None:
        """Wait until the last save is committed.

        Raises:
            VitkitError: as `commit`.
        """
        if self._saving is not None:
            saving, self._saving = self._saving, None
            self._committed = saving.result()


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """List the parameters in the order in which a checkpoint numbers them."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _remove_older(folder: Path, keep: int, progress: Progress, needed: int) -> None:
    """Remove all checkpoints up to the one just written, but for the last `keep` and the best.

    Raises:
        VitkitError: the system refuses; the new checkpoint is committed all the same.
    """
    best = step_name(progress.best_step) if progress.best_step is not None else None
    try:
        # Checkpoints of later steps do not count among the last `keep`, or the one just written could be
        # removed at once. Nor does one with an empty COMMIT (size 0), from which nothing can be resumed.
        earlier = [path for path in newest_first(folder) if step_of(path) <= progress.step]
        committed = [path for path in earlier if commit_size(path)]
        for path in committed[keep:]:
            if path.name != best:
                remove(path)
    except OSError as error:
        raise VitkitError(
            f"The checkpoint of step {progress.step} is committed in {folder}, but an older one could "
            f"not be removed: {error.strerror or error}. Mend that, then run the same command again; "
            f"the next checkpoint needs {needed:,} bytes; {_free(folder)}."
        ) from error


def _free(folder: Path) -> str:
    """Say how many bytes are free on a folder's disk, as the rest of a sentence."""
    try:
        return f"{shutil.disk_usage(folder if folder.exists() else folder.parent).free:,} are free"
    except OSError:
        return "the free space is unknown"


def survey(run: Path) -> Survey:
    """Look for the newest whole checkpoint of a run folder; nothing is changed.

    Raises:
        UnreadableError: the system refuses to list them or to read one.
        VitkitError: there is something else in the place of the folder.
    """
    damaged: dict[Path, str] = {}
    commits = {path: commit_size(path) for path in newest_first(run / FOLDER)}
    uncommitted = tuple(path for path, size in commits.items() if size is None)
    for path, size in commits.items():
        if size is not None:
            reason = find_damage(path)
            if reason is None:
                return Survey(path, damaged, uncommitted, lost=False)
            damaged[path] = reason
    # An empty COMMIT (size 0) does not prove that there was a checkpoint, so nothing is lost with it.
    return Survey(None, damaged, uncommitted, lost=any(commits[path] for path in damaged))


def find_damage(checkpoint: Path) -> str | None:
    """Find the reason why a checkpoint cannot be used; None if every byte is as it was written.

    The reason is the rest of a sentence that begins with the checkpoint's path.

    Raises:
        UnreadableError: the system refuses to read it, which says nothing about its bytes.
    """
    try:
        # COMMIT holds the manifest's hash, the manifest every other file's. 1,000 bytes at most: a SHA-256 in
        # hexadecimal has 64.
        manifest_hash = durable.read_regular_file(checkpoint / "COMMIT", 1000)
        if not manifest_hash:
            return "its COMMIT is empty"
        content = durable.read_regular_file(checkpoint / "manifest.json", durable.JSON_LIMIT)
        if hashlib.sha256(content).hexdigest().encode() != manifest_hash:
            return "manifest.json is damaged"
        manifest = read_manifest(checkpoint)
        missing = [name for name in _REQUIRED if name not in manifest.files]
        # The names are part of paths from here on: "../model.safetensors" would lead out of the folder.
        if missing or not all(map(durable.is_file_name, manifest.files)):
            return f"manifest.json does not list {missing[0] if missing else 'files of this folder alone'}"
        for name, record in manifest.files.items():
            if durable.hash_file(checkpoint / name) != (record.bytes, record.sha256):
                return f"{name} is damaged"
        # A checkpoint whose files agree with each other can still stand under a name that somebody gave it.
        progress = read_progress(checkpoint)
        if step_name(progress.step) != checkpoint.name or manifest.step != progress.step:
            return f"state.json is of step {progress.step}, manifest.json of step {manifest.step}"
        if (progress.best_step or 0) > progress.step:
            return f"state.json is of step {progress.step}, and its best step is {progress.best_step}"
        return None
    except UnreadableError:
        raise
    except NotADirectoryError:
        return "it is no folder"
    except OSError as error:
        name = Path(error.filename or checkpoint).name
        if error.errno not in _NOT_THERE:
            raise _unreadable_error(Path(error.filename or checkpoint), error) from error
        return "it was never committed" if name == "COMMIT" else f"{name} is missing"
    except VitkitError as error:
        return str(error).rstrip(".")


def read_manifest(checkpoint: Path) -> Manifest:
    """Read a checkpoint's `manifest.json`.

    Raises:
        VitkitError: it is damaged.
        UnreadableError: it cannot be read.
    """
    return _read(Manifest, checkpoint / "manifest.json")


def read_progress(checkpoint: Path) -> Progress:
    """Read how far the run was when a checkpoint was made.

    Raises:
        VitkitError: `state.json` is damaged.
        UnreadableError: it cannot be read.
    """
    return _read(Progress, checkpoint / "state.json")


def _read(kind: type[_T], path: Path) -> _T:
    """Read a dataclass from JSON."""
    try:
        data = durable.read_regular_file(path, durable.JSON_LIMIT)
    except OSError as error:
        raise _unreadable_error(path, error) from error
    return from_json(kind, durable.parse_json(data, path), str(path))


def load_checkpoint(checkpoint: Path, state: TrainState) -> Manifest:
    """Put the weights, optimiser state and progress of a whole checkpoint into `state`, bit for bit.

    Returns:
        Its manifest: the environment and the options it was written with.

    Raises:
        VitkitError: it is of another model or optimiser, or was damaged in the meantime.
    """
    manifest, progress, modules = read_manifest(checkpoint), read_progress(checkpoint), _modules(state)
    # Compared before anything is loaded: without an average or an objective's state that the run has, or with
    # one that it has not, training would go on as another run.
    for name, what in (
        ("average", "Polyak average of the weights (polyak)"),
        ("objective", "state of an objective (parameters or buffers of the loss)"),
        ("averaged_objective", "Polyak average of the objective's parameters"),
    ):
        if (name in modules) != (f"{name}.safetensors" in manifest.files):
            has, wants = ("no", "one") if name in modules else ("a", "none")
            raise VitkitError(
                f"{checkpoint} holds {has} {what}, but the run's options ask for {wants}. {_EDITED}"
            )
    for name, module in modules.items():
        try:
            module.load_state_dict(_read_model(checkpoint / f"{name}.safetensors", module))
        except RuntimeError as error:
            content = "state of another objective" if "objective" in name else "weights of another model"
            # Its first line names the class, the next ones keys and shapes, of which two are enough.
            lines = [line.strip() for line in str(error).splitlines()]
            raise VitkitError(
                f"{checkpoint} holds the {content} than the run's options describe: "
                f"{' '.join(lines[1:3] or lines)} {_EDITED}"
            ) from error
    parameters = {str(index): parameter for index, parameter in enumerate(_parameters(state.optimizer))}
    tensors = read_safetensors(
        checkpoint / "optimizer.safetensors",
        # "12.exp_avg" is divided between the processes as parameter 12 is.
        lambda name, value: gradients.divide_like(value, parameters.get(name.partition(".")[0])),
    )
    states: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        index, _, name = key.partition(".")
        states.setdefault(index, {})[name] = value
    # A parameter that never had a gradient has no state, hence <=. A state is of its parameter's shape, or a
    # scalar: the number of steps that Adam counts.
    fits = states.keys() <= parameters.keys() and all(
        own.keys() == optim.state_names(state.optimizer, parameters[index])
        and {value.shape for value in own.values()} <= {torch.Size(), parameters[index].shape}
        for index, own in states.items()
    )
    if not fits:
        raise VitkitError(
            f"{checkpoint} holds the state of another optimiser than the run's options describe. {_EDITED}"
        )
    # Not by its `load_state_dict`, which would turn a bfloat16 momentum into float32, the parameter's type.
    state.optimizer.state.clear()
    for index, parameter in parameters.items():
        own = {name: value.to(parameter.device) for name, value in states.get(index, {}).items()}
        state.optimizer.state[parameter] = own
    state.progress = progress
    return manifest


def load_weights(checkpoint: Path) -> dict[str, Tensor]:
    """Read the weights of a checkpoint that a model is used with: the Polyak average where there is one.

    Raises:
        VitkitError: the file is damaged.
    """
    return _read_model(weights_file(checkpoint))


def load_objective(checkpoint: Path) -> dict[str, Tensor]:
    """Read the state of the objective that goes with `load_weights`: averaged where there is an average.

    It is empty where the objective has none.

    Raises:
        VitkitError: the file is damaged.
    """
    files = read_manifest(checkpoint).files
    names = [name for name in ("averaged_objective", "objective") if f"{name}.safetensors" in files]
    return dict(read_safetensors(checkpoint / f"{names[0]}.safetensors")) if names else {}


def _read_model(path: Path, module: nn.Module | None = None) -> dict[str, Tensor]:
    """Read a model's parameters; of a sharded `module`, this process's parts."""
    owners = {} if module is None else module.state_dict()
    return dict(read_safetensors(path, lambda name, value: gradients.divide_like(value, owners.get(name))))


def weights_file(checkpoint: Path) -> Path:
    """Return the path of the file that `load_weights` reads.

    Raises:
        VitkitError: the manifest is damaged.
    """
    # By the manifest and not by the folder, where a file that the manifest does not list may be anything.
    averaged = "average.safetensors" in read_manifest(checkpoint).files
    return checkpoint / ("average.safetensors" if averaged else "model.safetensors")


def step_name(step: int) -> str:
    """Give the name of the folder that holds a step's checkpoint."""
    return f"step-{step:08d}"


def step_of(checkpoint: Path) -> int:
    """Give the step whose checkpoint a folder with such a name holds."""
    return int(checkpoint.name.removeprefix("step-"))


def newest_first(folder: Path) -> list[Path]:
    """List the paths with the name of a checkpoint, the newest first; a file or a link may be among them.

    Raises:
        UnreadableError: the system refuses to list the folder.
        VitkitError: there is a file in its place.
    """
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries]
    except FileNotFoundError as error:
        if os.path.islink(folder):  # a link to a disk that is not there now, which is not "no checkpoints"
            raise _unreadable_error(folder, error) from error
        return []
    except NotADirectoryError:
        raise VitkitError(
            f"{folder} is a file, and checkpoints are kept in a folder of this name. Move the file away, "
            "then run the same command again."
        ) from None
    except OSError as error:
        raise _unreadable_error(folder, error) from error
    # `step_name` pads to eight digits, and no run reaches a step of more than 15 (`MOST_STEPS` has 13). The
    # last condition drops names with more zeros than `step_name` writes.
    steps = sorted({int(match[1]) for name in names if (match := re.fullmatch(r"step-([0-9]{8,15})", name))})
    return [folder / step_name(step) for step in reversed(steps) if step_name(step) in names]


def commit_size(checkpoint: Path) -> int | None:
    """Measure COMMIT, in bytes; None where there is none, 0 where something else than a folder has the name.

    None means that the folder was never committed and may be removed. A file under a checkpoint's name was
    not made by an interrupted save, so it counts as damaged.

    Raises:
        UnreadableError: the system refuses to say whether it is there.
    """
    try:
        return os.stat(checkpoint / "COMMIT").st_size
    except FileNotFoundError as error:
        if os.path.islink(checkpoint) and not os.path.exists(checkpoint):
            raise _unreadable_error(checkpoint, error) from error  # a link to a disk that is not there now
        return None
    except NotADirectoryError:
        return 0
    except OSError as error:
        raise _unreadable_error(checkpoint, error) from error


def was_never_committed(checkpoint: Path) -> bool:
    """Whether there is surely no COMMIT, so that the folder may be removed."""
    try:
        return commit_size(checkpoint) is None
    except UnreadableError:
        return False  # nothing committed is removed because it could not be read


def _unreadable_error(path: Path, error: OSError) -> UnreadableError:
    """Make the error for a path that the system refuses to read."""
    return UnreadableError(
        f"{path} cannot be read: {error.strerror or error}. It may well be whole, so nothing was changed or "
        "removed. Make it readable (is the disk there, are its permissions right, are too many files open?), "
        "then run the same command again."
    )


def clean_up(run: Path, checkpoints: Survey) -> list[Path]:
    """Remove the leftovers of killed saves, and set damaged checkpoints aside.

    Their steps will be made again. The caller holds the run's lock.

    Returns:
        The new paths of the damaged ones.

    Raises:
        VitkitError: the disk refused.
    """
    folder = run / FOLDER
    try:
        for path in checkpoints.uncommitted:
            remove(path)
        for leftover in folder.glob(".step-*.tmp"):  # the hidden folders of `commit` and `remove`
            remove(leftover)
        return [set_aside(path) for path in checkpoints.damaged]
    except OSError as error:
        raise VitkitError(
            f"{folder} could not be tidied: {error.strerror or error}. Nothing that was committed was "
            "removed. Mend that, then run the same command again."
        ) from error


def list_set_aside(run: Path) -> list[Path]:
    """List everything of a run folder that was damaged and set aside, now or earlier."""
    return sorted([*(run / FOLDER).glob("damaged-*"), *run.glob("damaged-*")])


def set_aside(path: Path) -> Path:
    """Rename a damaged file or folder, so that it is neither used nor lost; returns the new path.

    `step-00000120` becomes `damaged-step-00000120`, or `damaged-step-00000120-2` where there is one already.

    Raises:
        OSError: the disk refused.
    """
    for number in itertools.count(1):
        place = path.with_name(f"damaged-{path.name}" + (f"-{number}" if number > 1 else ""))
        if _mode(place) is None:
            break
    os.rename(path, place)
    durable.sync_folder(path.parent)
    return place


def remove(path: Path) -> None:
    """Remove a folder or a file, if it is there.

    It is renamed first and then removed: a process that is killed in between leaves a hidden folder, which
    the next run removes, and never half a checkpoint under a checkpoint's name.

    Raises:
        OSError: the disk refused.
    """
    mode = _mode(path)
    if mode is None:
        return
    trash = path if path.name.startswith(".") else path.with_name(f".{path.name}.{os.getpid()}.removed.tmp")
    if trash != path:  # a hidden name is no checkpoint's, and need not be taken away first
        shutil.rmtree(trash, ignore_errors=True)  # left by a killed process that had the same process number
        os.rename(path, trash)
    if stat.S_ISDIR(mode):
        shutil.rmtree(trash)
    else:
        os.unlink(trash)


def _mode(path: Path) -> int | None:
    """Give the file mode of a path, links not followed; None only where nothing has this name."""
    # Not `os.path.exists`, which answers "no" to every error: a path that cannot be looked at is there.
    try:
        return os.lstat(path).st_mode
    except FileNotFoundError:
        return None


ENDED = "ended.json"
"""The record of a run that has ended for good, as the runs of a series do: with many of them, checkpoints
that nobody continues would fill the disk."""


@dataclass(frozen=True)
class Ended:
    """The contents of `ended.json`."""

    step: Count
    """The step of the last checkpoint."""
    environment: Mapping[str, Any]
    """The environment that it was computed in, as its manifest had it."""


def read_ended(run: Path) -> Ended | None:
    """Read the record of a run's removed checkpoints; None where they were not removed.

    Raises:
        VitkitError: the record is damaged.
    """
    return read(Ended, run / ENDED)


def remove_checkpoints(run: Path) -> None:
    """Remove the checkpoints of a run whose model and result are written; damaged ones set aside stay.

    A kill at any moment leaves whole checkpoints or none, and the same call goes on. Without a whole
    checkpoint nothing is removed: there is something to look into.

    Raises:
        VitkitError: the checkpoints cannot be read, or are behind a link.
        OSError: the disk refused.
    """
    durable.refuse_links(run)
    last = survey(run).whole
    if last is not None:
        manifest = read_manifest(last)
        # Before anything is removed: a run with this record is not trained again for want of a checkpoint.
        write(run / ENDED, Ended(manifest.step, manifest.environment))
    elif not (run / ENDED).exists():
        return
    for checkpoint in reversed(newest_first(run / FOLDER)):  # the last one goes last
        remove(checkpoint)
    for leftover in (run / FOLDER).glob(".step-*.tmp"):  # of a removal that was cut short
        remove(leftover)
    # Of a kill while the record was written: nothing else is written there any more.
    durable.remove_leftovers(run)
