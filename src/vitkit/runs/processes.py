"""Train a run in the processes that torchrun started.

Process 0 plans the run, claims its folder, evaluates and writes, as a single process does. The others follow:
it tells them the run, and they take part in the steps.
"""

import atexit
import gc
import math
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.rendezvous import rendezvous

from vitkit.errors import VitkitError
from vitkit.runs.machine import require_threads
from vitkit.signals import STOP_SIGNALS
from vitkit.world import World, usable_processors, world_of_environment

LONGEST_WAIT = timedelta(days=1)
"""The time that processes wait for another one: process 0 plans and evaluates alone, which may take hours.
The death of a process is noticed at once, because its connections close."""
LOOK_SECONDS = 2.0
"""The time between two looks at how long this process waits."""
WAITING_SECONDS = 50.0
"""The time after which it is said for which processes the others wait."""
STOPPING_SECONDS = 6.0
"""The time that a process still waits for the others when it is asked to stop."""
LEAVING_SECONDS = 10.0
"""The time that a process tries to leave the others, which takes a fraction of a second."""
LOST = "connection (closed|reset|refused|timed out)|gloo|nccl|broken pipe|timed out|timeout"
"""A pattern in the message of the RuntimeError that PyTorch raises when a process is lost."""


_joined: list[tuple[World, threading.Thread, socket.socket]] = []
"""The other processes, joined once; the thread that watches how long this one waits for them, and the socket
that ends it."""


def join_processes(say: Callable[[str], None] = lambda sentence: None) -> World:
    """Join the other processes, once; returns a world of one where torchrun started no others.

    Args:
        say: shows a person the sentence that names the processes for which this one waits.

    Raises:
        VitkitError: the others cannot be reached, or sums over them are wrong.
    """
    if _joined:
        return _joined[0][0]
    world = world_of_environment()
    if world.size == 1:
        return world
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    # Before the group is made: the functions of this module, which FSDP imports, have the group that is there
    # as a default of their arguments. They would hold it, and its threads would outlive `leave_processes`.
    import_module("torch.distributed.nn")
    try:
        # The store of torchrun's agent outlives a restart, with the addresses of the processes before it.
        store, rank, size = next(rendezvous("env://", timeout=LONGEST_WAIT))
        store = distributed_c10d.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
        dist.init_process_group(backend, timeout=LONGEST_WAIT, store=store, rank=rank, world_size=size)
        reader, writer = socket.socketpair()
        reader.settimeout(LOOK_SECONDS)
        writer.setblocking(False)
        if threading.current_thread() is threading.main_thread():  # no other thread may hear of signals
            signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        watch = threading.Thread(target=_watch, args=(world, store, say, reader), daemon=True)
        watch.start()
        _joined.append((world, watch, writer))
        atexit.register(leave_processes)  # also where an error ends the process
        ranks = torch.full((3,), world.rank + 1.0)
        world.add(ranks)
    except (RuntimeError, ValueError) as error:
        raise VitkitError(
            f"Process {world.rank} of {world.size} on {socket.gethostname()} cannot reach the others, which "
            f"torchrun or --processes starts: {str(error).splitlines()[0]}"
        ) from error
    expected = world.size * (world.size + 1) / 2  # 1 + 2 + ... + size
    if ranks.tolist() != [expected] * 3:
        raise VitkitError(
            f"Sums over the {world.size} processes are wrong: expected {expected:g}, found {ranks[0]:g}. "
            "Gradients would be wrong too: use another version of PyTorch."
        )
    return world


