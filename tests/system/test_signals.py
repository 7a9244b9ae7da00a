"""Signals that are waited for, by a process that sends them to itself."""

from __future__ import annotations

import os
import signal
import threading

from casfs.system.signals import Signals, blocked

NUMBERS = (signal.SIGUSR1, signal.SIGUSR2)


def raised(number: signal.Signals) -> None:
    """To this thread: another one, which some test has left, may not have it blocked."""
    signal.pthread_kill(threading.get_ident(), number)


def test_a_signal_ends_waiting() -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with Signals(NUMBERS) as signals:
        raised(signal.SIGUSR1)
        assert signals.wait([]) == {signal.SIGUSR1}
        raised(signal.SIGUSR2)
        raised(signal.SIGUSR1)
        assert signals.wait([]) == set(NUMBERS)
        assert signals.wait([], 0.0) == set()
    assert signal.getsignal(signal.SIGUSR1) == before


def test_so_does_something_to_read() -> None:
    ours, theirs = os.pipe()
    try:
        with Signals(NUMBERS) as signals:
            os.write(theirs, b"x")
            assert signals.wait([ours]) == set()
    finally:
        os.close(ours)
        os.close(theirs)


def test_none_is_lost_while_they_are_blocked() -> None:
    with Signals(NUMBERS) as signals:
        with blocked():
            raised(signal.SIGUSR1)
            assert signals.wait([], 0.0) == set()
        assert signals.wait([]) == {signal.SIGUSR1}


def test_a_child_decides_for_itself() -> None:
    with Signals(NUMBERS) as signals:
        with blocked():
            pid = os.fork()
            if pid == 0:
                try:
                    signals.reset({signal.SIGUSR1: signal.SIG_IGN})
                    raised(signal.SIGUSR1)
                    raised(signal.SIGUSR2)
                finally:
                    os._exit(1)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGUSR2
        assert signals.wait([], 0.0) == set()
