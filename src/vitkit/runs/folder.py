"""Find out the kind of a path, lock the folder of a run, and write a new folder so that it appears complete.

A run folder:

config.json                 the run, written before anything else
data.json                   counts, class names, how splits were made, files that could not be read
image-files.npy             size and time of every image file
metrics.jsonl               loss, learning rate and validation by step: the same bytes however often it was
                            resumed
diverged.json               why it ended before its last step, where its numbers were not finite
speed.jsonl                 images/s and memory, by the clock
checkpoints/                what a resume needs
model.safetensors, model.json   the finished model: enough to predict anywhere
evaluation/                 by split, numbers (.json) and predictions (.npy)
report.html
.lock                       held by the process that trains
"""

import errno
import html
import itertools
import os
import re
import shlex
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vitkit.durable import moved_error, refuse_links, require_regular_file
from vitkit.engines.libraries import DESCRIPTION
from vitkit.errors import VitkitError
from vitkit.models.zoo import zoo_name
from vitkit.runs.config import Run, parse_run, read_config
from vitkit.weights.format_names import ENDINGS
from vitkit.weights.published import is_address, near_published

Kind = Literal["run", "unfinished run", "series", "exported model", "checkpoint", "address", "nothing"]
"""The kinds of paths that a person gives. An unfinished run has not written its model yet; a checkpoint is
any other file or folder that is there; an address, or the name of a published checkpoint, is downloaded."""
SERIES = "series.json"
"""The record of a series of runs, by which its folder is recognised."""
Contents = Literal["weights", "images", "both", "nothing"]
"""The contents of a path, for somebody who wants to train."""
TABLES = (".csv", ".parquet", ".zip")
"""Endings of files that list images or hold them; a .tar holds images unless it is a .pth.tar."""
OWN_FOLDERS = frozenset({"checkpoints", "evaluation", "inspect"})
"""Folders that vitkit writes into the folder of a run, some with pictures."""


@dataclass(frozen=True)
class Owner:
    """A run, series, study or comparison that is to work in a folder, which is compared with its record."""

    kind: str
    """Its kind, in words: "study"."""
    record: str
    """The name of its record in the folder: "study.json"."""
    changes: Callable[[Path], Sequence[str]]
    """Lists the options in which the record in a folder differs, as "--steps 20 -> 30"; none: it is the same.
    It raises the errors of a damaged record."""
    resumes: bool = False
    """Whether the folder must hold it already."""
    advise: Callable[[Path, Sequence[str]], str] = lambda folder, changes: ""
    """Says what else to do where the options differ, as a sentence after a space."""

    def has_begun(self, folder: Path) -> bool:
        """Whether it is what a folder holds, with the same options."""
        return (folder / self.record).exists() and not self.changes(folder)

    def refuse_others(self, folder: Path) -> bool:
        """Refuse a folder that holds something else; returns whether it has begun there.

        Raises:
            VitkitError: the folder holds other files, or a record of other options; or it is new, and the
                owner resumes.
        """
        if not (folder / self.record).exists():
            if not is_new_folder(folder):
                raise VitkitError(f"{folder} is there already and holds no {self.kind}. Give another --out.")
            if self.resumes:
                raise VitkitError(
                    f"{folder} holds no {self.kind}: it has no {self.record}. Give the folder of one "
                    "that has begun."
                )
            return False
        changes = self.changes(folder)
        if changes:
            listed = "\n  ".join(changes)
            raise VitkitError(
                f"{folder} holds another {self.kind}:\n  {listed}\nGive another --out, or the options that "
                f"it was begun with.{self.advise(folder, changes)}"
            )
        return True


@dataclass(frozen=True)
class Place:
    """A path or an address that a person gave, and its kind."""

    name: str
    path: Path
    """The name as a path; nothing is at the path of an address."""
    kind: Kind
    config: Mapping[str, Any] | None = None
    """The contents of the `config.json` of a run, finished or not; None where it is no run."""

    def run(self) -> Run:
        """Return the configuration of the run.

        Raises:
            VitkitError: it is no run folder, or its record is damaged.
        """
        return parse_run(read_config(self.path) if self.config is None else self.config, self.path)