def _watch(
    world: World, store: distributed_c10d.Store, say: Callable[[str], None], signals: socket.socket
) -> None:
    """Say for which processes the others wait, and end this one if it waits when it is asked to stop.

    Python answers no signal while PyTorch waits, as it does for a process that was stopped, or whose machine
    or disk does not answer.

    Args:
        world: the processes.
        store: that all processes read and write: a process that waits has a key there.
        say: shows a person a sentence.
        signals: gives the numbers of signals as they arrive; its end ends this function.
    """
    keys = {rank: f"waiting/{rank}" for rank in range(world.size)}
    named = f"Process {world.rank} on {socket.gethostname()}"
    stop_number, stop_time, said = 0, math.inf, False
    with signals:
        while True:
            with suppress(TimeoutError):
                numbers = signals.recv(64)
                if not numbers:
                    return
                stops = [number for number in numbers if number in STOP_SIGNALS]
                if stops and not stop_number:
                    stop_number, stop_time = stops[0], time.monotonic()
            since = world.activity.since
            waited = time.monotonic() - since
            try:
                # Half the time before anything is said: the others shall have written theirs by then.
                if waited >= WAITING_SECONDS / 2:
                    store.set(keys[world.rank], "")
                elif store.check([keys[world.rank]]):
                    store.delete_key(keys[world.rank])
                    said = False
                is_late = waited >= WAITING_SECONDS and not said
                missing = [rank for rank, key in keys.items() if not store.check([key])] if is_late else []
            except RuntimeError:  # the store has gone, and with it torchrun
                return
            # The first one that waits speaks for all.
            if missing and {*range(world.rank)} <= {*missing}:
                said, names = True, ", ".join(map(str, missing))
                say(f"{named} has waited {waited:.0f} s for process {names} of {world.size}.")
            if time.monotonic() - max(since, stop_time) >= STOPPING_SECONDS:
                os._exit(128 + stop_number)


def leave_processes() -> None:
    """Leave the other processes, if any were joined.

    Threads of the group that release a tensor while the interpreter ends abort the process (SIGABRT), so they
    are ended before. After an error in the middle of a message they may wait for the others for ever, and are
    left running.
    """
    while _joined:
        _, watch, writer = _joined.pop()
        if threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(-1)
        # A thread that comes back from C++ while the interpreter ends aborts the process, so this one ends
        # before. Closing alone does not end it: a worker that was forked has the socket too.
        with suppress(OSError):  # it has ended already
            writer.shutdown(socket.SHUT_RDWR)
        writer.close()
        watch.join(LEAVING_SECONDS)
        if mesh := sys.modules.get("torch.distributed.device_mesh"):
            # What sharded the model holds the group: the model, in cycles, and meshes, in PyTorch's caches.
            gc.collect()
            for thing in gc.get_objects():
                if type(thing) is mesh.DeviceMesh:
                    thing._pg_registry.clear()  # private, and there is no public way
        leaving = threading.Thread(target=dist.destroy_process_group, daemon=True)
        leaving.start()
        leaving.join(LEAVING_SECONDS)


@contextmanager
def lost_processes_explained(world: World) -> Iterator[None]:
    """Turn PyTorch's error about a lost process into a sentence.

    Raises:
        VitkitError: another process has ended, or cannot be reached any more.
    """
    try:
        yield
    except RuntimeError as error:
        first = str(error).splitlines()[0]
        if world.size == 1 or not (
            isinstance(error, dist.DistError) or re.search(LOST, first, re.IGNORECASE)
        ):
            raise
        raise VitkitError(
            f"Process {world.rank} of {world.size} on {socket.gethostname()} lost another one, which has "
            "ended or cannot be reached: its own message says why. What was committed is untouched; run the "
            "same command again to continue."
        ) from error


def divide_threads(world: World, threads: int | None = None) -> None:
    """Set the threads of this process.

    Args:
        world: the processes.
        threads: their number; None: PyTorch's choice for a single process, and for several processes an equal
            part of the machine's processors.

    Raises:
        VitkitError: there cannot be so many.
    """
    require_threads(threads)
    if threads is None and world.size > 1:
        threads = max(1, usable_processors() // world.on_machine)
    if threads is not None:
        torch.set_num_threads(threads)


def limit_waiting(seconds: float = 0.0) -> None:
    """Have PyTorch wait for the others for these seconds at most, 0 for as long as `LONGEST_WAIT`."""
    limit = timedelta(seconds=min(seconds or math.inf, LONGEST_WAIT.total_seconds()))
    for group in [*distributed_c10d._world.pg_map]:  # hsdp divides the state in groups of their own
        distributed_c10d._set_pg_timeout(limit, group)


def await_message(world: World) -> Any:
    """Wait for the next message of process 0, such as an `Invitation`; None: there is no further run.

    Raises:
        SystemExit: process 0 has ended; its own message or torchrun's says why.
    """
    if _joined:
        limit_waiting()
    try:
        with lost_processes_explained(world):
            return world.tell(None)
    except VitkitError as error:
        raise SystemExit(error.exit_code) from None


def dismiss() -> None:
    """Let the processes that follow end: there is no further run. Nothing happens where none were joined."""
    for world, *_ in _joined:
        world.tell(None)
    leave_processes()
