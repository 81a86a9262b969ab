"""Compile C files for this machine once, keep the libraries in the user's cache, and load them from there.

A kernel only ever saves time: whatever is in the way (no compiler, a full disk, a home that cannot be
written, a damaged file), the caller gets a reason in place of a library, and computes without.
`VITKIT_NO_KERNELS=1` in the environment switches all kernels off.

A library is tried in a process of its own before it is loaded here, for it can end the process that loads it;
then its values are compared with PyTorch's or Pillow's, before it comes into the cache.
A failure is recorded beside the libraries, and the compilation is not tried again for a day.
"""

import ctypes
import hashlib
import os
import platform
import resource
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitkit.durable import cache_folder
from vitkit.text import visible

SWITCH = "VITKIT_NO_KERNELS"
COMPILERS = ("cc", "gcc", "clang")
TIMEOUT = 10
"""Seconds in which a compiler compiles on a core of its own; it takes one or two."""
LONGEST_TIMEOUT = 60
"""Seconds in which it compiles on a machine that is busy, at most. With no more than `TIMEOUT` such a machine
would lose its kernels, and a run its bits, to a clock."""
REMEMBERED = 24 * 3600
"""Seconds for which a failure is remembered, since a missing library may be installed meanwhile, and after
which the files of a killed compilation are stale."""
DIGEST_BYTES = 32
"""Bytes of the SHA-256 at the end of a library."""
MOST_BYTES = 1 << 24
"""The most bytes of a library, of which ours have some 50,000, and of a compiler's messages."""
LONGEST_REASON = 400
"""Characters of a reason that a record holds."""
_PROCESSOR_FIELDS = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags")
"""The properties that -march=native goes by, as /proc/cpuinfo names them."""
_TRIAL = "import ctypes, sys; sys.exit(not ctypes.CDLL(sys.argv[1]).trial())"


@dataclass(frozen=True)
class Source:
    """A C file, and how it is compiled. Its `int trial(void)` computes something small."""

    path: Path
    flags: tuple[str, ...]
    original: str
    """The library that it stands in for, with its version: "PyTorch 2.11.0"."""
    agrees: Callable[[ctypes.CDLL], bool]
    """Whether the compiled library gives the original's values."""
    features: frozenset[str] = frozenset()
    """Instruction sets that it needs, as /proc/cpuinfo names them."""


@dataclass(frozen=True)
class Built:
    """A library, or the reason why there is none."""

    library: ctypes.CDLL | None
    reason: str = ""
    """A clause without a full stop; empty where there is a library."""


def load(source: Source, *, compile_it: bool) -> Built:
    """Load the library of a C file from the cache.

    The file's name is a hash of the C files, the flags, the processor, the compiler's command and time of
    change, and the version of the original; a compiler behind another program (ccache) may change unnoticed.
    Its last bytes are a hash of its name and its other bytes, written when it had been tried and compared: a
    library cut short would not fail to load but end the process. A file that other users can write to is not
    run, nor is it replaced.

    Args:
        source: the C file.
        compile_it: whether it is compiled if it is not there yet, which takes a second or two.
    """
    if os.environ.get(SWITCH, "0") not in ("", "0"):
        return Built(None, f"{SWITCH} is set")
    try:
        path, compiler = _place(source)
        contents, library = _read_own(path) or b"", None
        if contents[-DIGEST_BYTES:] == _hash(path.name.encode(), contents[:-DIGEST_BYTES]):
            with suppress(OSError):  # it was compiled where the system had other libraries
                library = ctypes.CDLL(str(path))
        if library is None and compile_it:
            library = _compile(source, path, compiler)
        return Built(library, "" if library else "it has not been compiled yet")
    except _Without as reason:
        return Built(None, str(reason))
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home
        return Built(None, f"it could not be compiled or loaded: {error}")


def cached_beside(source: Source, suffix: str) -> Path:
    """Return the path of a file beside a compiled library that belongs to the same machine and versions.

    Raises:
        OSError: this machine has no library.
    """
    try:
        return _place(source)[0].with_suffix(suffix)
    except _Without as reason:
        raise OSError(str(reason)) from reason


class _Without(Exception):  # noqa: N818 (nothing is wrong: a machine may be without a compiler)
    """Why this machine has no kernel."""


class _TooLong(_Without):
    """A command did not end in its time."""


