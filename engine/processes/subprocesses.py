"""Subprocesses of agents: one process group each, none left behind.

A subprocess is started in a session of its own, so its whole group can be ended with it, and in
the containment of its attempt (`engine.processes.containment`). It carries CASFS_RUN, a token that
its intent made durable *before* it started: processes that a killed daemon left are found by that
token in /proc, even if the daemon died before it could record the process id; also by a resource
limit, where the environment was cleared. A step's processes end before its workspace is recorded.

This is `casfs.system.run_command` for trio: it feeds stdin, buffers the output, and can be
cancelled. Both use `casfs.system.processes`.

A subprocess is started by the thread of the event loop. `trio.lowlevel.open_process` starts it in
a worker thread, which ends when it is idle; the kernel would take that for the death of the
parent, and kill a program that has asked for that (PR_SET_PDEATHSIG, `bwrap --die-with-parent`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import trio

from casfs.errors import Failed
from casfs.system import processes
from casfs.system.files import closing_fd, os_errors
from casfs.system.processes import DRAIN_TIMEOUT_S, TERM_GRACE_S, Identity
from engine.processes import containment
from engine.processes.containment import Confinement

Output = Callable[[bytes], Awaitable[None]]  # gets what a program prints, as it comes
MAX_OUTPUT_BYTES = 64 << 20  # of stdout, and of stderr
RUN_VARIABLE = processes.RUN_VARIABLE


class Process:
    """A subprocess with its pipes as trio's streams."""

    def __init__(self, argv: Sequence[str], **options: Any) -> None:
        """Takes the options of `subprocess.Popen`. Raises OSError."""
        self.confinement: Confinement | None = None
        self.group: Path | None = None  # of control, in the confinement
        self._popen = subprocess.Popen(list(argv), bufsize=0, **options)
        self.pid = self._popen.pid
        self.stdin = _stream(self._popen.stdin)
        self.stdout = _stream(self._popen.stdout)
        self.stderr = _stream(self._popen.stderr)

    @property
    def returncode(self) -> int | None:
        return self._popen.poll()

    def kill(self) -> None:
        self._popen.kill()

    async def wait(self) -> None:
        if self._popen.poll() is None:
            fd = os.pidfd_open(self.pid)
            with closing_fd(fd):
                await trio.lowlevel.wait_readable(fd)
            self._popen.wait()


def _stream(pipe: IO[bytes] | None) -> trio.lowlevel.FdStream | None:
    if pipe is None:
        return None
    with pipe:
        return trio.lowlevel.FdStream(os.dup(pipe.fileno()))


