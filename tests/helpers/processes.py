"""Several processes that work together on this machine, for tests."""

import multiprocessing
import pickle
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from typing import Any, Self, cast

import torch
import torch.distributed as dist

from vitkit.errors import VitkitError
from vitkit.world import World

PATIENCE = timedelta(seconds=300)
"""After which processes that wait for each other are given up."""


class Processes:
    """Processes that are started once, because importing PyTorch takes seconds, and work several times."""

    def __init__(self, most: int) -> None:
        self.folder, self.calls = tempfile.TemporaryDirectory(), 0
        context = multiprocessing.get_context("spawn")
        self.pool = ProcessPoolExecutor(most, context, torch.set_num_threads, (1,))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown(cancel_futures=True)
        self.folder.cleanup()

    def run(self, count: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Call a function of a module in so many of the processes, each with its `World` first.

        Returns:
            The results of all processes, in the order of ranks.
        """
        self.calls += 1
        store, call = f"{self.folder.name}/{self.calls}", pickle.dumps((function, arguments))
        # Each waits for the others, so that no process takes two of them.
        futures = [self.pool.submit(_work, rank, count, store, call) for rank in range(count)]
        return [pickle.loads(future.result()) for future in futures]


def ending_of(world: World, prepare: Callable[[], object]) -> str | int | None:
    """Prepare something; where that fails, return the sentence of process 0 or the exit code of another."""
    try:
        prepare()
    except VitkitError as error:
        world.tell("spoken")  # the others end after it
        return str(error)
    except SystemExit as end:
        return cast("int", end.code)
    return None


def _work(rank: int, count: int, store: str, call: bytes) -> bytes:
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", timeout=PATIENCE, rank=rank, world_size=count
    )
    try:
        dist.barrier()  # a process that fails at once would cut the others off while they still connect
        function, arguments = pickle.loads(call)
        return pickle.dumps(function(World(rank, count), *arguments))  # whole: no tensor stays in its memory
    finally:
        dist.destroy_process_group()
