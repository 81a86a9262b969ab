"""Attacks on the compiled kernels' cache, and odd compilers: the kernel, or a reason in words, and soon.

Each case prepares a cache, asks for a kernel in a process of its own, and then asks once more as people do,
with the plain compiler: what was wrong before may not be in the way of that.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

from tests.faults.harness import Kind, Outcome
from tests.faults.mutate import mutant

TEXT = "int trial(void) { return 1; }\nint answer(void) { return 42; }\n"
ASK = """
import json, sys, time
from pathlib import Path
from vitkit.kernels import compile as compiling
compiling.TIMEOUT = float(sys.argv[2])
source = compiling.Source(Path(sys.argv[1]), ("-O1",), "the answer", bool)
start = time.monotonic()
built = [compiling.load(source, compile_it=True) for _ in range(3)][-1]
seconds = time.monotonic() - start
print(json.dumps([built.library and built.library.answer(), built.reason, seconds]))
"""
"""A process asks for the kernel three times, as a training does."""
TIMEOUT = 2.0
"""Seconds that a compiler is given: a kernel of two lines takes a tenth of one."""

_TO_OUTPUT = 'while [ "$1" != -o ]; do shift; done'
COMPILERS: dict[str, str] = {
    "hangs": "sleep 1000",
    "hangs in a child": "sleep 1000 & wait",
    "fails": "exit 1",
    "dies": "kill -SEGV $$",
    "writes without end": "exec yes",
    "writes what a terminal obeys": "printf '\\033[2J\\377error\\n'; exit 1",
    "makes nothing": "exit 0",
    "makes garbage": f'{_TO_OUTPUT}; head -c 5000 /dev/urandom > "$2"',
    "makes half": f'gcc "$@" || exit 1; {_TO_OUTPUT}; truncate -s 4096 "$2"',
    "makes a pipe": f'{_TO_OUTPUT}; rm -f "$2"; mkfifo "$2"',
    "is no program": "",
}
"""Compilers as shell scripts."""
CC_VALUES = (
    'gcc "', "gcc '", '""', " ", "\\", "no-such-compiler", ".", "/dev/null", "true", "cat", "env gcc",
    "gcc -bogus", "gcc -m32", "gcc -static", "gcc -E", "gcc -c", "gcc @none", "gcc \x1b[2J",
    "gcc -fsanitize=address", "gcc -fsanitize=thread", "gcc -fsanitize=undefined", "gcc " + "-O1 " * 20_000,
)  # fmt: skip
"""Values of CC."""
ENTRIES = (
    "garbage",
    "garbage with its hash",
    "flip",
    "cut",
    "pipe",
    "folder",
    "link",
    "loop",
    "modes",
    "huge",
    "old",
)
"""What lies under the library's name, or under that of what failed."""
CASES = (
    *(("compiler", name) for name in COMPILERS),
    *(("words", word) for word in CC_VALUES),
    *(("library", entry) for entry in ENTRIES),
    *(("failed", entry) for entry in ENTRIES),
    *(("folder", entry) for entry in ("read-only", "modes", "file", "pipe", "link", "none")),
    *(("killed", moment) for moment in ("early", "late", "twice")),
)
REFUSED = ("pipe", "folder", "link", "loop", "modes")
"""Entries that are not replaced: they are not this program's."""
NOT_IN_THE_WAY = ("compiler", "words", "killed")
"""Attacks after which the plain compiler must give the kernel."""


class CompilerCache(Kind):
    """Each case is one attack; what is damaged is damaged in another place every time."""

    name, count, limit = "compiler", 4 * len(CASES), 120.0
    sample = (0, 13, 31, 36, 39, 63)

    def prepare(self, folder: Path) -> None:
        """Nothing is shared: each case has a cache of its own."""

    def attempt(self, number: int, draw: Random, shared: Path, folder: Path) -> Outcome:
        if shutil.which("gcc") is None or sys.platform != "linux":
            return Outcome("words", "skipped: there is no gcc")
        (folder / "answer.c").write_text(TEXT)
        kind, what = CASES[number % len(CASES)]
        shown, environment = f"{kind}: {what[:40]!r}", {}
        cache = folder / "cache" / f"compiled-{os.getuid()}"
        if kind == "compiler":
            script = folder / "own-cc"
            script.write_text(
                f'#!/bin/sh\necho "$@" >> {folder}/calls\n{COMPILERS[what]}\n' if COMPILERS[what] else "?"
            )
            script.chmod(0o755)
            environment["CC"] = str(script)
        elif kind == "words":
            environment["CC"] = what
        elif kind == "folder":
            _spoil_folder(cache, what)
        elif kind == "killed":
            for _ in range(2 if what == "twice" else 1):
                _kill_process(folder, draw.uniform(0.0, 0.2) if what == "early" else draw.uniform(0.1, 0.6))
        else:
            first = _ask(folder, {})
            if first[0] != 42:
                return Outcome("wrong", f"{shown}: no kernel at first: {first}")
            (library,) = cache.glob("*.so")
            contents = library.read_bytes()
            entry = library if kind == "library" else library.with_suffix(".failed")
            if kind == "failed":
                library.unlink()
            _spoil(entry, what, contents, draw)
        answer = _ask(folder, environment)
        outcome = _judge(answer, shown)
        if outcome.verdict not in ("right", "words"):
            return outcome
        if kind == "library" and what not in REFUSED and answer[0] != 42:
            return Outcome("wrong", f"{shown}: it was not made again: {answer[1]}")
        calls = folder / "calls"
        # Whatever comes of a compilation, it is not tried again.
        if calls.exists() and len(calls.read_text().splitlines()) > 1:
            return Outcome(
                "wrong", f"{shown}: the compiler was called {calls.read_text().count(chr(10))} times"
            )
        again = _ask(folder, environment)
        if again[2] > TIMEOUT or again[0] != answer[0]:
            return Outcome("wrong", f"{shown}: first {answer}, then {again}")
        plain = _ask(folder, {})
        if kind in NOT_IN_THE_WAY and plain[0] != 42:
            return Outcome("wrong", f"{shown}: afterwards there is no kernel: {plain[1]}")
        left = [path.name for path in cache.glob("*.part")] if cache.is_dir() else []
        if left and kind in ("compiler", "words"):  # what a killed process leaves is swept after a day
            return Outcome("wrong", f"{shown}: {left} were left behind")
        return outcome