def _place(source: Source) -> tuple[Path, tuple[str, ...]]:
    """Find the place of a library and its compiler: `CC`, as makefiles have it, or the first of the usual.

    Returns:
        Where the library lies or would lie, in this user's cache, which may not be there yet. Of the
        compiler: when the program was last changed, in nanoseconds; its path; the first arguments of a
        compilation. CFLAGS is not used.

    Raises:
        _Without: the machine cannot have it.
    """
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise _Without("kernels are compiled on Linux and x86-64 alone")
    # The properties of the first processor, and so of all, that a compiler would look at.
    first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    processor = "\n".join(value.strip() for name, _, value in pairs if name.strip() in _PROCESSOR_FIELDS)
    if missing := source.features.difference(processor.split()):
        raise _Without(f"the processor has no {', '.join(sorted(missing))}")
    # A folder for each user: the files in it are run as code.
    folder = cache_folder() / f"compiled-{os.getuid()}"
    command = os.environ.get("CC", "")
    try:
        chosen = shlex.split(command)
    except ValueError as error:
        raise _Without(f"CC is no command ({error}): {command!r}") from None
    names = (chosen[0],) if chosen else COMPILERS
    if (program := next((path for name in names if (path := shutil.which(name))), None)) is None:
        raise _Without(f"there is no C compiler ({' or '.join(names)})")
    compiler = (str(Path(program).stat().st_mtime_ns), program, *chosen[1:])
    parts = (" ".join(source.flags), source.original, processor, *compiler)
    # It may include the C files beside it.
    texts = [path.read_bytes() for path in sorted(source.path.parent.glob("*.c"))]
    return folder / f"{source.path.stem}-{_hash(*map(os.fsencode, parts), *texts).hex()[:16]}.so", compiler


def _hash(*parts: bytes) -> bytes:
    return hashlib.sha256(b"\0".join(parts)).digest()


def _compile(source: Source, path: Path, compiler: Sequence[str]) -> ctypes.CDLL:
    """Compile a library to its place, and load it. Another process sees the whole file or none.

    Raises:
        _Without: the compiler fails, or failed before; or the library cannot be used.
    """
    folder = path.parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # What hangs would hang with the next file; any other failure may be this file's fault.
    failed = path.with_suffix(".failed")
    hanging = folder / f"{_hash(*map(os.fsencode, compiler)).hex()[:16]}.failed"
    for record in (failed, hanging):
        reason = (_read_own(record) or b"").decode(errors="replace")[:LONGEST_REASON]
        # Unprintable characters were not written here.
        if reason.isprintable() and reason and abs(time.time() - record.stat().st_mtime) < REMEMBERED:
            raise _Without(f"{reason} (remove {record} to have it tried again)")
    for entry in [*folder.glob("tmp*.part"), *folder.glob("*.failed")]:
        with suppress(OSError):  # another process may be sweeping as well
            if time.time() - entry.lstat().st_mtime > REMEMBERED:
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    with tempfile.TemporaryDirectory(".part", dir=folder, ignore_cleanup_errors=True) as work:
        new, sealed = Path(work, path.name), Path(work, "sealed")
        compilation = [*compiler[1:], *source.flags, "-shared", "-fPIC", str(source.path), "-o", str(new)]
        record = hanging
        try:
            _run([*compilation, "-lm"], "the compiler", {**os.environ, "TMPDIR": work})
            record = failed
            # Without the variables by which a sanitizer is loaded into this process alone.
            plain = {
                name: value
                for name, value in os.environ.items()
                if name != "LD_PRELOAD" and not name.endswith("SAN_OPTIONS")
            }
            trial = [sys.executable, "-I", "-S", "-c", _TRIAL, str(new)]
            _run(trial, "the trial of what was compiled", plain)
            library = ctypes.CDLL(str(new))
            if not source.agrees(library):
                raise _Without(f"it computes other values than {source.original}")
        except _Without as reason:
            record = record if isinstance(reason, _TooLong) else failed
            with suppress(OSError):  # where nothing can be written, the next process tries again
                record.touch(0o600)
                record.write_text(str(reason))
            raise
        # Another file, for the first one is in use. Loaders do not look behind the end.
        contents = new.read_bytes()
        sealed.write_bytes(contents + _hash(path.name.encode(), contents))
        sealed.chmod(0o700)
        sealed.replace(path)
    return library


def _run(command: Sequence[str], program: str, environment: Mapping[str, str]) -> None:
    """Run a command to its end, and end all processes that it has started.

    Args:
        command: a path and its arguments.
        program: its name in errors.
        environment: its environment variables.

    Raises:
        _Without: it fails; `_TooLong` if it does not end in its time.
    """
    limit = min(LONGEST_TIMEOUT, TIMEOUT * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))
    with tempfile.TemporaryFile() as output:
        streams: Any = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(command, **streams, env=environment, start_new_session=True)
        with suppress(OSError):  # some containers forbid it
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (MOST_BYTES, MOST_BYTES))
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            raise _TooLong(f"{program} did not end within {limit:.0f} seconds") from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if code:
            output.seek(0)
            lines = output.read(MOST_BYTES).decode(errors="replace").splitlines()
            line = next((line for line in lines if "error" in line.lower()), next(iter(lines), ""))
            said = visible(line.strip())[:200] or f"exit code {code}"
            raise _Without(f"{program} failed: {said if code > 0 else f'signal {-code}'}")


def _read_own(path: Path) -> bytes | None:
    """Read a file of the cache; None where there is none, and no bytes of a file that is far too large.

    Raises:
        _Without: it is no file, or others can write to it or to its folder.
    """
    for place in (path.parent, path):
        try:
            status = place.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        # It would be run as code.
        if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise _Without(f"others than its owner can write to {place}")
    if not stat.S_ISREG(status.st_mode):
        raise _Without(f"{path} is not a file")
    return path.read_bytes() if status.st_size <= MOST_BYTES else b""
