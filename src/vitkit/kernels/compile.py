"""Compile C files for this machine once, keep the libraries in the user's cache, and load them from there.

A kernel only ever saves time: whatever is in the way (no compiler, a full disk, a home that cannot be
written, a damaged file), there is no library but a reason why, and whoever asked computes without.
`VITKIT_NO_KERNELS=1` in the environment switches all kernels off.
"""

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SWITCH = "VITKIT_NO_KERNELS"
COMPILERS = ("cc", "gcc", "clang")
TIMEOUT = 60
"""Seconds for a compilation that takes one or two."""
DIGEST_BYTES = 32
_PROCESSOR_FIELDS = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags")
"""The properties that -march=native goes by, as /proc/cpuinfo names them."""


@dataclass(frozen=True)
class Source:
    """A C file of this folder, and how it is compiled."""

    path: Path
    flags: tuple[str, ...]
    features: frozenset[str] = frozenset()
    """Instruction sets that it needs, as /proc/cpuinfo names them."""
    includes: tuple[Path, ...] = ()
    """Other files of this folder that it includes."""


@dataclass(frozen=True)
class Built:
    """A library, or why there is none."""

    library: ctypes.CDLL | None
    reason: str = ""
    """A clause without a full stop; empty where there is a library."""


def load(source: Source, *, compile_it: bool) -> Built:
    """Load the library of a C file from the cache.

    The file's name is a hash of everything that decides its contents, and its last bytes are a hash of the
    others: a library cut short would not fail to load but end the process. What other users can write is not
    run, nor is it replaced.

    Args:
        source: what is compiled.
        compile_it: Whether it is compiled if it is not there yet, which takes a second or two.
    """
    if os.environ.get(SWITCH, "0") not in ("", "0"):
        return Built(None, f"{SWITCH} is set")
    try:
        path = _library_path(source)
        if not _is_whole(path):
            if not compile_it:
                return Built(None, "it has not been compiled yet")
            _compile(source, path)
        return Built(ctypes.CDLL(str(path)))
    except _Without as reason:
        return Built(None, str(reason))
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or b"").decode(errors="replace").strip().splitlines()
        return Built(None, f"the compiler failed: {lines[0] if lines else f'exit code {error.returncode}'}")
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:  # RuntimeError: there is no home
        return Built(None, f"it could not be compiled or loaded: {error}")


class _Without(Exception):  # noqa: N818 (nothing is wrong: a machine may be without a compiler)
    """Why this machine has no kernel."""


def _library_path(source: Source) -> Path:
    """Return where the library lies or would lie."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise _Without("kernels are compiled on Linux and x86-64 alone")
    processor = _processor()
    missing = source.features.difference(processor.split())
    if missing:
        raise _Without(f"the processor has no {', '.join(sorted(missing))}")
    parts = (
        source.path.read_bytes(),
        " ".join(source.flags).encode(),
        _compiler_version(),
        processor.encode(),
        *(included.read_bytes() for included in source.includes),
    )
    name = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    chosen = os.environ.get("VITKIT_CACHE")
    base = Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "vitkit"
    # A folder for each user: what lies there is run as code.
    return base.expanduser() / f"compiled-{os.getuid()}" / f"{source.path.stem}-{name}.so"


@functools.cache
def _processor() -> str:
    """Describe the first processor, and so all of them, by what a compiler would see of it."""
    first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return "\n".join(value.strip() for name, _, value in pairs if name.strip() in _PROCESSOR_FIELDS)


def _compiler() -> list[str]:
    """Return the command that begins a compilation: `CC`, as makefiles have it, or the first of the usual."""
    chosen = shlex.split(os.environ.get("CC", ""))
    names = (chosen[0],) if chosen else COMPILERS
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        raise _Without(f"there is no C compiler ({' or '.join(names)})")
    return [found, *chosen[1:]]


def _compiler_version() -> bytes:
    command = [*_compiler(), "--version"]
    return subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT).stdout


def _is_whole(path: Path) -> bool:
    """Whether the library is there as it was written.

    Raises:
        _Without: others can write to it or to its folder.
    """
    if not path.parent.is_dir():
        return False
    for entry in (path.parent, path):
        if os.path.lexists(entry) and not _is_own(entry):
            raise _Without(f"others than its owner can write to {entry}")
    try:
        contents = path.read_bytes()
    except FileNotFoundError:
        return False
    return hashlib.sha256(contents[:-DIGEST_BYTES]).digest() == contents[-DIGEST_BYTES:]


def _compile(source: Source, path: Path) -> None:
    """Compile a library to its place. Another process sees the whole file or none."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_own(path.parent):
        raise _Without(f"others than its owner can write to {path.parent}")
    descriptor, name = tempfile.mkstemp(suffix=".part", dir=path.parent)
    os.close(descriptor)
    new = Path(name)
    try:
        command = [*_compiler(), *source.flags, "-shared", "-fPIC", str(source.path), "-o", name, "-lm"]
        subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT)
        contents = new.read_bytes()
        new.write_bytes(contents + hashlib.sha256(contents).digest())  # loaders do not look behind the end
        new.chmod(0o700)
        new.replace(path)
    finally:
        with suppress(OSError):
            new.unlink(missing_ok=True)


def _is_own(path: Path) -> bool:
    """Whether nobody but this user can write to a file or folder; what others can write is not run."""
    status = path.lstat()
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