Answer = tuple[int | None, str, float]
"""What the kernel computes, or why there is none, and after how many seconds."""


def _process(folder: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    plain = {name: value for name, value in os.environ.items() if name not in ("CC", "VITKIT_NO_KERNELS")}
    return subprocess.Popen(
        [sys.executable, "-c", ASK, str(folder / "answer.c"), str(TIMEOUT)],
        env=plain | {"VITKIT_CACHE": str(folder / "cache")} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


def _ask(folder: Path, environment: dict[str, str]) -> Answer:
    """Ask for the kernel in a new process; how that ended is the reason where it gave none."""
    process = _process(folder, environment)
    out, err = process.communicate()
    try:
        computed, reason, seconds = json.loads(out.splitlines()[-1])
    except (ValueError, IndexError):
        return None, f"exit code {process.returncode}: {err.decode(errors='replace')[-300:]}", 0.0
    return computed, reason if process.returncode == 0 else f"exit code {process.returncode}", seconds


def _judge(answer: Answer, shown: str) -> Outcome:
    computed, reason, seconds = answer
    if reason.startswith("exit code"):
        return Outcome("traceback", f"{shown}: {reason}")
    if computed == 42:
        return Outcome("right", shown)
    if computed is not None or not reason or not reason.isprintable() or len(reason) > 1000:
        return Outcome("wrong", f"{shown}: {answer}")
    # A question may wait for a compiler on a busy machine, but for one alone.
    busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    if seconds > 2 * TIMEOUT * busy + 5:
        return Outcome("hang", f"{shown}: {seconds:.1f} s")
    return Outcome("words", f"{shown}: {reason}")


def _spoil(entry: Path, what: str, contents: bytes, draw: Random) -> None:
    """Put something else where a library lies, or where a failure is remembered."""
    entry.unlink(missing_ok=True)
    if what == "pipe":
        os.mkfifo(entry, 0o600)
    elif what == "folder":
        entry.mkdir()
    elif what in ("link", "loop"):
        target = entry.with_name("elsewhere")
        target.write_bytes(contents)
        entry.symlink_to(target if what == "link" else entry)
    elif what == "huge":
        entry.touch(0o600)
        os.truncate(entry, 40 << 30)
    else:
        damaged = {
            "garbage": draw.randbytes(5000),
            "garbage with its hash": _sealed(entry, draw.randbytes(5000)),
            "flip": mutant(contents, draw),
            "cut": contents[: draw.randrange(len(contents))],
        }
        entry.write_bytes(damaged.get(what, contents))
        entry.chmod(0o602 if what == "modes" else 0o600)
        if what == "old":
            os.utime(entry, (1, 1))


def _sealed(entry: Path, contents: bytes) -> bytes:
    from tests.faults.entry import seal

    return contents + seal(entry, contents)


def _spoil_folder(cache: Path, what: str) -> None:
    cache.parent.mkdir()
    match what:
        case "read-only":
            cache.mkdir(0o500)
        case "modes":
            cache.mkdir()
            cache.chmod(0o777)
        case "file":
            cache.touch()
        case "pipe":
            os.mkfifo(cache)
        case "link":
            cache.symlink_to("/nonexistent")
        case _:
            cache.parent.rmdir()
            cache.parent.symlink_to("/proc/1/none")


def _kill_process(folder: Path, seconds: float) -> None:
    """Kill a process, and not its compiler, some time after it has begun to compile."""
    process = _process(folder, {})
    end = time.monotonic() + 10
    while time.monotonic() < end and not list((folder / "cache").glob("compiled-*/*.part")):
        time.sleep(0.001)
    time.sleep(seconds * 0.2)
    process.send_signal(signal.SIGKILL)
    process.communicate()
