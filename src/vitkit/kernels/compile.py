"""Compile C files for this machine once, keep the libraries in the user's cache, and load them from there.

A kernel only ever saves time: whatever is in the way (no compiler, a full disk, a home that cannot be
written, a damaged file), the caller gets a reason in place of a library, and computes without.
`VITKIT_NO_KERNELS=1` in the environment switches all kernels off.

A library is tried in a process of its own before it is loaded here, for it can end the process that loads it.
A compiler that failed or did not answer is recorded beside the libraries and not run again for a day.
"""

import ctypes
import functools
import hashlib
import os
import platform
import re
import selectors
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from vitkit.text import visible

SWITCH = "VITKIT_NO_KERNELS"
COMPILERS = ("cc", "gcc", "clang")
TIMEOUT = 10
"""Seconds in which a compiler answers, or compiles on a core of its own; it takes one or two."""
LONGEST_TIMEOUT = 60
"""Seconds in which it compiles on a machine that is busy, at most. With no more than `TIMEOUT` such a machine
would lose its kernels, and a run its bits, to a clock."""
REMEMBERED = 24 * 3600
"""Seconds for which a failure is remembered. What a compiler lacked may have been installed since."""
LEFT_BEHIND = 600
"""Seconds after which a file of an unfinished compilation is certainly nobody's any more."""
DIGEST_BYTES = 32
"""Bytes of the SHA-256 at the end of a library."""
MOST_BYTES = 1 << 24
"""The most bytes of a file that is read as a library: ours have some 50,000."""
MOST_OUTPUT = 1 << 20
"""Bytes of messages that a compiler may write."""
LONGEST_REASON = 400
"""Characters of a reason that a record holds."""
_PROCESSOR_FIELDS = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags")
"""The properties that -march=native goes by, as /proc/cpuinfo names them."""
_TRIAL = "import ctypes, sys; sys.exit(not ctypes.CDLL(sys.argv[1]).trial())"


@dataclass(frozen=True)
class Source:
    """A C file of this folder, and how it is compiled. Its `int trial(void)` computes something small."""

    path: Path
    flags: tuple[str, ...]
    features: frozenset[str] = frozenset()
    """Instruction sets that it needs, as /proc/cpuinfo names them."""
    includes: tuple[Path, ...] = ()
    """Other files of this folder that it includes."""


@dataclass(frozen=True)
class Built:
    """A library, or the reason why there is none."""

    library: ctypes.CDLL | None
    reason: str = ""
    """A clause without a full stop; empty where there is a library."""


def load(source: Source, *, compile_it: bool) -> Built:
    """Load the library of a C file from the cache.

    The file's name is a hash of everything that decides its contents. Its last bytes are a hash of its name
    and its other bytes, written when it had been tried: a library cut short would not fail to load but end
    the process. A file that other users can write to is not run, nor is it replaced.

    Args:
        source: the C file.
        compile_it: whether it is compiled if it is not there yet, which takes a second or two.
    """
    if os.environ.get(SWITCH, "0") not in ("", "0"):
        return Built(None, f"{SWITCH} is set")
    try:
        path = _library_path(source)
        library = _open_library(path)
        if library is None and compile_it:
            _compile(source, path)
            library = _open_library(path)
            if library is None:
                raise _Without(f"{path} was made and cannot be loaded")
        return Built(library, "" if library else "it has not been compiled yet")
    except _Without as reason:
        return Built(None, str(reason))
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home
        return Built(None, f"it could not be compiled or loaded: {error}")


class _Without(Exception):  # noqa: N818 (nothing is wrong: a machine may be without a compiler)
    """Why this machine has no kernel."""


class _Failed(_Without):
    """Why a command gave no result."""


class _TooLong(_Failed):
    """A command did not end in its time."""


@dataclass(frozen=True)
class _Compiler:
    command: tuple[str, ...]
    """The program's path and its first arguments, with which a compilation begins."""
    changed: int
    """When the program was last changed, in nanoseconds."""

    @property
    def identity(self) -> bytes:
        return os.fsencode("\0".join([*self.command, str(self.changed)]))

    def record(self, folder: Path, step: str) -> Path:
        """Return the path that records its failure at a step."""
        name = hashlib.sha256(self.identity).hexdigest()[:16]
        return folder / f"{step}-{name}.failed"


