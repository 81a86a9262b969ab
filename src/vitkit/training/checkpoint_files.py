"""The checkpoints of a run as files: their names, what they say of themselves, whether they are whole.

What was committed is removed for one reason only: newer checkpoints were committed after it. One that is
damaged is set aside under another name, `damaged-step-00000120`; one that cannot be read, because the disk or
the system refuses, stops the run and stays as it is.
"""

import errno
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from vitkit.config import from_json
from vitkit.durable import (
    JSON_LIMIT,
    hash_file,
    is_file_name,
    parse_json,
    read_regular_file,
    sync_folder,
)
from vitkit.errors import VitkitError

_T = TypeVar("_T")

FOLDER = "checkpoints"
"""The folder of a run folder that holds its checkpoints."""
_REQUIRED = ("model.safetensors", "optimizer.safetensors", "state.json")
"""The files of every checkpoint; an average and an objective's state are there where the run has them."""
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)
"""The system's errors when nothing, or a folder, has a file's name. Any other error (no permission, a disk
that fails, too many open files) says nothing about the file, which may be whole."""


class UnreadableError(VitkitError):
    """The system refuses to read a checkpoint, which may well be whole: nothing was changed."""


@dataclass(frozen=True)
class Progress:
    """The progress of a run: everything besides tensors that the next step depends on."""

    step: int = 0
    """Updates made so far."""
    best_value: float | None = None
    """The best value so far of the metric that is monitored; None before the first."""
    best_step: int | None = None
    """The step after which it was measured."""
    best_tie: float | None = None
    """The monitor's tie breaker at that step, which decides between equal values."""
    evaluations_since_best: int = 0
    """Evaluations without a better value, which `patience` counts."""
    window: Mapping[str, float] = field(default_factory=dict)
    """Sums of the training metrics since the last line of the log."""
    window_steps: int = 0
    """Steps in these sums."""
    log_bytes: int = 0
    """Length of the metrics log: what is longer belongs to steps that will be made again."""
    log_sha256: str | None = None
    """Hash of those bytes; none in checkpoints of early versions."""
    finished: bool = False
    """Whether no update follows: all steps are made, or patience was used up."""


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
    """Versions, processor, device and threads: `vitkit.training.checkpoint.environment`."""
    files: Mapping[str, FileHash]
    """Every file of the folder but the manifest and COMMIT, by name."""
    configuration: Mapping[str, Any] | None = None
    """The options of the run that made it; none in checkpoints of early versions."""


@dataclass(frozen=True)
class Survey:
    """The state of the checkpoints of a run folder. Those that are older than `whole` are not verified."""

    whole: Path | None
    """The newest checkpoint whose bytes are all as they were written."""
    damaged: Mapping[Path, str]
    """Newer ones that were committed and are damaged, with the reason."""
    uncommitted: tuple[Path, ...]
    """Folders of saves that were cut short."""
    lost: bool
    """Whether checkpoints were committed and none of them is whole."""


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
        return _follow_hashes(checkpoint)
    except UnreadableError:
        raise
    except NotADirectoryError:
        return "it is no folder"
    except OSError as error:
        name = Path(error.filename or checkpoint).name
        if error.errno not in _NOT_THERE:
            raise _unreadable(Path(error.filename or checkpoint), error) from error
        return "it was never committed" if name == "COMMIT" else f"{name} is missing"
    except VitkitError as error:
        return str(error).rstrip(".")


def _follow_hashes(checkpoint: Path) -> str | None:
    """Follow the hashes: COMMIT holds that of the manifest, the manifest those of all other files."""
    commit = read_regular_file(checkpoint / "COMMIT", 1000)  # bytes at most: it holds 64
    if not commit:
        return "its COMMIT is empty"
    manifest = read_regular_file(checkpoint / "manifest.json", JSON_LIMIT)
    if hashlib.sha256(manifest).hexdigest().encode() != commit:
        return "manifest.json is damaged"
    found = read_manifest(checkpoint)
    missing = [name for name in _REQUIRED if name not in found.files]
    # The names are part of paths from here on: "../model.safetensors" would lead out of the folder.
    if missing or not all(map(is_file_name, found.files)):
        return f"manifest.json does not list {missing[0] if missing else 'files of this folder alone'}"
    for name, record in found.files.items():
        if hash_file(checkpoint / name) != (record.bytes, record.sha256):
            return f"{name} is damaged"
    # A checkpoint whose files agree with each other can still stand under a name that somebody gave it.
    progress = read_progress(checkpoint)
    if step_name(progress.step) != checkpoint.name or found.step != progress.step:
        return f"state.json is of step {progress.step}, manifest.json of step {found.step}"
    if min(progress.window_steps, progress.log_bytes, progress.best_step or 0) < 0:
        return "state.json holds a number below 0"
    if (progress.best_step or 0) > progress.step:
        return f"state.json is of step {progress.step}, and its best step is {progress.best_step}"
    return None


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
    # In early versions the loss alone could decide between equal accuracies.
    return _read(Progress, checkpoint / "state.json", {"best_loss": "best_tie"})


