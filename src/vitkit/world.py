"""The processes that work together, as torchrun starts them, and their messages to each other.

Process 0 takes the decisions for all, and it alone writes and reports. Each method is called by all processes
at the same point of the program; a process that is alone gets its own value back.
"""

import math
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

from vitkit.errors import VitkitError

if TYPE_CHECKING:
    from torch import Tensor

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
"""The variables that torchrun sets: number of this process, count of all, and both on this machine."""

T = TypeVar("T")


def usable_processors() -> int:
    """Count the processors that this process may use, which may be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass
class Activity:
    """The time that a process waits for the others."""

    since: float = math.inf
    """The moment, by `time.monotonic`, since which it may be waiting for the others; infinite: it is not."""
    waited: float = 0.0
    """Seconds of waiting so far."""
    has_failed: bool = False
    """Whether all processes end, because one of them has failed."""

    @contextmanager
    def together(self) -> Iterator[None]:
        """Mark a step that all processes take together, and in which none computes for long."""
        began = self.since = time.monotonic()
        try:
            yield
        finally:
            self.since = math.inf
            self.waited += time.monotonic() - began


@dataclass(frozen=True)
class World:
    """The processes that train together; `rank` is the number of this process."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """The number of this process on its machine."""
    on_machine: int = 1
    """The number of processes on this machine, which divide its processors and its memory."""
    activity: Activity = field(default_factory=Activity, compare=False, repr=False)

    @property
    def writes(self) -> bool:
        """Whether this is the process that writes files and reports."""
        return self.rank == 0

    def add(self, tensor: "Tensor") -> None:
        """Replace a tensor by its sum over all processes, in place."""
        if self.size == 1:
            return
        import torch.distributed as dist

        with self.activity.together():
            dist.all_reduce(tensor)

    def begin_adding(self, tensor: "Tensor") -> Callable[[], None]:
        """Begin to replace a tensor by its sum over all of several processes, in place.

        Returns:
            A function that waits for the sum.
        """
        import torch.distributed as dist

        work: Any = dist.all_reduce(tensor, async_op=True)

        def wait() -> None:
            with self.activity.together():
                work.wait()

        return wait

    def total(self, *numbers: float) -> list[float]:
        """Sum numbers over all processes, in float64."""
        if self.size == 1:
            return list(numbers)
        import torch
        import torch.distributed as dist

        values = torch.tensor(numbers, dtype=torch.float64)
        with self.activity.together():
            dist.all_reduce(values)
        return cast("list[float]", values.tolist())

    def tell(self, value: T) -> T:
        """Give all processes the value of process 0."""
        if self.size == 1:
            return value
        import torch.distributed as dist

        values = [value]
        with self.activity.together():
            dist.broadcast_object_list(values, 0)
        return values[0]

    def gather(self, value: T) -> list[T]:
        """Give all processes the values of each, in the order of ranks: plain data, or arrays."""
        if self.size == 1:
            return [value]
        import torch.distributed as dist

        gathered: list[Any] = [None] * self.size
        with self.activity.together():
            dist.all_gather_object(gathered, value)
        return gathered

    def share(self, tensors: Sequence["Tensor"]) -> None:
        """Copy the tensors of process 0, of several processes, into all processes' own."""
        import torch.distributed as dist

        with self.activity.together():
            for tensor in tensors:
                dist.broadcast(tensor, 0)


ALONE = World()
"""A process that works by itself."""


def world_of_environment() -> World:
    """Read the number of this process and of all from the environment, without joining them.

    Raises:
        VitkitError: torchrun's variables have values that torchrun never sets.
    """
    variables = {name: os.environ.get(name, "").strip() for name in VARIABLES}
    if not variables["RANK"] or variables["WORLD_SIZE"] in ("", "1"):
        return ALONE
    variables["LOCAL_RANK"] = variables["LOCAL_RANK"] or "0"
    variables["LOCAL_WORLD_SIZE"] = variables["LOCAL_WORLD_SIZE"] or "1"
    if all(value.isdecimal() and len(value) < 8 for value in variables.values()):
        rank, size, local_rank, on_machine = (int(variables[name]) for name in VARIABLES)
        if rank < size and local_rank < on_machine <= size:
            return World(rank, size, local_rank, on_machine)
    shown = ", ".join(f"{name}={value!r}" for name, value in variables.items())
    raise VitkitError(
        f"The variables by which torchrun numbers processes are not as it sets them, found {shown}. Start "
        "vitkit by torchrun, or by --processes; for one process leave them out (unset RANK WORLD_SIZE)."
    )


@contextmanager
def prepared_together(world: World) -> Iterator[None]:
    """Go on in all processes or in none: process 0 raises the error of any process that failed.

    Blocks may be nested: a process that fails between two inner blocks meets the others in their next one.

    Raises:
        VitkitError: in process 0; the others end silently after it.
    """
    if world.size == 1:
        yield
        return
    error: VitkitError | None = None
    try:
        yield
    except VitkitError as caught:
        if world.activity.has_failed:  # an inner block has ended all processes
            raise
        error = caught
    failure = None if error is None else (str(error), error.exit_code, socket.gethostname())
    failed = [(rank, other) for rank, other in enumerate(world.gather(failure)) if other is not None]
    if not failed:
        return
    world.activity.has_failed = True
    rank, (message, code, host) = failed[0]
    if not world.writes:
        with suppress(RuntimeError):
            # Process 0 must have reported before: torchrun ends all processes when the first one ends.
            world.tell(None)
        raise SystemExit(code)
    if error is not None:
        raise error
    raise VitkitError(f"Process {rank} of {world.size} on {host}: {message}")
