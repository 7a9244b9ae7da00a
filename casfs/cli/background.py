"""Background processes: `start` runs one and waits for it, `serve` is what runs in it.

The subprocess is this program again with `--foreground` and a pipe on which it reports: a line
with `ready`, or the message of the error that ended it. It has a session of its own, `/` as
its working directory, and of its parent's descriptors only that pipe, which it closes. When
an agent starts it, it still belongs to the store: it does not end with the agent's step.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import click

from casfs.errors import CasfsError
from casfs.system import daemon_socket
from casfs.system.start_failed import StartFailed

READY = "ready"
STARTING_S = 10.0  # for a daemon that another command starts

foreground_option = click.option("--foreground", is_flag=True, help="Do not go to the background.")
ready_option = click.option("--ready-fd", type=int, hidden=True)


def start(root: Path, arguments: list[str], log: str) -> int:
    """Starts `casfs --store ROOT ARGUMENTS… --ready-fd N`, waits until it is ready; its pid. Its
    stdout and stderr are appended to `log` in the store's log directory. Raises StartFailed."""
    import subprocess

    from casfs.system.processes import RUN_VARIABLE, remove_mark

    command = [sys.executable, "-P", "-m", "casfs", "--store", str(root), *arguments]
    path = root / "log" / log
    read_end, write_end = os.pipe()
    remove_mark()
    with open(path, "ab") as output:
        process = subprocess.Popen(
            [*command, "--ready-fd", str(write_end)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            env={name: value for name, value in os.environ.items() if name != RUN_VARIABLE},
            pass_fds=(write_end,),
            start_new_session=True,
        )
    os.close(write_end)
    with open(read_end, encoding="utf-8", errors="replace") as pipe:
        line = pipe.readline().strip()
    if line == READY:
        process.returncode = 0  # detached: it is never waited for
        return process.pid
    code = process.wait()
    raise StartFailed(
        line or f"the process ended at once (exit code {code}); see {path}", code or 1
    )


def start_daemon(root: Path) -> None:
    """Starts the daemon where none runs. Raises StartFailed."""
    if daemon_socket.find(root) is not None:
        return
    try:
        start(root, ["daemon"], "daemon.err")
    except StartFailed:
        if not daemon_socket.runs(root):
            raise
        end = time.monotonic() + STARTING_S  # another command was faster
        while daemon_socket.find(root) is None and time.monotonic() < end:
            time.sleep(0.05)
    else:
        click.echo("casfs: daemon started; `casfs daemon stop` ends it", err=True)


class Reporter:
    """The subprocess's end of the pipe: sends one line, once."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    def __call__(self, line: str) -> None:
        if self._fd is not None:
            with suppress(BrokenPipeError):  # the parent has gone
                os.write(self._fd, line.encode() + b"\n")
        self.close()

    def close(self) -> None:
        """Closes the pipe without a report: another process has it too and will send one."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _notify(address: str) -> None:
    """Tells systemd that a service of `Type=notify` is ready."""
    import socket

    path = f"\0{address[1:]}" if address.startswith("@") else address
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
        connection.sendto(b"READY=1", path)


def serve(run: Callable[[Callable[[], None]], None], report: Reporter) -> None:
    """Calls `run(ready)` and reports when it is ready, or the error that prevented it."""
    systemd = os.environ.pop("NOTIFY_SOCKET", "")  # not for agents

    def ready() -> None:
        report(READY)
        if systemd:
            _notify(systemd)

    try:
        run(ready)
    except (CasfsError, OSError) as error:
        report(" ".join(str(error).split("\n")))
        raise
