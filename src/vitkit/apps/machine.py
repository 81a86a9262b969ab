"""The machine a run is on: its device, its memory, and the signals it sends."""

import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from vitkit.errors import VitkitError


class InterruptedTraining(VitkitError):  # noqa: N818 (it is no error: what was asked for was done)
    """A run that was asked to stop and did so at a checkpoint; exit code 130 for Ctrl-C, 143 for SIGTERM."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


def find_device(name: str) -> torch.device:
    """The device that a name stands for: "auto", "cpu", "cuda", "cuda:1".

    Raises:
        VitkitError: it is not there.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        first = str(error).splitlines()[0].split(". ")[0][:200].rstrip(".") + "."  # PyTorch's own is a page
        raise VitkitError(f"The device '{name}' cannot be used: {first} Choose auto or cpu.") from error
    if device.type == "cuda":
        # Asks for kernels that add up in a fixed order, where there are such. Not measured: the promise of
        # the same bits is for CPUs.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
    return device


def memory_used(device: torch.device) -> int:
    """Bytes in use at most so far: of the GPU, or of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM, so that the step at hand can be finished and committed.

    A second Ctrl-C interrupts at once; the last committed checkpoint is then the one before.
    """
    received: list[int] = []

    def note(number: int, frame: Any) -> None:
        if received and number == signal.SIGINT:
            raise KeyboardInterrupt
        received.append(number)

    try:
        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: signals are somebody else's
        yield received
        return
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
