"""Answer the signals that ask a process to stop, at a place where nothing is lost.

This module imports neither torch nor numpy, so that a command can answer before they are loaded.
"""

import errno
import os
import signal
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""Ctrl-C; the end of a service or a batch job; a lost terminal; the warning of SLURM before a job's time is
over."""

SAME_SECONDS = 0.5
"""Seconds within which two Ctrl-C count as one: programs that start others often pass it on as well."""


class StopRequest(KeyboardInterrupt):
    """A signal asked this process to stop. Like KeyboardInterrupt it is no `Exception`, so that no code takes
    it for an error that it can go on after."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number = number

    @property
    def exit_code(self) -> int:
        """Exit code for the signal: 128 plus its number, as shells define it."""
        return 128 + self.number


class StopSignals:
    """The answer of the main thread to the signals that ask it to stop.

    The first signal raises StopRequest where the program stands or, inside `held`, where that block ends.
    Later signals change nothing, except that a second Ctrl-C does not wait for the end of `held`.
    """

    number: int | None = None
    """The first signal that arrived."""
    point = ""
    """The point that the work has reached, in the words of the message that follows "Stopped"; the work keeps
    it up to date."""
    _holding = _answered = False
    _may_break_off = True
    _since = 0.0

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let the block come to its end first; it may look at `number` and end early."""
        before, self._holding = self._holding, True
        try:
            yield
        finally:
            self._holding = before
        if self.number is not None and not self._answered and not before:
            self._answered = True
            raise StopRequest(self.number)

    def let_nothing_interrupt(self) -> None:
        """Ignore a second Ctrl-C from now on: only tidying up is left."""
        self._may_break_off = False

    def handle(self, number: int, frame: Any) -> None:
        """Answer a signal; a second Ctrl-C does not wait for the end of the held block."""
        if number == signal.SIGHUP:
            _leave_lost_terminal()
        now = time.monotonic()
        if self.number is None:
            self.number, self._since = number, now
        impatient = number == signal.SIGINT and self._may_break_off and now - self._since > SAME_SECONDS
        if self._answered or (self._holding and not impatient):
            return
        self._answered = True
        raise StopRequest(self.number)


@contextmanager
def stop_signals(*, last: bool = False) -> Iterator[StopSignals]:
    """Answer the signals that ask to stop by StopRequest; inside another such block, the outer one answers.

    A signal that is ignored stays ignored (`nohup`, `trap '' TERM`). Python answers signals in the main
    thread alone: in another, this does nothing.

    Args:
        last: whether the process ends after this block: it then ignores all signals after the first, so that
            its exit code is the first one's.
    """
    if threading.current_thread() is not threading.main_thread():
        yield StopSignals()
        return
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    for handler in before.values():
        outer = getattr(handler, "__self__", None)
        if isinstance(outer, StopSignals):
            yield outer
            return
    stop = StopSignals()
    # None is a handler that was not installed by Python, which Python cannot restore.
    answered = {n: handler for n, handler in before.items() if handler not in (signal.SIG_IGN, None)}
    for number in answered:
        signal.signal(number, stop.handle)
    try:
        yield stop
    finally:
        for number, handler in answered.items():
            signal.signal(number, signal.SIG_IGN if last and stop.number is not None else handler)


@contextmanager
def stop_signals_blocked() -> Iterator[None]:
    """Let child processes that are started inside begin with these signals blocked, until they ignore them.

    Otherwise a signal to the whole process group could reach a child that still has its parent's handlers.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_stop_signals() -> None:
    """Ignore, in a child process, the signals that its parent answers on its behalf."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def _leave_lost_terminal() -> None:
    """Print to nowhere if the terminal has gone: no error in printing may keep a checkpoint from its end."""
    for descriptor in (1, 2):
        try:
            termios.tcgetattr(descriptor)
        except termios.error as error:
            if error.args[0] == errno.EIO:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)
