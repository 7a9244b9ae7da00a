"""Runs in place of a subprocess, and becomes it: `python launcher.py SPEC ARGV...`.

SPEC, a Python literal, says what holds for the program and all that it starts:

    join      files of control groups, in which this process enters itself
    limits    [resource, value] for setrlimit: lowered, never raised
    keyring   a new session keyring: that of the daemon may come from a login, with Kerberos and
              other keys in it
    offline   a network namespace with a loopback interface of its own and nothing else
    keep      stay as the parent, to which all descendants are left that lose theirs; end them when
              the program has ended, or the daemon. Those with this mark live on

The program gets the arguments, environment, directory and descriptors of this process. Little is
imported, since that takes most of the time, and nothing of ours: it starts isolated.
"""

from __future__ import annotations

import os
import resource
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
SIOCSIFFLAGS = 0x8914
IFF_UP = 1
SYS_KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219}
KEYCTL_JOIN_SESSION_KEYRING = 1
CANNOT_RUN = 127
END_TIMEOUT_S = 10.0
CPU_GRACE_S = 1  # from SIGXCPU to SIGKILL


def launched(spec: Mapping[str, object], argv: Sequence[str]) -> list[str]:
    """Returns the argv that starts a program by this file."""
    return [sys.executable, "-I", "-S", __file__, repr(spec), *argv]


def main() -> None:
    spec = eval(sys.argv[1], {})
    argv = sys.argv[2:]
    try:
        contain(spec)
    except OSError as error:
        sys.exit(f"casfs: cannot contain {argv[0]}: {error}")
    stay(spec)
    _become(argv)


def contain(spec: Mapping[str, Any]) -> None:
    """Has all of a spec hold for this process, but for `keep`. Raises OSError."""
    for file in spec.get("join", ()):
        with open(file, "w") as procs:
            procs.write("0")
    if spec.get("keyring"):
        _join_keyring()
    if spec.get("offline"):
        _leave_network()
    for kind, value in spec.get("limits", ()):
        _lower(kind, value)


def stay(spec: Mapping[str, Any]) -> None:
    """With `keep` the rest of this process is done by a subprocess of it."""
    if spec.get("keep"):
        _stay(spec["keep"])


def _become(argv: list[str]) -> None:
    import _signal  # type: ignore[import-not-found]  # `signal` takes longer

    for number in (_signal.SIGPIPE, _signal.SIGXFSZ):  # Python ignores these
        _signal.signal(number, _signal.SIG_DFL)
    env = dict(os.environ)
    try:
        with open("/proc/self/environ", "rb") as file:  # Python may have added to ours
            pairs = [
                os.fsdecode(variable).partition("=")
                for variable in file.read().split(b"\0")
                if variable
            ]
            env = {name: value for name, _, value in pairs}
    except OSError:
        pass
    try:
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        os.write(2, f"casfs: cannot run {argv[0]}: {error.strerror}\n".encode())
        os._exit(CANNOT_RUN)


def _lower(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    most = sys.maxsize if hard == resource.RLIM_INFINITY else hard
    grace = CPU_GRACE_S if kind == resource.RLIMIT_CPU else 0
    resource.setrlimit(kind, (min(value, most), min(value + grace, most)))


def _join_keyring() -> None:
    import ctypes
    import errno

    number = SYS_KEYCTL.get(os.uname().machine)
    if number is None:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    done = libc.syscall(ctypes.c_long(number), ctypes.c_long(KEYCTL_JOIN_SESSION_KEYRING), None)
    # ENOSYS, EPERM: no keyrings here, or a container forbids them to the program as well
    if done < 0 and ctypes.get_errno() not in (errno.ENOSYS, errno.EPERM):
        raise OSError("no session keyring: too many keys of this user")


def _leave_network() -> None:
    import ctypes
    import fcntl
    import socket
    import struct

    libc = ctypes.CDLL(None, use_errno=True)
    user = os.getuid()
    group = os.getgid()
    if libc.unshare(CLONE_NEWNET) != 0:
        if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0:
            raise OSError(f"no network namespace: {os.strerror(ctypes.get_errno())}")
        maps = {"uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}
        for name, text in {"setgroups": "deny", **maps}.items():
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any:
        fcntl.ioctl(any, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", IFF_UP))


def _stay(mark: int) -> None:
    """Returns in the program's process only."""
    import ctypes
    import signal

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
        code = _reap(child)
    deadline = time.monotonic() + END_TIMEOUT_S
    while _kill_children(mark) and time.monotonic() < deadline:
        time.sleep(0.001)
        _reap(child)
    if code is not None and code >= 0:
        os._exit(code)
    number = signal.SIGKILL if code is None else -code
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)


def _kill_children(mark: int) -> bool:
    """Kills the living children of this process, except those with the mark; returns whether there
    were any."""
    killed = False
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                state, parent = file.read().rpartition(")")[2].split()[:2]
            if int(parent) == os.getpid() and state not in "ZX":
                with open(f"/proc/{name}/limits") as file:
                    if f" {mark} " in file.read():
                        continue
                os.kill(int(name), 9)
                killed = True
        except OSError:  # exited, or another user's
            pass
    return killed


def _reap(child: int) -> int | None:
    """Takes the exit codes of children that have ended; returns that of the program, negative for
    a signal."""
    exit_code = None
    try:
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == child:
                exit_code = os.waitstatus_to_exitcode(ended[1])
    except ChildProcessError:
        pass
    return exit_code


if __name__ == "__main__":
    main()
