"""Processes that prepare something together: all go on, or none."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, cast

import pytest

from tests.helpers.processes import Processes, ending_of
from tests.helpers.refusals import refused
from vitkit.errors import VitkitError
from vitkit.runs import processes
from vitkit.world import World, prepared_together


def prepare(world: World, failing: tuple[int, ...], inner: bool | None = None) -> str | int | None:
    """Prepare what some processes cannot; returns what a process says, or its exit code.

    Unless `inner` is None, two things are prepared, one within another, and processes fail in or before it.
    """

    def fail(now: bool) -> None:
        if now and world.rank in failing:
            raise VitkitError("no images here")

    def work() -> None:
        with prepared_together(world):
            fail(not inner)
            if inner is not None:
                with prepared_together(world):
                    fail(inner)

    return ending_of(world, work)


def test_one_process_says_what_is_wrong_and_the_others_end_with_it_in_what_comes_next() -> None:
    with Processes(3) as processes:
        for inner in (None, False, True):
            assert processes.run(3, prepare, (), inner) == [None, None, None]
            assert processes.run(3, prepare, (0,), inner) == ["no images here", 1, 1]
            for failing in ((1,), (2,), (1, 2)):
                first, *others = processes.run(3, prepare, failing, inner)
                assert f"Process {failing[0]} of 3 on " in first and "no images here" in first
                assert others == [1, 1]


def test_processes_that_nobody_started_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    refused("cannot reach the others, .*torchrun", processes.join_processes)


def test_alone_an_error_is_itself() -> None:
    with pytest.raises(VitkitError, match=r"^no images here$"), prepared_together(World()):
        raise VitkitError("no images here")


def start_two(code: str) -> list[tuple[str, int]]:
    """Run code in two processes as torchrun would start them; returns the errors and exit code of each."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    shared |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, **shared, "RANK": rank, "LOCAL_RANK": rank},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    return [(process.communicate()[1], process.returncode) for process in started]


LEAVING = """
import glob
from vitkit.runs.processes import join_processes, leave_processes
world = join_processes()
import torch.distributed.fsdp  # holds whatever group there is
import torch
from vitkit import create_model
from vitkit.training.gradients import collect, shard
model = create_model("ViT-8x1x2x16/4", num_classes=2, image_size=8)
shard(model, world, "fsdp", "float32")
model(torch.zeros(1, 3, 8, 8)).sum().backward()
collect(next(model.parameters()))
del model
leave_processes()
names = [open(path).read() for path in glob.glob("/proc/self/task/*/comm")]
assert not [name for name in names if "gloo" in name], names
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="lists threads as Linux does")
def test_who_leaves_the_others_has_no_thread_of_theirs() -> None:
    """Such a thread aborts the process where it releases a tensor while the interpreter ends."""
    assert start_two(LEAVING) == [("", 0)] * 2


WRONG_SUMS = """
from vitkit.errors import VitkitError
from vitkit.runs.processes import join_processes
from vitkit.world import World
World.add = lambda self, tensors: None
try:
    join_processes()
except VitkitError as error:
    assert "Sums over the 2 processes are wrong: expected 3" in str(error), error
    raise SystemExit(7)
"""


def test_wrong_sums_of_processes_are_noticed_before_they_train() -> None:
    assert [code for _, code in start_two(WRONG_SUMS)] == [7, 7]


class Store(dict[str, str]):
    """A store that processes read and write together."""

    set, delete_key = dict.__setitem__, dict.__delitem__

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)


class Watched:
    """The watching threads of some processes, which take part in nothing."""

    def __init__(self, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said, self.codes, self.over = list[str](), list[int](), threading.Event()
        monkeypatch.setattr(processes, "WAITING_SECONDS", 0.2)
        monkeypatch.setattr(processes, "STOPPING_SECONDS", 0.1)
        monkeypatch.setattr(os, "_exit", self.leave)
        self.worlds, self.store = [World(rank, count) for rank in range(count)], Store()
        self.writers, self.threads = list[socket.socket](), list[threading.Thread]()
        for world in self.worlds:
            reader, writer = socket.socketpair()
            reader.settimeout(0.01)
            arguments = (world, cast("Any", self.store), self.said.append, reader)
            self.threads.append(threading.Thread(target=processes._watch, args=arguments))
            self.writers.append(writer)
            self.threads[-1].start()

    def leave(self, code: int) -> None:
        self.codes.append(code)
        self.over.set()

    def end(self) -> None:
        for writer, thread in zip(self.writers, self.threads, strict=True):
            writer.shutdown(socket.SHUT_RDWR)
            writer.close()
            thread.join(60)
            assert not thread.is_alive()


def test_the_first_process_that_waits_names_those_that_it_waits_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = Watched(4, monkeypatch)
    with watched.worlds[1].activity.together(), watched.worlds[2].activity.together():
        time.sleep(1)
    time.sleep(0.2)
    watched.end()
    (sentence,) = watched.said
    assert sentence.startswith("Process 1 on ") and sentence.endswith(" s for process 0, 3 of 4.")
    assert not watched.store and not watched.codes


def test_processes_that_do_not_wait_long_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(2, monkeypatch)
    for _ in range(20):
        with watched.worlds[0].activity.together():
            time.sleep(0.02)
    watched.end()
    assert not watched.said and not watched.codes


def test_a_process_ends_if_it_waits_when_it_is_asked_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(2, monkeypatch)
    for writer in watched.writers:
        writer.send(bytes([signal.SIGCHLD, signal.SIGTERM, signal.SIGINT]))
    with watched.worlds[1].activity.together():
        assert watched.over.wait(60)
    watched.end()
    assert {*watched.codes} == {128 + signal.SIGTERM}  # the other one answers it by itself
