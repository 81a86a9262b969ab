"""The machine a run is on: its device and its memory, and how it asks a run to stop."""

import os
import resource
import sys

import torch

from vitkit.errors import VitkitError


class InterruptedTraining(VitkitError):  # noqa: N818 (it is no error: what was asked for was done)
    """A run that a signal asked to stop and that did so, with every finished step committed.

    The exit code is 128 and the signal's number, as shells have it: 130 for SIGINT (Ctrl-C), 143 for SIGTERM,
    129 for SIGHUP (the terminal is gone), 138 for SIGUSR1 on Linux (a SLURM job's time is nearly over).
    """

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
        first = str(error).splitlines()[0]
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
