"""Several processes that train together on this machine, for tests."""

import multiprocessing
import pickle
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from vitkit.world import World

SECONDS = 300.0
"""After which processes that wait for each other are given up."""


def in_processes(count: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Call a function of a module in so many processes, each with its `World` first; returns what each
    returned."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ends = [context.Pipe(duplex=False) for _ in range(count)]
        processes = [
            context.Process(
                target=_run, args=(send, Path(folder) / "store", rank, count, function, arguments)
            )
            for rank, (_, send) in enumerate(ends)
        ]
        for process in processes:
            process.start()
        for _, send in ends:
            send.close()  # the process has its own
        try:
            results = []
            for receive, _ in ends:
                assert receive.poll(SECONDS), "a process gives no answer"
                results.append(pickle.loads(receive.recv_bytes()))
            for result in results:
                if isinstance(result, str):
                    raise AssertionError(result)
            return [value for (value,) in results]
        finally:
            for process in processes:
                process.join(1)
                process.kill()
                process.join()


def _run(
    send: Any, store: Path, rank: int, count: int, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=count)
        result: Any = (function(World(rank, count), *arguments),)
        dist.destroy_process_group()
    except BaseException:
        result = traceback.format_exc()
    send.send_bytes(pickle.dumps(result))  # whole: `send` would leave tensors in this process's memory