def kind_of(path: str | Path | Place) -> Place:
    """Find out the kind of a path; no file is read but a `config.json`, once.

    A folder whose `config.json` is another library's, or is damaged, counts as a checkpoint: the function
    that reads its weights explains what is wrong.
    """
    if isinstance(path, Place):
        return path
    name, folder = str(path), Path(path)
    if is_address(path):
        return Place(name, folder, "address")
    try:
        if not folder.is_dir():
            return Place(name, folder, "checkpoint" if folder.exists() else "nothing")
        is_series, is_export = ((folder / record).is_file() for record in (SERIES, DESCRIPTION))
        # Both files are required: a run that was killed between writing them has not finished.
        has_model = all((folder / f"model.{end}").exists() for end in ("safetensors", "json"))
        has_config = (folder / "config.json").exists()
    except (OSError, ValueError):  # a name that no file can have, or a folder that may not be looked into
        return Place(name, folder, "nothing")
    config = None
    if has_config:
        with suppress(VitkitError):
            config = read_config(folder)
    if is_series or is_export:
        return Place(name, folder, "series" if is_series else "exported model", config)
    if config is None:
        return Place(name, folder, "checkpoint")
    return Place(name, folder, "run" if has_model else "unfinished run", config)


def is_checkpoint(name: str) -> bool:
    """Whether a name is a path or an address of a checkpoint, there or not, and not the name of a model."""
    if kind_of(name).kind != "nothing" or name.endswith(ENDINGS):
        return True
    return "/" in name and zoo_name(name) == name and not re.match(r"[^/]*(vit|bit|resnet)", name, re.I)


def contents_of(place: Place) -> Contents:
    """Decide whether a path holds weights or images, by the names of files alone.

    Args:
        place: by `kind_of`.
    """
    path = place.path
    if place.kind == "nothing":
        return "images" if place.name == "digits" or _lists_images(place.name) else "nothing"
    if place.kind == "address":
        return "weights"
    if not path.is_dir():
        return "images" if _lists_images(path.name) else "weights"
    if place.kind != "checkpoint" or any(file.name.endswith(ENDINGS) for file in path.iterdir()):
        above = [path, *(path / name for name in ("train", "val", "test"))]
        classes = [folder for folder in _folders_with(path, _is_image) if folder.parent in above]
        return "both" if len(classes) > 1 else "weights"
    with_images = _folders_with(path, lambda name: _lists_images(name) or _is_image(name))
    return "nothing" if next(with_images, None) is None else "images"


