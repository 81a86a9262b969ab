"""Tell what a path is, and hold the folder of a run.

A run folder:

config.json                 the run, written before anything else
data.json                   counts, class names, how splits were made, files that could not be read
image-files.npy             size and time of every image file
metrics.jsonl               loss, learning rate and validation by step: the same bytes however often it was
                            resumed
diverged.json               why it ended before its last step, where its numbers became infinite
speed.jsonl                 images/s and memory, by the clock
checkpoints/                what a resume needs
model.safetensors, model.json   the finished model: enough to predict anywhere
evaluation/                 by split, numbers (.json) and predictions (.npy)
report.html
.lock                       held by the process that trains
"""

import errno
import itertools
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vitkit.durable import refuse_links, require_regular_file
from vitkit.engines.libraries import DESCRIPTION
from vitkit.errors import VitkitError
from vitkit.runs.config import Run, parse_run, read_config
from vitkit.runs.destination import make_folder
from vitkit.weights.format_names import ENDINGS
from vitkit.weights.published import find_start_named, is_address

Kind = Literal[
    "run",
    "unfinished run",
    "series",
    "exported model",
    "checkpoint",
    "address",
    "published name",
    "nothing",
]
"""Kinds of what a person names: the folder of a run, of one that has not written its model yet, of a series
of runs, or of an export; any other file or folder; where a checkpoint is fetched from; or no such path."""
SERIES = "series.json"
"""The record that makes a folder that of a series of runs."""
Contents = Literal["weights", "images", "both", "nothing"]
"""The contents of a path, for somebody who wants to train."""
TABLES = (".csv", ".parquet", ".zip")
"""Endings of files that list images or hold them; a .tar holds images unless it is a .pth.tar."""
OWN_FOLDERS = frozenset({"checkpoints", "evaluation", "inspect"})
"""Folders in that of a run; some of them hold pictures."""
Whose = Literal["mine", "new"] | VitkitError
"""Whether a folder holds what is to be kept there, or nothing yet; else the error that refuses it."""


@dataclass(frozen=True)
class Place:
    """A path or an address that a person gave, and what it is."""

    name: str
    kind: Kind
    config: Mapping[str, Any] | None = None
    """The contents of the `config.json` of a run."""

    @property
    def path(self) -> Path:
        """Return the path; of an address there is nothing."""
        return Path(self.name)

    @property
    def is_run(self) -> bool:
        """Whether it is the folder of a run, finished or not."""
        return self.config is not None

    @property
    def is_fetched(self) -> bool:
        """Whether it is somewhere else than on this machine."""
        return self.kind in ("address", "published name")

    def run(self) -> Run:
        """Return the configuration of the run.

        Raises:
            VitkitError: it is no run folder, or its record is damaged.
        """
        return parse_run(self.require_config(), self.path)

    def require_config(self) -> Mapping[str, Any]:
        """Return what its `config.json` holds; errors are those of `run`."""
        return read_config(self.path) if self.config is None else self.config


def kind_of(path: str | Path | Place) -> Place:
    """Find out what a path is; of the files there only a `config.json` is read, once.

    Other libraries have a `config.json` too, and a damaged one is nobody's: such a folder is a checkpoint,
    and whoever reads its weights says what is wrong with it.
    """
    if isinstance(path, Place):
        return path
    name, folder = str(path), Path(path)
    if is_address(path):
        return Place(name, "published name" if find_start_named(path) is not None else "address")
    try:
        if not folder.is_dir():
            return Place(name, "checkpoint" if folder.exists() else "nothing")
        is_series, is_export = ((folder / record).is_file() for record in (SERIES, DESCRIPTION))
        # Both files are asked for: a run that was killed between writing them has not finished.
        has_model = all((folder / f"model.{end}").exists() for end in ("safetensors", "json"))
        has_config = (folder / "config.json").exists()
    except (OSError, ValueError):  # a name that no file can have, or a folder that may not be looked into
        return Place(name, "nothing")
    config = None
    if has_config:
        with suppress(VitkitError):
            config = read_config(folder)
    if is_series or is_export:
        return Place(name, "series" if is_series else "exported model", config)
    if config is None:
        return Place(name, "checkpoint")
    return Place(name, "run" if has_model else "unfinished run", config)


