"""Signals that whoever starts the tests ignores."""

import signal


def heed_ignored_signals() -> None:
    """Have processes that the tests start heed signals that this one was started to ignore.

    `nohup` ignores SIGHUP, a shell SIGINT in what it starts in the background. What is ignored stays
    ignored in the processes that are started, while a handler goes back to the default there. A session that
    is to survive a hangup still does.
    """
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, set(signal.Signals))
