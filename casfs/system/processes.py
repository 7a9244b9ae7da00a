"""Identity and termination of processes and their groups.

Every command runs in a session of its own, so that its whole group can be ended with it. A
process that is killed cannot end its command: `Identity` (pid and start time, since a pid
is reused) lets another process do so later. Descendants that left the group are found by a
token (`carrying`): a variable in their environment, and a number made of it in a resource limit
without effect, which every process inherits, also one that was given an empty environment.
"""

from __future__ import annotations

import hashlib
import os
import re
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from casfs.system import cgroups

RUN_VARIABLE = "CASFS_RUN"  # in the environment of all processes of a step
TERM_GRACE_S = 2.0  # between SIGTERM and SIGKILL
DRAIN_TIMEOUT_S = 1.0  # for what is still in the pipes when a command has exited
KILL_TIMEOUT_S = 10.0  # until a killed process is gone
CLEAN_SCANS = 5  # in a row, until nothing is left of what was found: one may be forking
MARK_LIMIT = resource.RLIMIT_RTTIME  # for processes of real-time scheduling alone
OUTLIVING = (1 << 62) - 1  # the mark of what a step starts for the store


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
    """Returns clock ticks after boot; None for a process that is gone, or a zombie."""
    fields = _stat(pid)
    return int(fields[19]) if fields and fields[0] not in "ZX" else None


def is_init(pid: int) -> bool:
    """Returns whether a process is the first one, or a user's own systemd: both adopt what has lost
    its parent."""
    if pid <= 1:
        return True
    try:
        return _read(pid, "comm") == b"systemd\n"
    except OSError:
        return False


def environment(pid: int) -> dict[str, str] | None:
    """Returns the variables that a process was started with; None for one that is gone, or another
    user's."""
    try:
        variables = os.fsdecode(_read(pid, "environ")).split("\0")
    except OSError:
        return None
    return dict(variable.partition("=")[::2] for variable in variables)


def ticks_since_boot(ms_ago: int = 0) -> int:
    """Returns the time as `start_time` counts it, so many milliseconds ago."""
    seconds = time.clock_gettime(time.CLOCK_BOOTTIME) - ms_ago / 1000
    return int(seconds * os.sysconf("SC_CLK_TCK"))


def of_namespace(pid: int, namespace: bytes) -> int:
    """Returns the pid that a process of a PID namespace, as `/proc/self/ns/pid` names it there, has
    in this one; 0 where it cannot be seen from here."""
    if namespace == os.readlink(b"/proc/self/ns/pid"):
        return pid
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it is gone, or another user's
            if os.readlink(f"/proc/{name}/ns/pid").encode() != namespace:
                continue
            inner = re.search(rb"^NSpid:.*\t(\d+)$", _read(int(name), "status"), re.MULTILINE)
            if inner and int(inner[1]) == pid:
                return int(name)
    return 0


def parent(pid: int) -> int | None:
    """Returns the parent's pid; None for a process that is gone."""
    fields = _stat(pid)
    return int(fields[1]) if fields else None


def _stat(pid: int) -> list[str]:
    """Returns the fields of /proc/PID/stat from the state on; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def send(pid: int, number: signal.Signals) -> None:
    """Sends a signal to the group that `pid` leads, which may outlive it. Every signal to a group
    goes through here: 1 and less would stand for all processes, or for our own group."""
    if pid > 1:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, number)


def end(identity: Identity, token: str | None = None) -> bool:
    """Kills the group of a command whose runner died, if its leader still is that process: by its
    start time and, where one was given to it, the `token` in its environment. Returns False
    otherwise."""
    if identity.pid <= 1 or not identity.lives():
        return False
    if token is not None and not _carries(identity.pid, f"{RUN_VARIABLE}={token}".encode()):
        return False
    send(identity.pid, signal.SIGKILL)
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while identity.lives() and time.monotonic() < deadline:
        time.sleep(0.002)
    return True


def end_carrying(name: str, value: str) -> int:
    """Kills every process with that variable in its environment, in any group; returns their
    number. Not this one, which may have been started by such a process."""
    killed: set[int] = set()
    deadline = time.monotonic() + KILL_TIMEOUT_S
    clean = 0
    while clean < (CLEAN_SCANS if killed else 1) and time.monotonic() < deadline:
        clean += 1
        for victim in carrying(name, value):  # at once: it may be forking
            with suppress(ProcessLookupError, PermissionError):
                os.kill(victim, signal.SIGKILL)
            killed.add(victim)
            clean = 0
    return len(killed)


def carrying(name: str, value: str) -> Iterator[int]:
    """Yields other living processes with that variable in their environment, or its mark."""
    wanted = f"{name}={value}".encode()
    with os.scandir("/proc") as entries:
        for entry in entries:
            pid = int(entry.name) if entry.name.isdigit() else os.getpid()
            if pid != os.getpid() and _carries(pid, wanted):
                yield pid


def _carries(pid: int, variable: bytes) -> bool:
    try:
        environment = _read(pid, "environ")
        if variable in environment and variable in environment.split(b"\0"):
            return True
        limit_match = re.search(
            rb"^Max realtime timeout +(\d+)", _read(pid, "limits"), re.MULTILINE
        )
    except OSError:  # exited, or another user's
        return False
    is_marked = limit_match is not None and int(limit_match[1]) == _mark(variable)
    return is_marked and start_time(pid) is not None  # a zombie keeps its limits


def _read(pid: int, name: str) -> bytes:
    with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:  # of each process: be quick
        return file.read()


def _mark(variable: bytes) -> int:
    return 1 << 62 | int.from_bytes(hashlib.blake2b(variable, digest_size=7).digest(), "big")


@contextmanager
def marking(name: str, value: str) -> Iterator[None]:
    """Processes that this one starts meanwhile inherit the mark of that variable. Nothing else may
    start any. Without effect where the limit is set already."""
    limits = resource.getrlimit(MARK_LIMIT)
    mark(name, value)
    try:
        yield
    finally:
        resource.setrlimit(MARK_LIMIT, limits)


def mark(name: str, value: str) -> None:
    """This process, and what it starts from now on, has the mark of that variable. Without effect
    where the limit is set already."""
    hard = resource.getrlimit(MARK_LIMIT)[1]
    if hard == resource.RLIM_INFINITY:
        resource.setrlimit(MARK_LIMIT, (_mark(f"{name}={value}".encode()), hard))


def remove_mark() -> None:
    """What this process starts from now on belongs to the store, and outlives the step."""
    cgroups.leave()
    hard = resource.getrlimit(MARK_LIMIT)[1]
    is_free = hard == resource.RLIM_INFINITY
    resource.setrlimit(MARK_LIMIT, (OUTLIVING if is_free else hard, hard))


def are_in(directory: Path) -> bool:
    """Returns whether a process that can be looked at has its working directory there."""
    top = str(directory.resolve())
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with suppress(OSError):
            working = os.readlink(link)
            if working == top or working.startswith(f"{top}/"):
                return True
    return False


def threads_of_user() -> int:
    """Returns how many threads the user of this process has."""
    count = 0
    with os.scandir("/proc") as entries:
        for entry in entries:
            with suppress(OSError):  # exited
                if entry.name.isdigit() and entry.stat().st_uid == os.getuid():
                    count += os.stat(f"{entry.path}/task").st_nlink - 2
    return count
