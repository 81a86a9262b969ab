"""Cases that may hang, die or eat the machine, tried in processes of their own and counted.

A kind of fault has numbered cases. Case n of seed s is the same on every machine: it draws from a generator
seeded with both and works in a folder of its own, which is kept when the case fails.
"""

import json
import os
import random
import resource
import select
import shutil
import signal
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from tests.helpers.forks import end_with_parent

Verdict = Literal["right", "words", "traceback", "wrong", "hang", "lost", "beyond"]
"""right: the right result. words: a clean refusal. wrong: another result, or an end without words. lost: a
committed checkpoint is gone. beyond: more memory than the kind allows. A process that dies counts as a
traceback."""

MOST_ADDRESSES = 6 << 30
"""Bytes of addresses of a process; PyTorch alone takes 1 to 2 GiB of them."""

GOOD = ("right", "words")


@dataclass(frozen=True)
class Outcome:
    """How one case ended."""

    verdict: Verdict
    detail: str = ""
    seconds: float = 0.0
    growth: int = 0
    """Bytes by which the process grew at its largest."""


class Kind(ABC):
    """One kind of fault."""

    name: str
    count: int
    """Cases of a full run."""
    sample: tuple[int, ...]
    """The cases that `scripts/test` runs."""
    forks_commands: bool = False
    """Whether its cases fork whole commands, which are quicker where all imports are done already."""
    limit: float = 20.0
    """Seconds after which a case counts as hanging."""
    most_memory: int = 1 << 30
    """Bytes that one case may add to the process."""
    per_process: int = 200
    """Cases that one process tries, one after the other."""

    def prepare(self, folder: Path) -> None:  # noqa: B027 (many kinds share nothing)
        """Make what all cases share; called once, in a process of its own."""

    @abstractmethod
    def attempt(self, number: int, draw: random.Random, shared: Path, folder: Path) -> Outcome:
        """Try one case. `shared` is what `prepare` filled, `folder` an empty one for this case."""

    def total(self, shared: Path) -> int:
        """How many different cases there are; more than those are not tried."""
        return sys.maxsize


def memory(field: str) -> int:
    """A field of /proc/self/status in bytes: VmRSS, VmHWM."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return 0


def forget_peak() -> int:
    """Let VmHWM begin again at what is used now; returns that."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return memory("VmHWM")  # the peak so far: growth below it goes unseen
    return memory("VmRSS")


def try_case(kind: Kind, number: int, seed: int, work: Path) -> Outcome:
    """One case with its time and memory; the folder is kept under `failures` if it fails."""
    folder = work / "scratch" / f"{kind.name}-{number}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    before, start = forget_peak(), time.monotonic()
    try:
        outcome = kind.attempt(
            number, random.Random(f"{seed} {kind.name} {number}"), work / kind.name, folder
        )
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        outcome = Outcome(
            "traceback", f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"
        )
    seconds, growth = time.monotonic() - start, max(0, memory("VmHWM") - before)
    seconds, growth = max(seconds, outcome.seconds), max(growth, outcome.growth)
    verdict, detail = outcome.verdict, outcome.detail[:600]
    if verdict in GOOD and growth > kind.most_memory:
        verdict, detail = "beyond", f"{growth >> 20} MiB. {detail}"
    return Outcome(verdict, detail, seconds, growth)