def _cache_folder() -> Path:
    """Return the folder of this user's libraries, which may not be there yet.

    Raises:
        _Without: others can write to it.
    """
    chosen = os.environ.get("VITKIT_CACHE")
    base = Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "vitkit"
    # A folder for each user: the files in it are run as code.
    folder = base.expanduser() / f"compiled-{os.getuid()}"
    if os.path.lexists(folder):
        _require_own(folder)
    return folder


def _library_path(source: Source) -> Path:
    """Return where the library lies or would lie."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise _Without("kernels are compiled on Linux and x86-64 alone")
    processor = _processor()
    missing = source.features.difference(processor.split())
    if missing:
        raise _Without(f"the processor has no {', '.join(sorted(missing))}")
    folder, compiler = _cache_folder(), _compiler()
    parts = (
        source.path.read_bytes(),
        " ".join(source.flags).encode(),
        compiler.identity,
        _version_of(compiler, folder),
        processor.encode(),
        *(included.read_bytes() for included in source.includes),
    )
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    return folder / f"{source.path.stem}-{digest}.so"


@functools.cache
def _processor() -> str:
    """Describe the first processor, and so all of them, by the properties that a compiler would look at."""
    first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return "\n".join(value.strip() for name, _, value in pairs if name.strip() in _PROCESSOR_FIELDS)


def _compiler() -> _Compiler:
    """Find the compiler: `CC`, as makefiles have it, or the first of the usual; CFLAGS is not used."""
    command = os.environ.get("CC", "")
    try:
        chosen = shlex.split(command)
    except ValueError as error:
        raise _Without(f"CC is no command ({error}): {command!r}") from None
    names = (chosen[0],) if chosen else COMPILERS
    program = next((path for name in names if (path := shutil.which(name))), None)
    if program is None:
        raise _Without(f"there is no C compiler ({' or '.join(names)})")
    return _Compiler((program, *chosen[1:]), Path(program).stat().st_mtime_ns)


def _version_of(compiler: _Compiler, folder: Path) -> bytes:
    """Give the version that a compiler prints.

    Raises:
        _Without: it fails, or failed before.
    """
    record = compiler.record(folder, "version")
    _refuse_failed(record)
    version, failure = _ask_version(compiler)
    if failure:
        _remember(record, failure)
        raise _Without(failure)
    return version


@functools.cache
def _ask_version(compiler: _Compiler) -> tuple[bytes, str]:
    """Ask a compiler for its version, once in a process; returns it, and why it gave none."""
    try:
        return _run([*compiler.command, "--version"], "the compiler", TIMEOUT), ""
    except _Failed as failure:
        return b"", str(failure)


def _open_library(path: Path) -> ctypes.CDLL | None:
    """Load a library of the cache; None where it is not there or damaged.

    Raises:
        _Without: something else lies there, or others can write to it.
    """
    contents = _read_own(path)
    if contents is None or contents[-DIGEST_BYTES:] != _seal(path, contents[:-DIGEST_BYTES]):
        return None
    try:
        return ctypes.CDLL(str(path))
    except OSError:  # it was compiled where the system had other libraries
        return None


def _seal(path: Path, contents: bytes) -> bytes:
    return hashlib.sha256(path.name.encode() + b"\0" + contents).digest()


def _compile(source: Source, path: Path) -> None:
    """Compile a library to its place. Another process sees the whole file or none.

    Raises:
        _Without: the compiler fails, or failed before; or the library cannot be used.
    """
    folder, record, compiler = path.parent, path.with_suffix(".failed"), _compiler()
    hanging = compiler.record(folder, "compiling")
    _refuse_failed(record)
    _refuse_failed(hanging)
    _make_folder(folder)
    _sweep(folder)
    with _work_folder(folder) as work:
        new = work / path.name
        compilation = [*compiler.command, *source.flags, "-shared", "-fPIC", str(source.path)]
        compilation += ["-o", str(new), "-lm"]
        trial = [sys.executable, "-I", "-S", "-c", _TRIAL, str(new)]
        # A compiler that hangs would hang with the next file; any other failure may be this file's fault.
        busy = os.getloadavg()[0] / (os.cpu_count() or 1)
        limit = min(LONGEST_TIMEOUT, TIMEOUT * max(1.0, busy))
        for command, program, environment, hangs in (
            (compilation, "the compiler", {**os.environ, "TMPDIR": str(work)}, hanging),
            (trial, "the trial of what was compiled", _plain_environment(), record),
        ):
            try:
                _run(command, program, limit, environment)
            except _Failed as failure:
                _remember(hangs if isinstance(failure, _TooLong) else record, str(failure))
                raise
        contents = new.read_bytes()
        new.write_bytes(contents + _seal(path, contents))  # loaders do not look behind the end
        new.chmod(0o700)
        new.replace(path)


def _plain_environment() -> dict[str, str]:
    """Give the environment without the variables by which a sanitizer is loaded into this process alone."""
    return {
        name: value
        for name, value in os.environ.items()
        if name != "LD_PRELOAD" and not name.endswith("SAN_OPTIONS")
    }


def _run(
    command: Sequence[str], program: str, limit: float, environment: dict[str, str] | None = None
) -> bytes:
    """Run a command to its end within `limit` seconds; returns its output.

    If it takes longer, it ends with all processes that it has started.

    Args:
        command: a path and its arguments.
        program: its name in errors.
        limit: in seconds.
        environment: its environment variables; None: this process's.

    Raises:
        _Failed: it fails, writes without end or does not end in its time.
    """
    end, output = time.monotonic() + limit, b""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        with process.stdout as pipe, selectors.DefaultSelector() as ready:
            ready.register(pipe, selectors.EVENT_READ)
            part = b"..."
            while part:
                if not ready.select(max(0.0, end - time.monotonic())):
                    raise _TooLong(f"{program} did not end within {limit:.0f} seconds")
                part = os.read(pipe.fileno(), 1 << 16)
                output += part
                if len(output) > MOST_OUTPUT:
                    raise _Failed(f"{program} failed: it writes without end")
        code = process.wait(max(0.1, end - time.monotonic()))
    except BaseException as error:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            raise _TooLong(f"{program} did not end within {limit:.0f} seconds") from None
        raise
    if code:
        ended = f"signal {-code}" if code < 0 else f"exit code {code}"
        lines = output.decode(errors="replace").splitlines()
        line = next((line for line in lines if "error" in line.lower()), next(iter(lines), ""))
        raise _Failed(f"{program} failed: {visible(line.strip())[:200] or ended}")
    return output


def _refuse_failed(record: Path) -> None:
    """Refuse to repeat a step whose failure was recorded less than a day ago.

    Raises:
        _Without: why it failed.
    """
    reason = (_read_own(record) or b"").decode(errors="replace")[:LONGEST_REASON]
    # Unprintable characters were not written here.
    if reason.isprintable() and reason and abs(time.time() - record.stat().st_mtime) < REMEMBERED:
        raise _Without(f"{reason} (remove {record} to have it tried again)")


def _remember(record: Path, reason: str) -> None:
    with suppress(OSError):  # where nothing can be written, the next process tries again
        _make_folder(record.parent)
        record.touch(0o600)
        record.write_text(reason)


def _make_folder(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _require_own(folder)


@contextmanager
def _work_folder(folder: Path) -> Iterator[Path]:
    """Make a folder for the time of a compilation, named after this process."""
    prefix = f"tmp-{platform.node()}-{os.getpid()}-"
    work = Path(tempfile.mkdtemp(".part", prefix, folder))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _sweep(folder: Path) -> None:
    """Remove the folders of killed compilations, and outdated records of failures."""
    now = time.time()
    for entry in [*folder.glob("tmp*.part"), *folder.glob("*.failed")]:
        with suppress(OSError):  # another process may be sweeping as well
            age = now - entry.lstat().st_mtime
            owner = re.fullmatch(rf"tmp-{re.escape(platform.node())}-(\d+)-[^-]*\.part", entry.name)
            ended = owner is not None and not Path("/proc", owner[1]).exists()
            if ended or age > (LEFT_BEHIND if entry.suffix == ".part" else REMEMBERED):
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


def _read_own(path: Path) -> bytes | None:
    """Read a file of the cache; None where there is none, and no bytes of a file that is far too large.

    Raises:
        _Without: it is no file, or others can write to it.
    """
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    _require_own(path)
    if not stat.S_ISREG(status.st_mode):
        raise _Without(f"{path} is not a file")
    return path.read_bytes() if status.st_size <= MOST_BYTES else b""


def _require_own(path: Path) -> None:
    """Refuse a file or folder that others than this user can write to, because it would be run as code."""
    status = path.lstat()
    if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise _Without(f"others than its owner can write to {path}")