def _folders_with(folder: Path, fits: Callable[[str], bool], floors: int = 3) -> Iterator[Path]:
    """Yield each folder, from `folder` down, that holds a file whose name fits.

    Hidden folders and `OWN_FOLDERS` are skipped. Three floors hold train/, its class folders, and groups in
    them; the depth is limited because links may lead round in a circle.
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
    # Here, because it loads numpy, and a wrong option is refused at once.
    from vitkit.data.layouts.folders import IMAGE_SUFFIXES

    return Path(name).suffix.lower() in (*IMAGE_SUFFIXES, ".npy")


_held: set[int] = set()
"""Descriptors of the locks that this process holds. They belong to the module, because a process that was
just forked has no other place to learn of them."""
_opening = threading.Lock()
"""Held while a lock is opened and noted in `_held`, and during a fork: a forked process knows every lock."""


def _drop_inherited() -> None:
    """Close the locks of the parent in a process that was just forked."""
    while _held:
        os.close(_held.pop())
    _opening.release()


# A lock of `flock` lasts until every process that has it open has closed it, so that workers which outlive
# their killed parent would hold its folder. A record lock of `fcntl` stays with its process, but it does not
# keep two threads apart, and is lost when any part of the process reads the file. A lock of an open file
# description is inherited as that of `flock` is.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_drop_inherited
    )


def require_locked(folder: Path) -> None:
    """Refuse a run folder that is not the one that this process has locked: it was moved or replaced.

    Raises:
        VitkitError: it is another folder, or there is none.
    """
    lock = folder / ".lock"
    if not (lock.exists() and any(os.path.samestat(lock.stat(), os.fstat(held)) for held in _held)):
        raise moved_error(folder)


class BusyError(VitkitError):
    """Another process has locked a folder."""


@contextmanager
def lock_folder(folder: Path) -> Iterator[Path]:
    """Lock a run folder for this process; the folder is made where there is none.

    The lock ends with the process, however it ends, even if processes that it started live on: a killed run
    can be continued at once.

    Raises:
        BusyError: another process has locked it.
        VitkitError: it cannot be locked, or a link in it leads out of it.
    """
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
            raise BusyError(
                f"Another process is at work in {folder}. Wait for it, stop it, or choose another --out."
            ) from None
        except OSError as error:  # some network disks have no locks
            raise VitkitError(
                f"{path} cannot be locked: {error.strerror}. Choose a folder on another disk with --out."
            ) from error
        refuse_links(folder)
        yield folder
    finally:
        if descriptor in _held:  # a forked process has closed it
            _held.remove(descriptor)
            os.close(descriptor)


Numbered = Callable[[], Iterator[Path]]
"""Yields the folders to choose from where none is given, without end."""


def folders_for(owner: Owner, given: Path | None, numbered: Numbered) -> Iterator[tuple[Path, bool]]:
    """Yield the folders that `claim` would lock, the first choice first; nothing is made or locked.

    Yields:
        Each folder, and whether it holds the run or series already.

    Raises:
        VitkitError: the given folder holds something else.
    """
    if given is not None:
        yield given, owner.refuse_others(given)
        return
    for folder in itertools.takewhile(Path.is_dir, numbered()):
        if owner.has_begun(folder):
            yield folder, True
    yield from ((folder, False) for folder in numbered() if is_new_folder(folder))


@contextmanager
def claim(owner: Owner, given: Path | None, numbered: Numbered = lambda: iter(())) -> Iterator[Path]:
    """Lock the folder of a run or a series, as `lock_folder` does: the given one, else one below `runs/`.

    Without a given folder, the folder that holds this run or series already is taken, else the first new one.
    Folders that another process has locked are skipped, so that runs begun at the same time take different
    folders.

    Args:
        owner: the run or series.
        given: the folder.
        numbered: yields the folders to choose from where none is given.

    Raises:
        VitkitError: the given folder holds something else, before anything is made; another process holds it;
            or a folder cannot be locked.
    """
    for folder, has_begun in folders_for(owner, given, numbered):
        with ExitStack() as lock:
            try:
                lock.enter_context(lock_folder(folder))
            except BusyError:
                if given is not None:
                    raise
                continue
            # Another process may have begun there before the lock.
            if given is not None:
                owner.refuse_others(folder)
            elif not (owner.has_begun(folder) if has_begun else is_new_folder(folder)):
                continue
            yield folder
            return


def is_new_folder(folder: Path) -> bool:
    """Whether a run may begin in a folder: it does not exist, or holds nothing but hidden files."""
    if not folder.is_dir():
        return not os.path.lexists(folder)
    return all(path.name[0] == "." for path in folder.iterdir())


def numbered_folders(data: str, model: str, ending: str = "") -> Iterator[Path]:
    """Yield the default folders of a run below `runs/`, without end: DATA-MODEL, DATA-MODEL-2 and so on."""
    # The name of a start's model is what its file says, with whatever characters.
    model = re.sub(r"[/\0-\x1f\x7f]", "-", model)
    name = f"{data}-{model}{ending}"
    for number in itertools.count(1):
        yield Path("runs") / (name if number == 1 else f"{name}-{number}")


UNFINISHED = ".unfinished"
"""The end of the name of a hidden folder in which a result is made."""


def refuse_taken(out: Path) -> None:
    """Refuse a destination that cannot be written, before work begins.

    Raises:
        VitkitError: it is there already, or would be inside a file.
    """
    if out.exists():
        raise VitkitError(f"{out} is there already. Choose another name, or remove it first.")
    blocking = next((parent for parent in out.parents if parent.exists() and not parent.is_dir()), None)
    if blocking is not None:
        raise VitkitError(f"{blocking} is a file, and {out} would be in it: choose another place.")


def require_folder(out: str | Path | None) -> Path | None:
    """Refuse a place where no folder can be written, before work begins; return its path, None where none is
    given.

    Raises:
        VitkitError: it is a file, would be inside one, or may not be written.
    """
    if out is None:
        return None
    out = Path(out)
    try:
        there = next(place for place in (out, *out.parents) if place.exists())
    except OSError as error:  # a folder on the way that may not be looked into, or a name that is too long
        raise _no_folder(out, error) from None
    if not there.is_dir():
        what = "is a file" if there == out else f"would be in {there}, which is a file"
        raise VitkitError(f"{out} {what}: --out names a folder. Give another name.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise VitkitError(
            f"This user may not write to {there}, and so not to {out}. Give another --out, or change the "
            "permissions of that folder."
        )
    return out


def make_folder(out: Path) -> None:
    """Make a folder and its parents, unless they are there.

    Raises:
        VitkitError: it cannot be made.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _no_folder(out, error) from error


