"""Several processes that work together on this machine, for tests."""

import multiprocessing
import pickle
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, cast

import torch
import torch.distributed as dist

from vitkit.errors import VitkitError
from vitkit.world import World

SECONDS = 300.0
"""After which processes that wait for each other are given up."""


class Processes:
    """Processes that are started once, because importing PyTorch takes seconds, and work several times."""

    def __init__(self, most: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.folder = tempfile.TemporaryDirectory()
        self.pipes, self.processes, self.calls = [], [], 0
        for _ in range(most):
            here, there = context.Pipe()
            process = context.Process(target=_work, args=(there,))
            process.start()
            there.close()  # the process has its own
            self.pipes.append(here)
            self.processes.append(process)

    def __enter__(self) -> "Processes":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.processes:
            process.kill()
            process.join()
        self.folder.cleanup()

    def run(self, count: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Call a function of a module in so many of the processes, each with its `World` first.

        Returns:
            The results of all processes, in the order of ranks.
        """
        self.calls += 1
        store = str(Path(self.folder.name) / str(self.calls))
        for rank, pipe in enumerate(self.pipes[:count]):
            pipe.send_bytes(pickle.dumps((rank, count, store, function, arguments)))
        results = []
        for pipe in self.pipes[:count]:
            assert pipe.poll(SECONDS), "a process gives no answer"
            results.append(pickle.loads(pipe.recv_bytes()))
        for result in results:
            assert not isinstance(result, str), result
        return [value for (value,) in results]


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


def _work(pipe: Any) -> None:
    torch.set_num_threads(1)
    while True:
        rank, count, store, function, arguments = pickle.loads(pipe.recv_bytes())
        try:
            dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=count)
            dist.barrier()  # a process that fails at once would cut the others off while they still connect
            result: Any = (function(World(rank, count), *arguments),)
            dist.destroy_process_group()
        except BaseException:
            if dist.is_initialized():
                dist.destroy_process_group()
            result = traceback.format_exc()
        pipe.send_bytes(pickle.dumps(result))  # whole: `send` would leave tensors in this process's memory
