"""The process of an agent package that was started before it is needed: `python -P -m
engine.agents.prepared_worker`.

It imports what every such process needs, and waits. A line of JSON on its stdin says whose it is:
from then on it is what `casfs.agents.worker` is when it is started for an attempt.

    {"environment": …, "directory": …, "token": …, "spec": …}    (`engine.processes.launcher`)

It answers READY, or ends where it cannot be that. It ends with the daemon, and after IDLE_S of
waiting.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from typing import Any

from casfs.agents import worker
from casfs.system import processes, syscalls
from engine.processes import launcher

READY = b"\n"
IDLE_S = 600.0
PIECE_BYTES = 1 << 16


def main() -> int:
    syscalls.call("prctl", worker.PR_SET_PDEATHSIG, signal.SIGKILL)
    with socket.socket(fileno=os.dup(0)) as connection:
        connection.settimeout(IDLE_S)
        line = _line(connection)
        if not line:
            return 0
        connection.settimeout(None)
        try:
            _become(json.loads(line))
        except OSError:
            return 1
        connection.sendall(READY)
    return worker.play()


def _line(connection: socket.socket) -> bytes:
    """Returns what was received up to the end of a line, nothing where it ends or takes too long.
    The daemon sends no more before it has the answer."""
    received = b""
    try:
        while not received.endswith(b"\n"):
            piece = connection.recv(PIECE_BYTES)
            if not piece:
                return b""
            received += piece
    except TimeoutError:
        return b""
    return received


def _become(attempt: dict[str, Any]) -> None:
    """Raises OSError."""
    os.environ.clear()
    os.environ.update(attempt["environment"])
    time.tzset()
    os.chdir(attempt["directory"])
    processes.mark(processes.RUN_VARIABLE, attempt["token"])
    launcher.contain(attempt["spec"])
    launcher.stay(attempt["spec"])


if __name__ == "__main__":
    worker.exit_with(main)
