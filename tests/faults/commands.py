"""Commands of vitkit in processes of their own, and what a good end of one is."""

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.faults.harness import Outcome
from tests.helpers.forks import run_forked
from vitkit.cli import main as cli


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int | None
    """The exit code, -n after signal n, None if it did not end in time."""
    out: str
    err: str
    seconds: float


def forked(
    arguments: Sequence[str],
    folder: Path,
    *,
    limit: float = 60,
    first: Callable[[], None] | None = None,
    until: Callable[[int], None] | None = None,
) -> Ended:
    """Run a command, given without `vitkit`, in a fork and a folder, where `out` and `err` are written.

    `first` is called in the new process before the command; for `until` see `run_forked`.
    """

    def act() -> int:
        os.chdir(folder)  # an option such as --out may name a folder by an odd relative path
        sys.argv = ["vitkit", *arguments]
        if first is not None:
            first()
        return cli.run(list(arguments))

    code, seconds = run_forked(act, folder / "out", folder / "err", limit, until)
    out, err = ((folder / name).read_text(errors="replace") for name in ("out", "err"))
    return Ended(code, out, err, seconds)


def judge(ended: Ended, *allowed: int) -> Outcome:
    """A command ends with 0, or in words with a code from 1 to 2 or one of those `allowed`."""
    last = next((line for line in reversed(ended.err.strip().splitlines()) if line.strip()), "")
    text = ended.out + ended.err
    if "Traceback (most recent call last)" in text or "Exception ignored" in text:
        return Outcome("traceback", _exception(text))
    if ended.code is None:
        return Outcome("hang", f"{ended.seconds:.0f} s", ended.seconds)
    if ended.code == 0:
        return Outcome("right")
    if ended.code < 0:
        return Outcome("traceback", f"ended by signal {-ended.code}. {last}")
    if ended.code not in (1, 2, *allowed):
        return Outcome("wrong", f"exit code {ended.code}: {last}")
    return Outcome("words", last) if last else Outcome("wrong", f"exit code {ended.code} without a word")


def _exception(text: str) -> str:
    """The last line of a traceback, and the place it names."""
    lines = text[
        text.find("Traceback") if "Traceback" in text else text.find("Exception ignored") :
    ].splitlines()
    places = [line.strip() for line in lines if line.strip().startswith("File ")]
    end = next((line for line in lines[1:] if line and line[0] not in " +|"), lines[0])
    return f"{end[:300]} ({places[-1][:150] if places else 'no place'})"


def without_override() -> None:
    """Give up root's right to read and write what its mode forbids, so that mode 000 means something."""
    if os.geteuid():
        return
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.capget(header, data):
        raise OSError(ctypes.get_errno(), "capget")
    for offset in (0, 1):  # effective and permitted: CAP_DAC_OVERRIDE is 1, CAP_DAC_READ_SEARCH 2
        data[offset] &= ~0b110
    if libc.capset(header, data):
        raise OSError(ctypes.get_errno(), "capset")
