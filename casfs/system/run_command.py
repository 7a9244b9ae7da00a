"""Runs one command to its end, blocking, in a process group of its own.

Its output is copied to the sinks as it arrives. When it exits or times out, its whole group
is killed (`casfs.system.processes`): leftover processes would hold its pipes open, and are
not part of its result. Its stdin is empty.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from casfs.errors import Failed, NotFound
from casfs.system import processes, signals
from casfs.system.files import closing_fd
from casfs.system.processes import DRAIN_TIMEOUT_S, TERM_GRACE_S, Identity

READ_BYTES = 1 << 16
Sinks = Sequence[BinaryIO]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended. `exit_code` is negative for a signal, as in subprocess."""

    exit_code: int
    timed_out: bool
    duration_ms: int


def run(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    timeout: float | None,
    stdout: Sinks,
    stderr: Sinks,
    started: Callable[[Identity], None] = lambda identity: None,
) -> Ended:
    """Runs a command to its end. Raises NotFound (the program), Failed (it cannot start)."""
    begin = time.monotonic()
    process: subprocess.Popen[bytes] | None = None
    try:
        with signals.deferred():  # else one could raise after the start, and before we know it
            process = _start(argv, cwd, env)
        started(Identity.of(process.pid))
        deadline = None if timeout is None else begin + timeout
        timed_out = not _pump(process, stdout, stderr=stderr, deadline=deadline)
        if timed_out:
            processes.send(process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(TERM_GRACE_S)
    finally:
        if process is not None:
            _end(process)
    return Ended(process.returncode, timed_out, round((time.monotonic() - begin) * 1000))


def _end(process: subprocess.Popen[bytes]) -> None:
    processes.send(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def _start(argv: Sequence[str], cwd: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    if not cwd.is_dir():
        raise NotFound(f"no directory {cwd}")
    try:
        return subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=dict(env),
            bufsize=0,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise NotFound(f"no program {argv[0]!r} on the PATH") from None
    except (OSError, ValueError) as error:
        raise Failed(f"cannot run {argv[0]!r}: {error}") from None


def _pump(
    process: subprocess.Popen[bytes], stdout: Sinks, stderr: Sinks, deadline: float | None
) -> bool:
    """Copies the output until the command exits; returns False when the deadline came first. A
    process that left the group may hold a pipe open: output after the exit is dropped soon."""
    assert process.stdout is not None
    assert process.stderr is not None
    watch = os.pidfd_open(process.pid)
    over = False
    with closing_fd(watch), selectors.DefaultSelector() as waiting:
        waiting.register(watch, selectors.EVENT_READ)
        waiting.register(process.stdout, selectors.EVENT_READ, stdout)
        waiting.register(process.stderr, selectors.EVENT_READ, stderr)
        while waiting.get_map():
            ready = waiting.select(0 if over else _seconds_left(deadline))
            if not ready or _seconds_left(deadline) == 0:
                return over
            for key, _ in ready:
                if key.fd == watch:
                    processes.send(process.pid, signal.SIGKILL)
                    over = True
                    deadline = time.monotonic() + DRAIN_TIMEOUT_S
                    waiting.unregister(watch)
                elif not _copy(key.fd, key.data):
                    waiting.unregister(key.fileobj)
    return True


def _seconds_left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def _copy(fd: int, sinks: Sinks) -> bool:
    """Copies the available output; returns False at the end."""
    piece = os.read(fd, READ_BYTES)
    for sink in sinks:
        sink.write(piece)
        sink.flush()
    return bool(piece)