@dataclass(frozen=True)
class ProcessResult:
    """The result of a process; `exit_code` is negative for a signal, as in `subprocess`."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    duration_ms: int


class TimedOut(Failed):
    """The process exceeded its time limit; its group has been ended. `result`: with all that it
    had written until then."""

    def __init__(self, reason: str, result: ProcessResult) -> None:
        super().__init__(reason)
        self.result = result


class OutputTooLarge(Failed):
    """The process wrote more than MAX_OUTPUT; its group has been ended."""


async def ignore_output(piece: bytes) -> None:
    """For a program whose output is not shown while it runs."""


async def run(
    argv: Sequence[str],
    stdin: bytes,
    *,
    cwd: Path | None,
    env: Mapping[str, str],
    timeout: float,
    started: Callable[[int], Awaitable[None]],
    interrupted: Callable[[ProcessResult], Awaitable[None]] | None = None,
    output: Output = ignore_output,
) -> ProcessResult:
    """Runs a program to its end, within `timeout` seconds; `started` gets the process id, `output`
    its stdout as it comes, and `interrupted` its output until then where the task is cancelled.
    Raises Failed (it cannot be started), TimedOut, OutputTooLarge."""
    begin = time.monotonic()
    with os_errors(f"cannot run {argv[0]}"):
        process = open_process(
            argv,
            env.get(RUN_VARIABLE),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=dict(env),
            start_new_session=True,
        )
    out = bytearray()
    err = bytearray()

    def result() -> ProcessResult:
        assert process.returncode is not None
        duration = round((time.monotonic() - begin) * 1000)
        return ProcessResult(
            process.returncode, bytes(out), stderr=bytes(err), duration_ms=duration
        )

    communicated = False
    try:
        with trio.move_on_after(timeout) as limit:
            await _communicate(process, stdin, out=out, err=err, started=started, output=output)
        communicated = True
    finally:
        with trio.CancelScope(shield=True):
            await end_process(process)
            if interrupted is not None and not communicated:
                assert process.stdout
                assert process.stderr
                with trio.move_on_after(DRAIN_TIMEOUT_S) as drain_scope:  # what was not read yet
                    await _drain(process.stdout, out, scope=drain_scope, output=output)
                    await _drain(process.stderr, err, drain_scope)
                await interrupted(result())
            for pipe in filter(None, (process.stdout, process.stderr)):
                await pipe.aclose()
    if limit.cancelled_caught:
        raise TimedOut(f"{argv[0]} took longer than {timeout:g} s", result())
    if max(len(out), len(err)) > MAX_OUTPUT_BYTES:
        raise OutputTooLarge(f"{argv[0]} wrote more than {MAX_OUTPUT_BYTES >> 20} MiB")
    return result()


def open_process(argv: Sequence[str], token: str | None, **options: Any) -> Process:
    """Starts a subprocess of this daemon, contained in the attempt with that token. Raises
    OSError."""
    if token is None:
        return Process(argv, **options)
    confinement = containment.of_run(token)
    argv, group = confinement.launch(argv, options.get("env"), options.get("cwd"))
    try:
        with processes.marking(RUN_VARIABLE, token):
            process = Process(argv, **options)
    except BaseException:
        confinement.end(group, None)
        raise
    process.confinement = confinement
    process.group = group
    return process


async def _communicate(
    process: Process,
    stdin: bytes,
    out: bytearray,
    err: bytearray,
    started: Callable[[int], Awaitable[None]],
    output: Output,
) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    await started(process.pid)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_feed, process.stdin, stdin)
        nursery.start_soon(_drain, process.stdout, out, nursery.cancel_scope, output)
        nursery.start_soon(_drain, process.stderr, err, nursery.cancel_scope)
        await process.wait()
        processes.send(process.pid, signal.SIGKILL)  # a child of it may keep the pipes open
        # so may one that left the group
        nursery.cancel_scope.deadline = trio.current_time() + DRAIN_TIMEOUT_S


async def _feed(pipe: trio.abc.SendStream, data: bytes) -> None:
    with suppress(trio.BrokenResourceError):  # a command may well not read its prompt
        await pipe.send_all(data)
    await pipe.aclose()


async def _drain(
    pipe: trio.abc.ReceiveStream,
    into: bytearray,
    scope: trio.CancelScope,
    output: Output = ignore_output,
) -> None:
    async for piece in pipe:
        into += piece
        await output(bytes(piece))
        if len(into) > MAX_OUTPUT_BYTES:
            scope.cancel()
            return


async def end_process(process: Process) -> None:
    """Sends SIGTERM, and after the grace period SIGKILL, to the group, which may outlive its
    leader; then ends what the containment holds of it."""
    if process.returncode is None:
        processes.send(process.pid, signal.SIGTERM)
        with trio.move_on_after(TERM_GRACE_S):
            await process.wait()
    if process.returncode is None and process.confinement:
        process.confinement.kill(process.pid)
        with trio.move_on_after(TERM_GRACE_S):
            await process.wait()
    processes.send(process.pid, signal.SIGKILL)
    await process.wait()
    if process.confinement:
        await trio.to_thread.run_sync(process.confinement.end, process.group, process.returncode)


def start_time(pid: int) -> int | None:
    """Returns the clock ticks after boot at which a process started; with the process id it is
    unique."""
    return processes.start_time(pid)


def end_orphans(token: str | None, pid: int | None, started: int | None) -> int:
    """Ends the processes of an attempt that a killed daemon left; returns how many carried its
    token. An attempt without a token, of an imported thread, has no processes here."""
    if token is None:
        return 0
    containment.end_left(token)
    if pid is not None and started is not None:
        processes.end(Identity(pid, started), token)
    return processes.end_carrying(RUN_VARIABLE, token)
