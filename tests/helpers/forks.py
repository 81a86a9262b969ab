"""A function in a fork of this process, which spares it the seconds of importing PyTorch."""

import contextlib
import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path


def end_with_parent() -> None:
    """Let this process be killed when the one that started it ends, however that ends (Linux)."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def run_forked(
    action: Callable[[], int],
    out: Path,
    err: Path,
    limit: float,
    until: Callable[[int], None] | None = None,
) -> tuple[int | None, float]:
    """Run a function in a new process, in a group of its own, and kill what is left of the group at its end.

    Args:
        action: gives the exit code.
        out: the file of what it prints.
        err: that of its errors; may be the same.
        limit: seconds after which it is killed.
        until: called here with the process's number, which is its group's too; may wait and send signals.

    Returns:
        The exit code, -n after signal n, None if it did not end in time; and its seconds.
    """
    sys.stdout.flush()
    start = time.monotonic()
    process = os.fork()
    if not process:
        code = 1
        try:
            os.setsid()
            end_with_parent()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for descriptor, path in ((1, out), (2, err)):
                path.write_bytes(b"")
                os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), descriptor)
            code = action()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError, ValueError, AttributeError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
    if until is not None:
        until(process)
    status = None
    while status is None and time.monotonic() - start < limit:
        done, wait_status = os.waitpid(process, os.WNOHANG)
        if done:
            status = os.waitstatus_to_exitcode(wait_status)
        else:
            time.sleep(0.005)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    if status is None:
        os.waitpid(process, 0)
    return status, time.monotonic() - start
