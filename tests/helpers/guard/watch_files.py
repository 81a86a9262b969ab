"""Watch which files a Python process touches: no test reads or writes outside its own temporary folder.

`tests/conftest.py` installs the watch in the processes of pytest, and `sitecustomize.py` beside this file in
every Python process that they start: its folder is on PYTHONPATH. An offence is a line in the file that
`VITKIT_TEST_OFFENCES` names; the test during which it was written fails. Files that C code opens by itself
(Arrow's, safetensors') are not seen.
"""

import functools
import os
import sys
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[3]
OFFENCES = "VITKIT_TEST_OFFENCES"
"""The environment variable that names the file of offences."""
TEMPORARY = "VITKIT_TEST_TEMPORARY"
"""The environment variable that names the folders in which tests may write, separated as in PATH."""

_OWN = [str(path) for path in CHECKOUT.iterdir() if path.name not in ("runs", "dist", "build", "site")]
"""Tests may read these of the checkout: all but what commands make there."""
_SYSTEM = (
    "/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc", "/opt", "/proc", "/sys", "/dev", "/run", "/var/lib",
)  # fmt: skip
_DEVICES = ("/dev/", "/proc/")
_CACHES = ("/__pycache__/", "/.pytest_cache/", "/.hypothesis/")
"""Parts of the paths that Python and pytest write to by themselves."""
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES: dict[str, dict[int, int | None]] = {
    "os.chmod": {0: 2},
    "os.chown": {0: 3},
    "os.link": {0: 2, 1: 3},
    "os.mkdir": {0: 2},
    "os.remove": {0: 1},
    "os.rename": {0: 2, 1: 3},
    "os.rmdir": {0: 1},
    "os.symlink": {1: 2},  # what a link points to is not touched by making it
    "os.truncate": {0: None},
    "os.utime": {0: 3},
}
"""Audit events that change files: where each path stands among the arguments, and the folder it is below."""
_READS = ("os.listdir", "os.scandir")


@functools.cache
def temporary_folders(named: str) -> tuple[str, ...]:
    """Return the folders in which tests may read and write, with links resolved; `named` is as in PATH."""
    return tuple(os.path.realpath(folder) for folder in named.split(os.pathsep) if folder)


@functools.cache
def readable_folders() -> tuple[str, ...]:
    """Return what tests may read beside the temporary folders: the checkout's own, Python's, the system's."""
    python = [path for path in sys.path if os.path.isabs(path) and Path(path) != CHECKOUT]
    places = (*_OWN, *python, sys.prefix, sys.base_prefix, *_SYSTEM)
    return tuple(os.path.realpath(path) for path in places)


@functools.cache
def readable_starts() -> tuple[str, ...]:
    """Return how paths below `readable_folders` begin."""
    return tuple(folder + os.sep for folder in readable_folders())


def offence(event: str, arguments: tuple[Any, ...], writable: tuple[str, ...]) -> str:
    """Describe what an audit event touches that no test may touch; "" where nothing is wrong.

    Args:
        event: the name of the audit event.
        arguments: its arguments.
        writable: the folders in which everything is allowed.
    """
    if event == "open":
        paths = [_name(arguments[0])]
        mode, flags = arguments[1:3]
        as_text = isinstance(mode, str) and not set(mode).isdisjoint("wax+")
        writes = as_text or (isinstance(flags, int) and flags & _WRITING != 0)
    elif event in _CHANGES:
        places = _CHANGES[event].items()
        paths = [_name(arguments[at], None if below is None else arguments[below]) for at, below in places]
        writes = True
    elif event in _READS:
        paths, writes = [_name(arguments[0])], False
    else:
        return ""
    for name in paths:
        if "\0" in name or not name:
            continue
        if not writes and name.startswith(readable_starts()) and ".." not in name:
            continue  # the many files of imports, without a look at the disk
        place = os.path.abspath(name)
        parent, last = os.path.split(place)
        if not os.path.isdir(parent):
            continue  # fails, whatever was meant
        if writes or not os.path.exists(place):
            place = os.path.join(os.path.realpath(parent), last)
        else:
            place = os.path.realpath(place)
        if (
            _inside(place, writable)
            or place.startswith(_DEVICES)
            or any(part in place + "/" for part in _CACHES)
        ):
            continue
        if not writes and (_inside(place, readable_folders()) or not os.path.exists(place)):
            continue  # what is not there tells a test nothing
        if not writes and place in (str(CHECKOUT), os.getcwd()):
            continue  # listed by imports
        return f"{'writes' if writes else 'reads'} {place} ({event})"
    return ""


def _name(path: Any, folder: int | None = None) -> str:
    """Return a path of an audit event; "" for a descriptor, opened before, and for the folder at hand."""
    if not isinstance(path, str | bytes | os.PathLike):
        return ""
    name = os.fsdecode(path)
    if isinstance(folder, int) and folder >= 0 and not os.path.isabs(name):
        return os.path.join(os.readlink(f"/proc/self/fd/{folder}"), name)
    return name


def _inside(place: str, folders: tuple[str, ...]) -> bool:
    return any(place == folder or place.startswith(folder + os.sep) for folder in folders)


def install() -> None:
    """Write each offence of this process from now on to the file that `VITKIT_TEST_OFFENCES` names."""
    interesting = {"open", *_CHANGES, *_READS}

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        record = os.environ.get(OFFENCES) if event in interesting else None
        if record is None or arguments[0] == record:
            return
        message = offence(event, arguments, temporary_folders(os.environ.get(TEMPORARY, "")))
        if message:
            line = f"{message} in {' '.join(sys.orig_argv)[:200]}\n".encode(errors="replace")
            descriptor = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.write(descriptor, line)
            os.close(descriptor)

    sys.addaudithook(watch)