def is_checkpoint(name: str) -> bool:
    """Whether a path or an address is meant, there or not; else it is the name of a model."""
    if kind_of(name).kind != "nothing" or name.endswith(ENDINGS):
        return True
    return "/" in name and not re.match(r"[^/]*(vit|bit|resnet)", name, re.IGNORECASE)


def contents_of(place: Place) -> Contents:
    """Find out whether a person who named a path meant weights or images; of a folder only names are read.

    Args:
        place: by `kind_of`.
    """
    path = place.path
    if place.kind == "nothing":
        return "images" if place.name == "digits" or _lists_images(place.name) else "nothing"
    if place.is_fetched:
        return "weights"
    if not path.is_dir():
        return "images" if _lists_images(path.name) else "weights"
    if place.kind != "checkpoint" or any(file.name.endswith(ENDINGS) for file in path.iterdir()):
        return "both" if _class_folders(path) > 1 else "weights"
    with_images = _folders_with(path, lambda name: _lists_images(name) or _is_image(name))
    return "nothing" if next(with_images, None) is None else "images"


def _class_folders(folder: Path) -> int:
    """Count the class folders in a folder, and those in its train/, val/ and test/."""
    above = [folder, *(folder / name for name in ("train", "val", "test"))]
    return sum(inside.parent in above for inside in _folders_with(folder, _is_image))


