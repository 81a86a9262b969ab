"""How a process answers the signals that ask it to stop; whole runs are in jobs/test_signals.py."""

import os
import signal
import threading

import pytest

from vitkit.signals import STOP_SIGNALS, StopRequest, StopSignals, ignore_stop_signals, stop_signals


def answers() -> list[object]:
    return [signal.getsignal(number) for number in STOP_SIGNALS]


@pytest.fixture
def handlers() -> list[object]:
    """The answers before the test, which `tests/conftest.py` restores."""
    return answers()


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_raises_where_the_program_stands(number: signal.Signals, handlers: list[object]) -> None:
    with pytest.raises(StopRequest, match=f"stopped by {number.name}") as caught, stop_signals() as stop:
        try:
            os.kill(os.getpid(), number)
        finally:
            os.kill(os.getpid(), number)  # changes nothing: what is cleared away here is cleared away
    assert caught.value.exit_code == 128 + number and stop.number == number
    assert answers() == handlers


def test_a_held_block_comes_to_its_end_first() -> None:
    steps = []
    with pytest.raises(StopRequest), stop_signals() as stop, stop.held():
        for step in range(10):
            if step == 3:
                os.kill(os.getpid(), signal.SIGTERM)
                os.kill(os.getpid(), signal.SIGHUP)
                os.kill(os.getpid(), signal.SIGINT)  # within half a second: the same one
            steps.append(step)
            if stop.number is not None:
                break
    assert steps == [0, 1, 2, 3] and stop.number == signal.SIGTERM


def test_what_fails_in_a_held_block_is_heard() -> None:
    with pytest.raises(ValueError, match="a bug"), stop_signals() as stop, stop.held():
        os.kill(os.getpid(), signal.SIGTERM)
        raise ValueError("a bug")


def test_a_second_ctrl_c_breaks_a_held_block_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitkit.signals.SAME_SECONDS", 0.0)
    reached = []
    with pytest.raises(StopRequest), stop_signals() as stop, stop.held():
        os.kill(os.getpid(), signal.SIGINT)
        reached.append("the rest of the block")
        os.kill(os.getpid(), signal.SIGINT)
        reached.append("its end")
    assert reached == ["the rest of the block"]
    with pytest.raises(StopRequest), stop_signals() as stop, stop.held():
        os.kill(os.getpid(), signal.SIGINT)
        stop.let_nothing_interrupt()
        os.kill(os.getpid(), signal.SIGINT)
        reached.append("its end")
    assert reached[1:] == ["its end"]


def test_an_inner_block_gives_the_answers_of_the_outer_one_and_what_was_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with stop_signals() as outer, stop_signals() as inner:
        assert inner is outer
        os.kill(os.getpid(), signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_at_the_end_of_a_process_nothing_can_change_its_exit_code(handlers: list[object]) -> None:
    with pytest.raises(StopRequest), stop_signals(last=True):
        os.kill(os.getpid(), signal.SIGTERM)
    assert answers() == [signal.SIG_IGN] * len(STOP_SIGNALS)
    for number, handler in zip(STOP_SIGNALS, handlers, strict=True):
        signal.signal(number, handler)  # type: ignore[arg-type]
    with stop_signals(last=True):
        pass
    assert answers() == handlers


def test_other_threads_leave_signals_alone(handlers: list[object]) -> None:
    seen: list[object] = []

    def run() -> None:
        with stop_signals() as stop:
            seen.extend([isinstance(stop, StopSignals), answers() == handlers])

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [True, True]


def test_children_ignore_them_all() -> None:
    ignore_stop_signals()
    for number in STOP_SIGNALS:
        os.kill(os.getpid(), number)
    assert answers() == [signal.SIG_IGN] * len(STOP_SIGNALS)
