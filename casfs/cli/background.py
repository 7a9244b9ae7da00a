"""Processes in the background: started, waited for until they are ready, and let go.

The child is this program again with `--foreground` and a pipe to report on: a line with
`ready`, or the exit code and the one line that says why not. It has a session of its own,
`/` as its directory and no descriptor of its caller but that pipe, which it closes. Started
by an agent it is still the store's: it does not end with the agent's step.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from casfs.errors import CasfsError
from casfs.system.processes import TOKEN

READY = "ready"


class Declined(CasfsError):
    """What the child said before it gave up, with its exit code."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def detach(arguments: list[str], log: Path) -> int:
    """Start `casfs ARGUMENTS… --ready-fd N` and wait until it is ready; returns its pid.

    Raises Declined. What it prints besides goes to `log`.
    """
    read_end, write_end = os.pipe()
    with open(log, "ab") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", "casfs", *arguments, "--ready-fd", str(write_end)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            env={name: value for name, value in os.environ.items() if name != TOKEN},
            pass_fds=(write_end,),
            start_new_session=True,
        )
    os.close(write_end)
    with open(read_end, encoding="utf-8", errors="replace") as pipe:
        line = pipe.readline().strip()
    if line == READY:
        child.returncode = 0  # it is on its own now: nobody has to wait for it
        return child.pid
    code = child.wait()
    raise Declined(line or f"the process ended at once (exit code {code}); see {log}", code or 1)


class Reporter:
    """In the child: says one line, once, to whoever started it."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd

    def __call__(self, line: str) -> None:
        if self._fd is not None:
            with suppress(BrokenPipeError):  # nobody waits any more
                os.write(self._fd, line.encode() + b"\n")
        self.close()

    def close(self) -> None:
        """Leave it to another process to say it."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