def _read(kind: type[_T], path: Path, renamed: Mapping[str, str] | None = None) -> _T:
    """Read a dataclass from JSON; `renamed` maps the field names of early versions to those of today."""
    try:
        data = read_regular_file(path, JSON_LIMIT)
    except OSError as error:
        raise _unreadable(path, error) from error
    content = parse_json(data, path)
    if isinstance(content, dict):
        content = {(renamed or {}).get(key, key): value for key, value in content.items()}
    return from_json(kind, content, str(path))


def sweep(run: Path, found: Survey) -> list[Path]:
    """Remove what killed saves left behind, and set damaged checkpoints aside.

    Their steps will be made again. The caller holds the run's lock.

    Returns:
        The names under which the damaged ones are kept.

    Raises:
        VitkitError: the disk refused.
    """
    folder = run / FOLDER
    try:
        for path in found.uncommitted:
            remove(path)
        for leftover in folder.glob(".step-*.tmp"):  # the hidden folders of `save_checkpoint` and `remove`
            remove(leftover)
        return [set_aside(path) for path in found.damaged]
    except OSError as error:
        raise VitkitError(
            f"{folder} could not be tidied: {error.strerror or error}. Nothing that was committed was "
            "removed. Mend that, then run the same command again."
        ) from error


def set_aside(path: Path) -> Path:
    """Rename what is damaged, so that it is neither used nor lost; returns the new name.

    `step-00000120` becomes `damaged-step-00000120`, or `damaged-step-00000120-2` where there is one already.

    Raises:
        OSError: the disk refused.
    """
    number = 1
    while True:
        name = f"damaged-{path.name}" + (f"-{number}" if number > 1 else "")
        if _mode(path.with_name(name)) is None:
            os.rename(path, path.with_name(name))
            sync_folder(path.parent)
            return path.with_name(name)
        number += 1


def list_set_aside(run: Path) -> list[Path]:
    """List everything of a run folder that was damaged and set aside, now or earlier."""
    return sorted([*(run / FOLDER).glob("damaged-*"), *run.glob("damaged-*")])


def step_name(step: int) -> str:
    """Give the name of the folder that holds a step's checkpoint."""
    return f"step-{step:08d}"


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
            raise _unreadable(folder, error) from error
        return []
    except NotADirectoryError:
        raise VitkitError(
            f"{folder} is a file, and checkpoints are kept in a folder of this name. Move the file away, "
            "then run the same command again."
        ) from None
    except OSError as error:
        raise _unreadable(folder, error) from error
    # Eight digits are what `step_name` pads to, and no run reaches a number of more than 15 (`MOST_STEPS`).
    # The last condition drops names with more zeros than `step_name` writes.
    steps = sorted({int(match[1]) for name in names if (match := re.fullmatch(r"step-([0-9]{8,15})", name))})
    return [folder / step_name(step) for step in reversed(steps) if step_name(step) in names]


def commit_size(checkpoint: Path) -> int | None:
    """Measure COMMIT, in bytes; None where there is none, 0 where something else than a folder has the name.

    None means that the folder was never committed and may be removed. A file under a checkpoint's name was
    not made by an interrupted save, so it is kept as something damaged.

    Raises:
        UnreadableError: the system refuses to say whether it is there.
    """
    try:
        return os.stat(checkpoint / "COMMIT").st_size
    except FileNotFoundError as error:
        if os.path.islink(checkpoint) and not os.path.exists(checkpoint):
            raise _unreadable(checkpoint, error) from error  # a link to a disk that is not there now
        return None
    except NotADirectoryError:
        return 0
    except OSError as error:
        raise _unreadable(checkpoint, error) from error


def was_never_committed(checkpoint: Path) -> bool:
    """Whether there is surely no COMMIT, so that the folder may be removed."""
    try:
        return commit_size(checkpoint) is None
    except UnreadableError:
        return False  # nothing committed is removed because it could not be read


def _unreadable(path: Path, error: OSError) -> UnreadableError:
    """Make the error for a path that the system refuses to read."""
    return UnreadableError(
        f"{path} cannot be read: {error.strerror or error}. It may well be whole, so nothing was changed or "
        "removed. Make it readable (is the disk there, are its permissions right, are too many files open?), "
        "then run the same command again."
    )


def clear(path: Path) -> None:
    """Make a name free: by removing what was never committed, by setting aside anything else."""
    if was_never_committed(path):
        remove(path)
    else:
        set_aside(path)


def remove(path: Path) -> None:
    """Remove a folder or a file, if it is there.

    It is renamed first and then removed: a process that is killed in between leaves a hidden folder, which
    the next run sweeps up, and never half a checkpoint under a checkpoint's name.
    """
    mode = _mode(path)
    if mode is None:
        return
    trash = path if path.name.startswith(".") else path.with_name(f".{path.name}.{os.getpid()}.removed.tmp")
    if trash != path:  # a hidden name is no checkpoint's, and need not be taken away first
        shutil.rmtree(trash, ignore_errors=True)
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
