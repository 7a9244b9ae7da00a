"""Runs in place of a sandboxed command, and becomes it: `python confine.py ARGV...`.

What is set here is inherited through bubblewrap, which has no option for it:

    session keyring   a new one: that of the daemon may come from a login, with Kerberos and other
                      keys in it
    processes         so many beside those that the user has; the kernel does not count root's
    memory            of each process: private writable memory, half of the machine's. Not the
                      address space, of which runtimes reserve far more than they use

No import of ours: it starts isolated, without site packages.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import sys
from contextlib import suppress

SYS_KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219}
KEYCTL_JOIN_SESSION_KEYRING = 1
MAX_PROCESSES = 1024  # threads included


def main() -> None:
    if not _join_session_keyring():
        sys.exit("cannot make a session keyring: too many keys of this user")
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    _limit(resource.RLIMIT_DATA, memory)
    _limit(resource.RLIMIT_NPROC, _threads_of_user() + MAX_PROCESSES)
    _limit(resource.RLIMIT_CORE, 0)
    os.execv(sys.argv[1], sys.argv[1:])


def _join_session_keyring() -> bool:
    """Returns False where the kernel has keyrings but makes no new one."""
    number = SYS_KEYCTL.get(os.uname().machine)
    if number is None:
        return True
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    done = libc.syscall(ctypes.c_long(number), ctypes.c_long(KEYCTL_JOIN_SESSION_KEYRING), None)
    # ENOSYS, EPERM: no keyrings here, or a container forbids them to the command as well.
    return done >= 0 or ctypes.get_errno() in (errno.ENOSYS, errno.EPERM)


def _threads_of_user() -> int:
    count = 0
    for entry in os.scandir("/proc"):
        with suppress(OSError):  # exited
            if entry.name.isdigit() and entry.stat().st_uid == os.getuid():
                count += os.stat(f"{entry.path}/task").st_nlink - 2
    return count


def _limit(kind: int, value: int) -> None:
    """Lowers a limit, never raises it."""
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


if __name__ == "__main__":
    main()