def _folders_with(folder: Path, fits: Callable[[str], bool], floors: int = 3) -> Iterator[Path]:
    """Yield a folder and those below it which hold a file whose name fits.

    Hidden folders are passed over, and those that vitkit writes into the folder of a run. Three floors are
    those of train/, its class folders, and groups in them; links may lead round in a circle.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        inside = sorted((entry for entry in entries if entry.name[0] != "."), key=lambda entry: entry.name)
        if any(fits(entry.name) for entry in inside):
            yield folder
        for entry in inside:
            if floors and entry.name not in OWN_FOLDERS and entry.is_dir():
                yield from _folders_with(Path(entry.path), fits, floors - 1)


def _lists_images(name: str) -> bool:
    """Whether a file of this name lists images: a table, or a list as VTAB has them."""
    lowered = name.lower()
    if lowered.endswith(".tar"):
        return not lowered.endswith(ENDINGS)
    return lowered.endswith(TABLES) or re.fullmatch(r"(train|val|test)\d*\.txt", name) is not None


def _is_image(name: str) -> bool:
    from vitkit.data.layouts.folders import IMAGE_SUFFIXES  # numpy: an option that is wrong does not wait

    return Path(name).suffix.lower() in (*IMAGE_SUFFIXES, ".npy")


_held: set[int] = set()
"""Descriptors of the locks that this process holds."""
_opening = threading.Lock()
"""Held while a lock is opened and noted in `_held`, and during a fork: no process inherits one in between."""


def _drop_inherited() -> None:
    """Close the locks of the parent in a process that was just forked."""
    while _held:
        os.close(_held.pop())
    _opening.release()


# A lock of `flock` lasts until every process that has it open has closed it, so that workers which outlive a
# parent that was killed would keep its folder. A record lock of `fcntl` stays with its process, but it does
# not keep two threads apart, is lost when any part of the process reads the file, and is not seen by vitkit's
# earlier versions.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_drop_inherited
    )


@contextmanager
def lock_folder(folder: Path) -> Iterator[Path]:
    """Hold a run folder for one process, and give it; it is made where there is none.

    The lock ends with the process, however it ends, and though processes that it started live on: a killed
    run can be continued at once.

    Raises:
        VitkitError: another process trains in it, it cannot be locked, or a link in it leads out of it.
    """
    with _try_lock(folder) as is_ours:
        if not is_ours:
            raise VitkitError(
                f"Another process is at work in {folder}. Wait for it, stop it, or choose another --out."
            )
        yield folder


@contextmanager
def claim(
    given: Path | None, numbered: Callable[[], Iterator[Path]], whose: Callable[[Path], Whose]
) -> Iterator[Path]:
    """Hold the folder of a run or a series, as `lock_folder` does: the given one, else one below `runs/`.

    Without a given folder, the one that holds this run or series already is taken, else the first new one.
    Folders that another process has locked are passed over, so that runs begun at the same time take
    different ones.

    Args:
        given: the folder.
        numbered: yields the folders that are looked at where none is given.
        whose: says whose a folder is.

    Raises:
        VitkitError: as `whose` has it for the given folder, before anything is made; another process holds
            it; or a folder cannot be locked.
    """
    if given is not None:
        _require_ours(whose(given))
        with lock_folder(given) as folder:
            _require_ours(whose(folder))  # another process may have begun there since
            yield folder
        return

    def holds(folder: Path) -> bool:
        return whose(folder) == "mine"

    there = itertools.takewhile(Path.is_dir, numbered())
    begun = ((folder, holds) for folder in there)
    new = ((folder, is_new_folder) for folder in numbered())
    for folder, fits in itertools.chain(begun, new):
        if fits(folder):
            with _try_lock(folder) as is_ours:
                if is_ours and fits(folder):  # it may have been begun since
                    yield folder
                    return


def foresee(
    given: Path | None, numbered: Callable[[], Iterator[Path]], whose: Callable[[Path], Whose]
) -> tuple[Path, bool]:
    """Find the folder that `claim` would hold, of which nothing is made or locked; its arguments are these.

    Returns:
        The folder, and whether it holds this run or series already.

    Raises:
        VitkitError: as `whose` has it for the given folder.
    """
    if given is not None:
        answer = whose(given)
        _require_ours(answer)
        return given, answer == "mine"
    for folder in itertools.takewhile(Path.is_dir, numbered()):
        if whose(folder) == "mine":
            return folder, True
    return next(folder for folder in numbered() if is_new_folder(folder)), False


def _require_ours(whose: Whose) -> None:
    if isinstance(whose, VitkitError):
        raise whose


def is_new_folder(folder: Path) -> bool:
    """Whether a run may begin in a folder: there is none, or it holds nothing but hidden files."""
    if not folder.is_dir():
        return not os.path.lexists(folder)
    return all(path.name[0] == "." for path in folder.iterdir())


@contextmanager
def _try_lock(folder: Path) -> Iterator[bool]:
    """Lock a folder, which is made where there is none; gives False where another process holds it."""
    import fcntl

    make_folder(folder)
    path = folder / ".lock"
    with _opening:
        try:
            # A link could lead out of the folder, and opening a pipe would wait.
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise VitkitError(
                f"{path} cannot be locked: expected a regular file, found a link. Remove it."
            ) from None
        _held.add(descriptor)
    try:
        require_regular_file(descriptor, path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            is_ours = False
        except OSError as error:  # some network disks have no locks
            raise VitkitError(
                f"{path} cannot be locked: {error.strerror}. Choose a folder on another disk with --out."
            ) from error
        else:
            refuse_links(folder)
            is_ours = True
        yield is_ours
    finally:
        if descriptor in _held:  # a forked process has closed it
            _held.remove(descriptor)
            os.close(descriptor)


def numbered_folders(run: Run, data_name: str, ending: str = "") -> Iterator[Path]:
    """Yield the folders below `runs/` that a run may be kept in where none is given; there is no last one."""
    # The name of a start's model is what its file says, with whatever characters.
    model = re.sub(r"[/\0-\x1f\x7f]", "-", run.model)
    name = f"{data_name}-{model}{ending}"
    for number in itertools.count(1):
        yield Path("runs") / (name if number == 1 else f"{name}-{number}")
