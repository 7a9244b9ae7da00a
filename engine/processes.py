"""Child processes of agents: one process group each, none left behind.

A child is started in a session of its own, so its whole group can be ended with it. It
carries CASFS_RUN, a token that its intent made durable *before* it started: whatever a
killed daemon left running is found by that token in /proc even if the daemon died before
it could write down the process id.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import trio

from casfs.errors import Failed

GRACE = 2.0  # seconds between SIGTERM and SIGKILL
MAX_OUTPUT = 64 << 20  # bytes of stdout, and of stderr
TOKEN = "CASFS_RUN"


@dataclass(frozen=True)
class Outcome:
    """How a process ended; `exit_code` is negative for a signal, as in subprocess."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    duration_ms: int


class TimedOut(Failed):
    """The process took longer than it may; its group has been ended."""


class TooMuch(Failed):
    """The process wrote more than MAX_OUTPUT; its group has been ended."""


async def run(
    argv: Sequence[str],
    stdin: bytes,
    *,
    cwd: Path | None,
    env: Mapping[str, str],
    timeout: float,
    started: Callable[[int], Awaitable[None]],
) -> Outcome:
    """Run to the end. Raises Failed (it cannot be started), TimedOut, TooMuch."""
    begin = time.monotonic()
    try:
        process = await trio.lowlevel.open_process(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=dict(env),
            start_new_session=True,
        )
    except OSError as error:
        raise Failed(f"cannot run {argv[0]}: {error.strerror}") from None
    out, err = bytearray(), bytearray()
    try:
        with trio.move_on_after(timeout) as limit:
            await _talk(process, stdin, out, err, started)
    finally:
        with trio.CancelScope(shield=True):
            await _end_group(process)
    if limit.cancelled_caught:
        raise TimedOut(f"{argv[0]} took longer than {timeout:g} s")
    if max(len(out), len(err)) > MAX_OUTPUT:
        raise TooMuch(f"{argv[0]} wrote more than {MAX_OUTPUT >> 20} MiB")
    assert process.returncode is not None
    duration = round((time.monotonic() - begin) * 1000)
    return Outcome(process.returncode, bytes(out), bytes(err), duration)


async def _talk(
    process: trio.Process,
    stdin: bytes,
    out: bytearray,
    err: bytearray,
    started: Callable[[int], Awaitable[None]],
) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    await started(process.pid)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_feed, process.stdin, stdin)
        nursery.start_soon(_drain, process.stdout, out, nursery.cancel_scope)
        nursery.start_soon(_drain, process.stderr, err, nursery.cancel_scope)
        await process.wait()
        _signal_group(process.pid, signal.SIGKILL)  # a child of it may hold the pipes open


async def _feed(pipe: trio.abc.SendStream, data: bytes) -> None:
    with suppress(trio.BrokenResourceError):  # a command may well not read its prompt
        await pipe.send_all(data)
    await pipe.aclose()


async def _drain(pipe: trio.abc.ReceiveStream, into: bytearray, scope: trio.CancelScope) -> None:
    async with pipe:
        async for piece in pipe:
            into += piece
            if len(into) > MAX_OUTPUT:
                scope.cancel()
                return


async def _end_group(process: trio.Process) -> None:
    """SIGTERM, a moment, SIGKILL: to the group, which may outlive its leader."""
    if process.returncode is None:
        _signal_group(process.pid, signal.SIGTERM)
        with trio.move_on_after(GRACE):
            await process.wait()
    _signal_group(process.pid, signal.SIGKILL)
    await process.wait()


def _signal_group(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def start_time(pid: int) -> int | None:
    """Clock ticks after boot at which a process started: with its id, it names it for good."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])


def end_orphans(token: str, pid: int | None, started: int | None) -> int:
    """End what a killed daemon left of a run; returns how many processes were found."""
    if pid is not None and started is not None and start_time(pid) == started:
        _signal_group(pid, signal.SIGKILL)
    found = 0
    while victims := list(_carrying(token)):  # until none is left: one may be forking
        for victim in victims:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(victim, signal.SIGKILL)
        found += len(victims)
        time.sleep(0.01)
    return found


def _carrying(token: str) -> Iterator[int]:
    """Living processes with the run's token in their environment. Not this one: an agent may
    have started the daemon that looks for what is left of its run."""
    wanted = f"{TOKEN}={token}".encode()
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = Path(entry.path, "environ").read_bytes()
        except OSError:  # gone, or somebody else's
            continue
        if wanted in environment.split(b"\0"):
            yield int(entry.name)