def _no_folder(out: Path, error: OSError) -> VitkitError:
    return VitkitError(
        f"No folder can be made at {out} ({error.strerror}): expected a place that this user may write to. "
        "Give another name."
    )


@contextmanager
def beside(out: Path) -> Iterator[Path]:
    """Make a temporary folder on the same disk as `out`, from which the finished result is moved there.

    It is removed afterwards, and so are new parents of `out` if they are empty, and the temporary folders of
    killed processes that were writing `out`.
    """

    made = [parent for parent in out.parents if not parent.exists()]
    require_folder(out.parent)
    make_folder(out.parent)
    for leftover in out.parent.glob(f".{escape(out.name)}.*{UNFINISHED}"):
        if leftover.is_dir() and not leftover.is_symlink():
            _remove_dead(leftover)
    folder, lock = _make_locked(out)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
        with suppress(OSError):  # not empty: the work succeeded
            for parent in made:
                parent.rmdir()


def _make_locked(out: Path) -> tuple[Path, int]:
    """Make a hidden folder beside `out`, and lock it as long as this process lives.

    Returns:
        The folder, and the descriptor of its lock.
    """
    import fcntl

    while True:
        folder = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=UNFINISHED, dir=out.parent))
        # Before it is locked another process may remove it as a leftover: then a new one is made.
        try:
            lock = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = True
        except BlockingIOError:
            held = False
        except OSError:  # a disk without locks, where no folder is taken for a leftover
            held = True
        if held and folder.exists():
            return folder, lock
        os.close(lock)


def _remove_dead(folder: Path) -> None:
    """Remove a folder that no living process has locked; on a disk without locks nothing is removed."""
    import fcntl

    with suppress(OSError):
        lock = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)


def require_runs(folder: str | Path) -> Path:
    """Refuse a folder of runs that is not there."""
    path = Path(folder)
    if not path.is_dir():
        raise VitkitError(
            f"{folder} is no folder: expected a folder of run folders. Name another; vitkit train makes "
            "runs/ in the working folder."
        )
    return path


def sort_out(given: str) -> tuple[str, str]:
    """Tell whether a path that is given alone holds weights to begin from or images to train on.

    Args:
        given: a path, an address or the name of a published start.

    Returns:
        The start and the images, one of which is "".

    Raises:
        VitkitError: it holds both weights and images, or neither.
    """
    place = kind_of(given)
    contents, quoted = contents_of(place), shlex.quote(given)
    if contents == "both":
        raise VitkitError(
            f"{given} holds weights and class folders of images: expected one of them. To begin from its "
            f"weights: vitkit finetune {quoted} PATH. To train on its images: vitkit finetune --data "
            f"{quoted}."
        )
    if contents == "nothing":
        there = "neither" if place.path.exists() else "no such path"
        raise VitkitError(
            f"Expected images to train on or weights to begin from, found {there} at {given}."
            f"{near_published(place.path)} vitkit finetune PHOTOS takes a folder of class folders, a .csv or "
            "Parquet files; vitkit starts lists weights by name."
        )
    return ("", given) if contents == "images" else (given, "")


if TYPE_CHECKING:
    PathOfSystem = Path
else:
    PathOfSystem = type(Path())  # before Python 3.12 `Path` itself cannot be extended
HEIGHT = 640
"""Pixels of the report in a notebook: its headline and its curves are seen, the rest scrolls."""


class TrainedFolder(PathOfSystem):
    """The folder of a run, of several runs or of a study; a notebook shows its report."""

    study: Any = None
    """The result of a study; None for runs, whose results are in their folder."""

    def with_segments(self, *segments: Any) -> Path:
        """Return a plain path for what is in the folder (Python 3.12 and later)."""
        return Path(*segments)

    def _repr_html_(self) -> str | None:
        """Return the report, with curves, accuracy in a sentence and mistakes; None without one."""
        report = self / "report.html"
        if not report.is_file():
            return None
        page = html.escape(report.read_text(encoding="utf-8"))
        return f'<iframe srcdoc="{page}" style="width:100%;height:{HEIGHT}px;border:0"></iframe>'