class Worker:
    """A forked process that tries a list of cases and tells of each on a pipe."""

    def __init__(self, kind: Kind, numbers: list[int], seed: int, work: Path) -> None:
        self.kind, self.left, self.work = kind, deque(numbers), work
        self.reading, writing = os.pipe()
        sys.stdout.flush()
        self.process = os.fork()
        if not self.process:
            status = 1
            try:
                os.setsid()
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                end_with_parent()
                resource.setrlimit(resource.RLIMIT_AS, (MOST_ADDRESSES, MOST_ADDRESSES))
                os.close(self.reading)
                with os.fdopen(writing, "w", buffering=1) as pipe:
                    for number in numbers:
                        pipe.write(json.dumps(asdict(try_case(kind, number, seed, work))) + "\n")
                status = 0
            finally:
                os._exit(status)
        os.close(writing)
        self.buffer = b""
        self.began = time.monotonic()

    def outcomes(self) -> Iterable[tuple[int, Outcome]]:
        """What has been told since the last call; nothing if nothing was."""
        ready, _, _ = select.select([self.reading], [], [], 0.05)
        if ready:
            chunk = os.read(self.reading, 1 << 16)
            self.buffer += chunk
            *lines, self.buffer = self.buffer.split(b"\n")
            for line in lines:
                self.began = time.monotonic()
                yield self.left.popleft(), Outcome(**json.loads(line))
            if not chunk:
                _, status = os.waitpid(self.process, 0)
                self.process = 0
                if self.left:
                    yield self.left.popleft(), Outcome("traceback", f"the process died, wait status {status}")
        elif time.monotonic() - self.began > self.kind.limit:
            self.kill()
            yield self.left.popleft(), Outcome("hang", f"more than {self.kind.limit:.0f} s", self.kind.limit)

    def kill(self) -> None:
        """End the process and what it started."""
        if self.process:
            try:
                os.killpg(self.process, signal.SIGKILL)
            except ProcessLookupError:  # it has not made its group yet
                os.kill(self.process, signal.SIGKILL)
            os.waitpid(self.process, 0)
            self.process = 0

    def close(self) -> list[int]:
        """End the process; returns the cases that it did not come to."""
        self.kill()
        os.close(self.reading)
        return list(self.left)


def in_child(action: Callable[[], None]) -> None:
    """Run a function in a forked process, so that nothing of it stays in this one. Raises RuntimeError."""
    sys.stdout.flush()
    process = os.fork()
    if not process:
        status = 1
        try:
            action()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)
    if os.waitpid(process, 0)[1]:
        raise RuntimeError("The cases could not be prepared: see the traceback above.")


def read_record(path: Path) -> dict[int, Outcome]:
    """The outcomes of an earlier call; the last of each case counts."""
    outcomes: dict[int, Outcome] = {}
    if path.exists():
        for line in path.read_text().splitlines():
            record = json.loads(line)
            number = record.pop("number")
            outcomes[number] = Outcome(**record)
    return outcomes


def attack(
    kind: Kind, numbers: list[int], seed: int, work: Path, jobs: int, seconds: float
) -> dict[int, Outcome]:
    """Try those of the cases that are not yet in the record, for so many seconds at most."""
    record = work / f"{kind.name}-{seed}.jsonl"
    outcomes = read_record(record)
    shared = work / kind.name
    if not (shared / ".prepared").exists():
        shutil.rmtree(shared, ignore_errors=True)
        shared.mkdir(parents=True)
        in_child(partial(kind.prepare, shared))
        (shared / ".prepared").touch()
    numbers = [number for number in numbers if number < kind.total(shared)]
    waiting = deque(number for number in numbers if number not in outcomes)
    end = time.monotonic() + seconds
    workers: list[Worker] = []
    try:
        with record.open("a") as file:
            while workers or (waiting and time.monotonic() < end):
                while waiting and len(workers) < jobs and time.monotonic() < end:
                    some = min(kind.per_process, -(-len(waiting) // jobs))
                    workers.append(Worker(kind, [waiting.popleft() for _ in range(some)], seed, work))
                for worker in list(workers):
                    for number, outcome in worker.outcomes():
                        outcomes[number] = outcome
                        file.write(json.dumps({"number": number, **asdict(outcome)}) + "\n")
                        file.flush()
                        _keep(kind, number, outcome, work)
                    if not worker.process or not worker.left or time.monotonic() > end:
                        workers.remove(worker)
                        waiting.extendleft(reversed(worker.close()))
    finally:
        for worker in workers:
            worker.close()
    return {number: outcomes[number] for number in sorted({*numbers} & outcomes.keys())}


def _keep(kind: Kind, number: int, outcome: Outcome, work: Path) -> None:
    """Move a failed case's folder to where it stays, and remove that of a good one."""
    scratch, failure = work / "scratch" / f"{kind.name}-{number}", work / "failures" / f"{kind.name}-{number}"
    shutil.rmtree(failure, ignore_errors=True)
    if outcome.verdict in GOOD:
        shutil.rmtree(scratch, ignore_errors=True)
        return
    failure.parent.mkdir(parents=True, exist_ok=True)
    if scratch.exists():
        scratch.rename(failure)
    print(f"{kind.name} {number}: {outcome.verdict}: {outcome.detail.strip()[:200]}", flush=True)
