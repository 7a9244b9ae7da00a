"""Starts the processes of agent packages; in a daemon one is always started ahead.

Most of the time that such a process takes until it plays is that of its imports. So while one
plays, a daemon starts another one, which waits for the next attempt
(`engine.agents.prepared_worker`). It is used where the next attempt's environment is the same in
what counts while Python starts.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import trio

from engine.agents.prepared_worker import READY
from engine.processes import containment
from engine.processes.subprocesses import Process, end_process, open_process

PYTHON = (sys.executable, "-u", "-P", "-m")
WORKER = (*PYTHON, "casfs.agents.worker")
PREPARED_WORKER = (*PYTHON, "engine.agents.prepared_worker")
# Variables that Python, the C library or the dynamic linker look at when a process starts.
AT_START = re.compile(r"(PYTHON|LD_|LC_|MALLOC_|GLIBC_).*|LANG|LANGUAGE|HOME|TZ|OPENSSL_CONF")
ANSWER_TIMEOUT_S = 5.0
POLL_INTERVAL_S = 0.001


class _Started:
    """A process whose stdin is a socket to this one."""

    def __init__(self, argv: tuple[str, ...], token: str | None, **options: Any) -> None:
        """Raises OSError."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self.process = open_process(
                    argv,
                    token,
                    stdin=theirs,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    **options,
                )
            except BaseException:
                ours.close()
                raise
        self.connection = ours


class WorkerProcesses:
    """`is_daemon`: one is started ahead."""

    def __init__(self) -> None:
        self.is_daemon = False
        self._prepared: _Started | None = None
        self._at_start: dict[str, str] = {}  # of the environment of that one

    async def start(
        self, token: str | None, directory: Path | str, environment: Mapping[str, str]
    ) -> tuple[Process, trio.SocketStream]:
        """Returns the process of an attempt, and the connection to it. Raises OSError."""
        prepared = self._prepared
        if prepared is not None and token and self._at_start == _at_start(environment):
            self._prepared = None
            attempt = {"environment": {**environment}, "directory": str(directory), "token": token}
            # Not cancelled: a process that belongs to no attempt would stay.
            with trio.CancelScope(shield=True):
                stream = _stream(prepared.connection)
                if await _assign(prepared.process, stream, token=token, attempt=attempt):
                    return prepared.process, stream
        started = _Started(WORKER, token, cwd=directory, env=dict(environment))
        return started.process, _stream(started.connection)

    def prepare(self, environment: Mapping[str, str]) -> None:
        """Starts one ahead, in a daemon; for an attempt with an environment like this."""
        if not self.is_daemon or (self._prepared and self._prepared.process.returncode is None):
            return
        self.close()
        self._at_start = _at_start(environment)
        self._prepared = _Started(PREPARED_WORKER, None, cwd="/", env=self._at_start)

    def close(self) -> None:
        """Ends the one that was started ahead."""
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            prepared.connection.close()
            prepared.process.kill()
            while prepared.process.returncode is None:
                time.sleep(POLL_INTERVAL_S)


def _at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if AT_START.fullmatch(name)}


def _stream(connection: socket.socket) -> trio.SocketStream:
    return trio.SocketStream(trio.socket.from_stdlib_socket(connection))


async def _assign(
    process: Process, stream: trio.SocketStream, token: str, attempt: dict[str, Any]
) -> bool:
    """Makes a prepared process that of an attempt. Returns False where it cannot be, and ends it:
    one that is started for the attempt says why. Raises OSError."""
    confinement = containment.of_run(token)
    try:
        spec, process.group = confinement.spec()
    except OSError:
        process.kill()
        raise
    process.confinement = confinement
    answer = b""
    with trio.move_on_after(ANSWER_TIMEOUT_S), suppress(trio.BrokenResourceError):
        await stream.send_all(json.dumps({**attempt, "spec": spec}).encode() + b"\n")
        answer = await stream.receive_some(len(READY))
    if answer == READY:
        return True
    await end_process(process)
    await stream.aclose()
    if process.stdout is not None:
        await process.stdout.aclose()
    return False


WORKERS = WorkerProcesses()  # of this process
