"""Runs in place of a step's subprocess, and becomes it: `python launcher.py SPEC ARGV...`.

SPEC, as JSON, says what holds for the program and all that it starts:

    join       files of control groups, in which this process enters itself
    limits     [resource, value] for setrlimit
    offline    a network namespace with a loopback interface of its own and nothing else
    keep       stay as the parent, to which all descendants are left that lose theirs; end them
               when the program has ended, or the daemon has. But those with the mark `keep` live on

The program gets this process's arguments, environment, directory, descriptors and signals. No
import of ours: it starts isolated, without site packages.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
CANNOT_RUN = 127
END_TIMEOUT_S = 10.0
CPU_GRACE_S = 1  # from SIGXCPU to SIGKILL


def main() -> None:
    spec, argv = json.loads(sys.argv[1]), sys.argv[2:]
    try:
        for file in spec.get("join", ()):
            with open(file, "w") as procs:
                procs.write("0")
        if spec.get("offline"):
            leave_network()
        for kind, value in spec.get("limits", ()):
            lower(kind, value)
    except OSError as error:
        sys.exit(f"casfs: cannot set a limit for {argv[0]}: {error}")
    if spec.get("keep"):
        stay(argv, spec["keep"])
    become(argv)


def become(argv: list[str]) -> None:
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these
        signal.signal(number, signal.SIG_DFL)
    try:
        with open("/proc/self/environ", "rb") as file:  # ours may have changed since
            pairs = [one.partition(b"=") for one in file.read().split(b"\0") if one]
        env = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    except OSError:
        env = dict(os.environ)
    try:
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        os.write(2, f"casfs: cannot run {argv[0]}: {error.strerror}\n".encode())
        os._exit(CANNOT_RUN)


def lower(kind: int, value: int) -> None:
    """Lowers a limit, never raises it."""
    hard = resource.getrlimit(kind)[1]
    most = sys.maxsize if hard == resource.RLIM_INFINITY else hard
    grace = CPU_GRACE_S if kind == resource.RLIMIT_CPU else 0
    resource.setrlimit(kind, (min(value, most), min(value + grace, most)))


def leave_network() -> None:
    import ctypes
    import fcntl
    import socket
    import struct

    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if libc.unshare(CLONE_NEWNET) != 0:
        if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
            code = ctypes.get_errno()
            raise OSError(code, f"no network namespace: {os.strerror(code)}")
        texts = {
            "setgroups": "deny",
            "uid_map": f"{user} {user} 1",
            "gid_map": f"{group} {group} 1",
        }
        for name, text in texts.items():
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any:
        fcntl.ioctl(any, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP))


def stay(argv: list[str], mark: int) -> None:
    """Returns in the program's process only."""
    import ctypes

    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGRTMAX, 0, 0, 0)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    os.closerange(0, os.sysconf("SC_OPEN_MAX"))  # the program's end of a pipe is its own
    code = None
    while code is None and signal.sigwait((signal.SIGCHLD, signal.SIGRTMAX)) == signal.SIGCHLD:
        code = reap(child)
    deadline = time.monotonic() + END_TIMEOUT_S
    while (left := list(children(mark))) and time.monotonic() < deadline:
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)
        reap(child)
    if code is not None and code >= 0:
        os._exit(code)
    number = signal.SIGKILL if code is None else signal.Signals(-code)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError):  # of SIGKILL
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)


def children(mark: int) -> Iterator[int]:
    """Yields the living children of this process, but for those with the mark."""
    for entry in os.scandir("/proc"):
        with suppress(OSError):  # exited, or not a process
            with open(f"{entry.path}/stat") as file:
                state, parent = file.read().rpartition(")")[2].split()[:2]
            if int(parent) == os.getpid() and state not in "ZX":
                with open(f"{entry.path}/limits") as file:
                    if f" {mark} " not in file.read():
                        yield int(entry.name)


def reap(child: int) -> int | None:
    """Takes the exit codes of children that have ended; returns that of the program, negative for
    a signal."""
    found = None
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                found = os.waitstatus_to_exitcode(ended[1])
    return found


if __name__ == "__main__":
    main()
