"""Child processes of agents: one process group each, none left behind.

A child is started in a session of its own, so its whole group can be ended with it. It
carries CASFS_RUN, a token that its intent made durable *before* it started: whatever a
killed daemon left running is found by that token in /proc even if the daemon died before
it could write down the process id. In the same way what left the group is found, and ended,
as soon as the child is over: a step's processes are gone before its workspace is recorded.
So one token is for one child at a time.

This is `casfs.system.run_command` for a nursery: it feeds stdin, keeps what it reads, and can be
cancelled. What both stand on is `casfs.system.processes`.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import trio

from casfs.errors import Failed
from casfs.system import processes
from casfs.system.processes import DRAIN, GRACE, Identity

MAX_OUTPUT_BYTES = 64 << 20  # bytes of stdout, and of stderr
TOKEN = processes.TOKEN


@dataclass(frozen=True)
class ProcessResult:
    """How a process ended; `exit_code` is negative for a signal, as in subprocess."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    duration_ms: int


class TimedOut(Failed):
    """The process took longer than it may; its group has been ended. `outcome`: what it was then,
    with all that it had written."""

    def __init__(self, reason: str, outcome: ProcessResult) -> None:
        super().__init__(reason)
        self.outcome = outcome


class OutputTooLarge(Failed):
    """The process wrote more than MAX_OUTPUT; its group has been ended."""


async def run(
    argv: Sequence[str],
    stdin: bytes,
    *,
    cwd: Path | None,
    env: Mapping[str, str],
    timeout: float,
    started: Callable[[int], Awaitable[None]],
) -> ProcessResult:
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
            await _end(process, env.get(TOKEN))
    assert process.returncode is not None
    duration = round((time.monotonic() - begin) * 1000)
    outcome = ProcessResult(process.returncode, bytes(out), bytes(err), duration)
    if limit.cancelled_caught:
        raise TimedOut(f"{argv[0]} took longer than {timeout:g} s", outcome)
    if max(len(out), len(err)) > MAX_OUTPUT_BYTES:
        raise OutputTooLarge(f"{argv[0]} wrote more than {MAX_OUTPUT_BYTES >> 20} MiB")
    return outcome


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
        processes.send(process.pid, signal.SIGKILL)  # a child of it may hold the pipes open
        nursery.cancel_scope.deadline = trio.current_time() + DRAIN  # so may one that left it


async def _feed(pipe: trio.abc.SendStream, data: bytes) -> None:
    with suppress(trio.BrokenResourceError):  # a command may well not read its prompt
        await pipe.send_all(data)
    await pipe.aclose()


async def _drain(pipe: trio.abc.ReceiveStream, into: bytearray, scope: trio.CancelScope) -> None:
    async with pipe:
        async for piece in pipe:
            into += piece
            if len(into) > MAX_OUTPUT_BYTES:
                scope.cancel()
                return


async def _end(process: trio.Process, token: str | None) -> None:
    """SIGTERM, a moment, SIGKILL: to the group, which may outlive its leader; and then to
    whatever of it went elsewhere."""
    if process.returncode is None:
        processes.send(process.pid, signal.SIGTERM)
        with trio.move_on_after(GRACE):
            await process.wait()
    processes.send(process.pid, signal.SIGKILL)
    await process.wait()
    if token:
        await trio.to_thread.run_sync(processes.end_carrying, TOKEN, token)


def start_time(pid: int) -> int | None:
    """Clock ticks after boot at which a process started: with its id, it names it for good."""
    return processes.start_time(pid)


def end_orphans(token: str, pid: int | None, started: int | None) -> int:
    """End what a killed daemon left of a run; returns how many processes carried its token."""
    if pid is not None and started is not None:
        processes.end(Identity(pid, started))
    return processes.end_carrying(TOKEN, token)
