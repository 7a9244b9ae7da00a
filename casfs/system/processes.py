"""Processes by name, and their end: what `casfs.system.run_command` and the engine stand on.

Every command runs in a session of its own, so that its whole group can be ended with it. A
process that is killed cannot end its command: `Identity` names a process for good (an id
may be given again, an id with its start time is not), so that somebody else can. What left
the group is found by a variable in its environment (`carrying`).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

TOKEN = "CASFS_RUN"  # the variable that the processes of a step carry
GRACE = 2.0  # seconds between SIGTERM and SIGKILL
DRAIN = 1.0  # seconds for what is still in the pipes when a command is over
PATIENCE = 10.0  # seconds until a killed process is gone


@dataclass(frozen=True, slots=True)
class Identity:
    pid: int
    started: int  # clock ticks after boot

    @classmethod
    def of(cls, pid: int) -> Identity:
        return cls(pid, start_time(pid) or 0)

    @classmethod
    def parse(cls, text: str) -> Identity | None:
        parts = text.split()
        return cls(*map(int, parts)) if len(parts) == 2 and all(map(str.isdigit, parts)) else None

    def __str__(self) -> str:
        return f"{self.pid} {self.started}"

    def lives(self) -> bool:
        return start_time(self.pid) == self.started


def start_time(pid: int) -> int | None:
    """None for a process that is gone, or dead and only not yet waited for."""
    fields = _stat(pid)
    return int(fields[19]) if fields and fields[0] not in "ZX" else None


def parent(pid: int) -> int | None:
    """None for a process that is gone."""
    fields = _stat(pid)
    return int(fields[1]) if fields else None


def _stat(pid: int) -> list[str]:
    """What the kernel says of a process, from its state on; nothing when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def send(pid: int, number: signal.Signals) -> None:
    """A signal to the group that `pid` leads, which may outlive it."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def end(identity: Identity) -> bool:
    """End the group of a command whose runner died; False when it is gone already."""
    if not identity.lives():
        return False
    send(identity.pid, signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE
    while identity.lives() and time.monotonic() < deadline:
        time.sleep(0.002)
    return True


def end_carrying(name: str, value: str) -> int:
    """End every process with that variable in its environment, wherever it went; returns how
    many were found. Not this one, which may have been started by such a process."""
    found = set()
    deadline = time.monotonic() + PATIENCE
    while (victims := set(carrying(name, value))) and time.monotonic() < deadline:
        for victim in victims:  # until none is left: one may be forking
            with suppress(ProcessLookupError, PermissionError):
                os.kill(victim, signal.SIGKILL)
        found |= victims
        time.sleep(0.01)
    return len(found)


def carrying(name: str, value: str) -> Iterator[int]:
    """Living processes, but this one, with that variable in their environment."""
    wanted = f"{name}={value}".encode()
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = Path(entry.path, "environ").read_bytes()
        except OSError:  # gone, or somebody else's
            continue
        if wanted in environment.split(b"\0"):
            yield int(entry.name)
