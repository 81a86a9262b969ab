"""Train a run in the processes that torchrun started.

Process 0 plans the run, claims its folder, evaluates and writes, as a single process does. The others follow:
process 0 names the folder of the run, they read its record there, and take part in the steps.
"""

import atexit
import gc
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from vitkit.config import to_json
from vitkit.errors import VitkitError
from vitkit.listener import SILENT, Listener
from vitkit.runs.build import Parts, build_trainer, read_images
from vitkit.runs.heartbeat import Heartbeat
from vitkit.runs.machine import require_threads, usable_processors
from vitkit.training.config import Sharding
from vitkit.training.trainer import Trainer
from vitkit.world import World, world_of_environment

LONGEST_WAIT = timedelta(days=1)
"""The time that processes wait for another one: process 0 plans and evaluates alone, which may take hours.
The death of a process is noticed at once, because its connections close."""
LEAVING_SECONDS = 10.0
"""The time that a process tries to leave the others, which takes a fraction of a second."""
LOST = "connection (closed|reset|refused|timed out)|gloo|nccl|broken pipe|timed out|timeout"
"""A pattern in the message of the RuntimeError that PyTorch raises when a process is lost."""


@dataclass(frozen=True)
class Invitation:
    """The run for the processes that follow process 0."""

    folder: str
    run: Mapping[str, Any]
    """Its configuration as plain data: as recorded in the folder, but for options of memory and loading."""
    sharding: Sharding
    """The division of its state among the processes."""
    checkpoint: str | None
    """The name of the checkpoint that it continues from; None: it begins with the weights of process 0."""
    fingerprint: str
    """The fingerprint of its images, which must be the same everywhere."""
    device: str
    threads: int
    """CPU threads of each process."""


_joined: list[tuple[World, Heartbeat]] = []
"""The other processes, joined once, and the thread that watches over them."""


def join_processes(say: Callable[[str], None] = lambda sentence: None) -> World:
    """Join the other processes, once; returns a world of one where torchrun started no others.

    Args:
        say: shows a person the sentence that names a hanging process.

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
        dist.init_process_group(backend, timeout=LONGEST_WAIT)
        ranks = torch.full((3,), world.rank + 1.0)
        # Private, and the only way to the store of torchrun's agent, which all processes can reach.
        store = distributed_c10d.PrefixStore("vitkit", distributed_c10d._get_default_store())
        heartbeat = Heartbeat(world, store, say)
        world.add([ranks])  # waits for all, so that each finds a first heartbeat of the others in the store
        heartbeat.begin()
        _joined.append((world, heartbeat))
        atexit.register(leave_processes)  # also where an error ends the process
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


def leave_processes() -> None:
    """Leave the other processes, if any were joined.

    Threads of the group that release a tensor while the interpreter ends abort the process (SIGABRT), so they
    are ended before. After an error in the middle of a message they may wait for the others for ever, and are
    left running.
    """
    while _joined:
        _joined.pop()[1].end()
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


def begin_steps(
    parts: Parts,
    checkpoint: Path | None,
    device: torch.device,
    world: World,
    listener: Listener = SILENT,
    sharding: Sharding = "replicas",
) -> tuple[Trainer, list[str], Parts]:
    """Read the images of a run and build what trains it, in all processes alike.

    Args:
        parts: the parts of the run; the model of process 0 has the weights that the run begins with.
        checkpoint: from which it continues; None: all begin with the weights of process 0.
        device: the device of this process.
        world: the processes.
        listener: hears the progress.
        sharding: the division of the state among the processes.

    Returns:
        The trainer, a sentence for each difference from where the checkpoint was written, and the parts with
        their images.
    """
    for _, heartbeat in _joined:
        heartbeat.step_timeout = parts.run.loading.step_timeout
    listed, parts = parts.data.listed, read_images(parts, listener, world)
    if listed is not None:
        listed.cache.pixels.clear()  # those of splits that do not fit, or are not read
    if checkpoint is None:  # before the weights are divided
        world.share(list(parts.model.state_dict().values()))
    trainer, differences = build_trainer(parts, device, world, sharding, compares=True), []
    if checkpoint is not None:
        with listener.progress("reading the checkpoint"):
            differences = trainer.resume(checkpoint)
    else:
        modules = (trainer.state.objective, trainer.state.averaged_objective)
        world.share([tensor for module in modules if module for tensor in module.state_dict().values()])
    return trainer, differences, parts


def invite(
    world: World, parts: Parts, checkpoint: Path | None, device: str, sharding: Sharding = "replicas"
) -> None:
    """Have the other processes take part in the steps of a run."""
    if world.size > 1:
        invitation = Invitation(
            str(parts.folder.absolute()),
            to_json(parts.run),
            sharding,
            None if checkpoint is None else checkpoint.name,
            parts.data.fingerprint(),
            device,
            torch.get_num_threads(),
        )
        world.tell(asdict(invitation))


def await_invitation(world: World) -> Invitation | None:
    """Wait until process 0 begins the steps of a run; returns None where there is no further run."""
    fields = await_message(world)
    return None if fields is None else Invitation(**fields)


def await_message(world: World) -> Any:
    """Wait for the next message of process 0.

    Raises:
        SystemExit: process 0 has ended; its own message or torchrun's says why.
    """
    try:
        with lost_processes_explained(world):
            return world.tell(None)
    except VitkitError as error:
        raise SystemExit(error.exit_code) from None


def dismiss() -> None:
    """Let the processes that follow end: there is no further run. Nothing happens where none were joined."""
    for world, _ in _joined:
        world.tell(None)
    leave_processes()
