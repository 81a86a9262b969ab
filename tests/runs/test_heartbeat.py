"""Processes that hang, as the others see them."""

import json
import os
import threading
import time
from typing import Any

import pytest

from vitkit.listener import Listener
from vitkit.runs import heartbeat
from vitkit.runs.heartbeat import INTERVAL, Heartbeat, WorkingListener
from vitkit.world import Activity, World


class Store(dict[str, Any]):
    """A store that processes read and write together."""

    def set(self, key: str, value: str) -> None:
        self[key] = value


def start_beats(step_timeout: float = 0.0) -> list[Heartbeat]:
    store = Store()
    worlds, seconds = (World(rank, 3) for rank in range(3)), 10 * INTERVAL
    return [Heartbeat(world, store, step_timeout=step_timeout, silent_seconds=seconds) for world in worlds]


def watch(watching: Heartbeat, living: list[Heartbeat], looks: int) -> tuple[int, str | None]:
    """Let time pass; returns after how many looks a process is given up, and why."""
    for number in range(looks):
        for process in living:
            process.beat()
        hanging = watching.find_hanging()
        if hanging is not None:
            return number, hanging
    return looks, None


def test_a_process_without_a_beat_is_named() -> None:
    first, second, third = start_beats()
    assert watch(first, [first, second, third], 100) == (100, None)
    looks, hanging = watch(first, [first, second], 100)
    assert looks == 10 - 1 and hanging is not None
    assert "Process 2 of 3" in hanging and "no sign of life for 20 s" in hanging


def test_a_process_that_does_nothing_is_named_and_not_those_that_wait_for_it() -> None:
    every = start_beats(step_timeout=20 * INTERVAL)
    first, second, third = every
    for waiting in (first, second):
        waiting.world.activity.is_waiting = True
    for watching, expected in (
        (first, 20),
        (second, 25),
    ):  # one of them says it, the other one a little later
        looks, hanging = watch(watching, every, 100)
        assert looks == expected and hanging is not None
        assert "Process 2 of 3" in hanging and "--step-timeout" in hanging
    assert watch(third, every, 100) == (100, None)


def test_a_process_that_works_is_left_in_peace() -> None:
    every = start_beats(step_timeout=20 * INTERVAL)
    first, second, third = every
    second.world.activity.is_waiting = True
    for _ in range(100):
        third.world.activity.work += 1
        assert watch(first, every, 1) == (1, None)


def test_progress_is_work() -> None:
    class Heard(Listener):
        def __init__(self) -> None:
            self.heard: list[object] = []

        def note(self, sentence: str) -> None:
            self.heard.append(sentence)

        warn = note

        def show(self, rows: list[tuple[str, list[str]]]) -> None:
            self.heard.append(rows)

    heard, activity = Heard(), Activity()
    listener = WorkingListener(heard, activity)
    listener.note("a")
    listener.warn("b")
    listener.show([("c", ["d"])])
    assert heard.heard == ["a", "b", [("c", ["d"])]]
    with listener.progress("evaluating", 3) as progress:
        for done in range(3):
            progress(done)
    assert activity.work == 4


def test_the_process_that_finds_another_hanging_says_so_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    said, over, codes = list[str](), threading.Event(), list[int]()

    def leave(code: int) -> None:
        codes.append(code)  # the process would end here
        over.set()

    store = Store({"1": json.dumps([1, 0, False, "elsewhere", 7])})
    with monkeypatch.context() as patch:
        patch.setattr(heartbeat, "INTERVAL", 0.01)
        patch.setattr(os, "_exit", leave)
        beats = Heartbeat(World(0, 2), store, say=said.append, silent_seconds=0.05)
        beats.begin()
        assert over.wait(60)
        beats.end()
    assert codes == [1] and len(said) == 1
    assert "Process 1 of 2 on elsewhere (number 7 there) has given no sign of life" in said[0]


def test_its_thread_has_left_the_store_when_the_process_may_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that comes back from C++ while the interpreter ends aborts the process."""
    reading, left = threading.Event(), list[bool]()

    class SlowStore(Store):
        def get(self, key: str, default: Any = None) -> Any:
            reading.set()
            time.sleep(0.3)
            left.append(True)
            return super().get(key, default)

    monkeypatch.setattr(heartbeat, "INTERVAL", 0.001)
    store = SlowStore()
    first, _ = (Heartbeat(World(rank, 2), store) for rank in range(2))
    first.begin()
    assert reading.wait(60)
    first.end()
    count = len(left)
    assert count and not any(thread.name == "vitkit-heartbeat" for thread in threading.enumerate())
    time.sleep(0.4)
    assert len(left) == count
