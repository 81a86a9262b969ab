"""Detect processes that hang without dying, and name them.

A process that dies closes its connections, and the others notice it at once. A process that was stopped,
whose machine is gone or whose disk does not answer leaves them waiting in a sum. So a thread of each process
writes a growing number into the store that torchrun keeps for its processes, and reads the numbers of the
others.
"""

import atexit
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from vitkit.listener import Listener, Progress, RelayingListener
from vitkit.world import Activity, World

INTERVAL = 2.0
"""Seconds between two beats."""
SILENT_SECONDS = 60.0
"""Seconds without a beat of its thread after which a process is given up."""
GRACE_SECONDS = 5 * INTERVAL
"""Seconds in which the first process that is well alone names the process that hangs."""
END_SECONDS = 30.0
"""Seconds for the store to answer when a process ends: it is on this machine or a network away."""


@dataclass
class Seen:
    """The last beat of another process, and the time since it did something new."""

    beats: int = -1  # that no process has, so that its first beat counts as new
    work: int = -1
    silent: float = 0.0
    """Seconds without a new beat."""
    idle: float = 0.0
    """Seconds without work, other than waiting for another process."""


class Heartbeat:
    """A thread that beats for this process and watches the others.

    It counts its own short sleeps and looks at no clock, so that a machine that slept for a night finds
    nobody dead in the morning.

    Args:
        world: the processes; the others read the activity of this one.
        store: that all processes read and write: `dist.Store`, or a stand-in with its methods in a test.
        say: shows a person the sentence that names a hanging process; the first process that is well calls it
            before any other.
        step_timeout: seconds that a process may take for its own work in a step; 0: any time.
        silent_seconds: instead of `SILENT_SECONDS`, for a test.
    """

    def __init__(
        self,
        world: World,
        store: Any,
        say: Callable[[str], None] = lambda sentence: None,
        step_timeout: float = 0.0,
        silent_seconds: float = SILENT_SECONDS,
    ) -> None:
        self.world, self.store, self.say, self.step_timeout = world, store, say, step_timeout
        self.silent_seconds, self.beats = silent_seconds, 0
        self.seen = {rank: Seen() for rank in range(world.size) if rank != world.rank}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="vitkit-heartbeat", daemon=True)
        self.beat()  # `begin` needs one of every process in the store

    def begin(self) -> None:
        """Begin to beat and to watch, once all processes have a beat in the store."""
        self._thread.start()
        atexit.register(self.end)  # also where an error ends the process

    def end(self) -> None:
        """Stop watching: from now on processes may end.

        It waits for the thread: a thread that returns from C++ while the interpreter ends is unwound there,
        which aborts the process (SIGABRT) after all its work is done.
        """
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(END_SECONDS)
        atexit.unregister(self.end)

    def _watch(self) -> None:
        while not self._over.wait(INTERVAL):
            try:
                self.beat()
                lost = self.find_hanging()
            except RuntimeError:  # the store has gone, and with it torchrun
                return
            if lost is not None and not self._over.is_set():
                self._give_up(lost)
                return

    def beat(self) -> None:
        """Write a beat of this process; `_read` takes its entries apart."""
        self.beats += 1
        activity = self.world.activity
        entries = [self.beats, activity.work, activity.is_waiting, socket.gethostname(), os.getpid()]
        self.store.set(str(self.world.rank), json.dumps(entries))

    def find_hanging(self) -> str | None:
        """Read the beats of all others; to be called every `INTERVAL` seconds, which it counts.

        Returns:
            The reason why a process is given up; None: all are well. The first process that is well gives up
            before the others do, so that it alone names the process.
        """
        places = {rank: self._read(rank) for rank in self.seen}
        hanging = {rank for rank in self.seen if self._is_hanging(rank)}
        # There is one, for a process does not watch itself.
        first_well = next(rank for rank in range(self.world.size) if rank not in hanging)
        delay = 0.0 if self.world.rank == first_well else GRACE_SECONDS
        for rank, (host, number) in places.items():
            seen = self.seen[rank]
            named = f"Process {rank} of {self.world.size} on {host} (number {number} there)"
            if seen.silent >= self.silent_seconds + delay:
                return (
                    f"{named} has given no sign of life for {seen.silent:g} s: it was stopped, or its "
                    "machine hangs"
                )
            if self.step_timeout and seen.idle >= self.step_timeout + delay:
                return (
                    f"{named} has made no progress for {seen.idle:g} s: mostly a disk or network share does "
                    "not answer. If its work does take that long, allow more seconds by --step-timeout (0 "
                    "waits for ever)"
                )
        return None

    def _read(self, rank: int) -> tuple[str, int]:
        """Count the time since the last new beat of another process; returns its machine and number there."""
        beats, work, is_waiting, host, number = json.loads(self.store.get(str(rank)))
        seen = self.seen[rank]
        seen.silent = 0.0 if beats != seen.beats else seen.silent + INTERVAL
        seen.idle = 0.0 if work != seen.work or is_waiting else seen.idle + INTERVAL
        seen.beats, seen.work = beats, work
        return host, number

    def _is_hanging(self, rank: int) -> bool:
        """Whether a process has reached a limit of `find_hanging`, the delay left out."""
        seen = self.seen[rank]
        return seen.silent >= self.silent_seconds or 0 < self.step_timeout <= seen.idle

    def _give_up(self, why: str) -> None:
        """End this process: torchrun then ends all others, those that are stopped by SIGKILL."""
        self.say(
            f"{why}. All processes end. What was committed is untouched: run the same command again to "
            "continue."
        )
        os._exit(1)


class WorkingListener(RelayingListener):
    """A listener that relays all messages, and counts progress as work.

    Args:
        listener: gets the messages.
        activity: of the process that works.
    """

    def __init__(self, listener: Listener, activity: Activity) -> None:
        super().__init__(listener)
        self.activity = activity

    @contextmanager
    def progress(self, what: str, total: int | None = None, *, unit: str = "") -> Iterator[Progress]:
        self.activity.work += 1
        with self.listener.progress(what, total, unit=unit) as progress:

            def beat(
                done: int, total: int | None = None, *, detail: str = "", milestone: bool = False
            ) -> None:
                self.activity.work += 1
                progress(done, total, detail=detail, milestone=milestone)

            yield beat
