"""A mounted /dev/fuse: how a descriptor on which the kernel asks comes to be.

Whoever may mount does it by mount(2): root, and root of a user namespace. Everybody else
asks fusermount3, which hands the descriptor over a socket. The mount lives for as long as
any process has that descriptor, so who serves it can be replaced.

The kernel enforces `ro`, `nodev` and `nosuid`. `default_permissions` goes with `allow_other`
only: without it nobody but the mounting user can enter at all, so there is nothing to
decide, and the kernel would ask for the attributes of live directories on every path walk.

Nothing here touches the mount itself, which nobody may be serving yet.
"""

from __future__ import annotations

import array
import errno
import os
import shutil
import socket
import subprocess
from contextlib import suppress
from pathlib import Path

from casfs.errors import Failed
from casfs.system import mounts

TYPE = "fuse.casfs"
DEVICE = Path("/dev/fuse")
SETTINGS = Path("/etc/fuse.conf")
HELPER = "fusermount3"
HANDOVER = "_FUSE_COMMFD"  # names to the helper the socket that it answers on
FLAGS = mounts.MS_RDONLY | mounts.MS_NODEV | mounts.MS_NOSUID
MAX_READ = 1 << 20  # bytes in one request
DEVICES = Path("/sys/class/bdi")  # one for each device that is mounted anywhere
AHEAD = 1024  # KiB
DENIED = (errno.EPERM, errno.EACCES)


def attach(source: str, point: Path, *, allow_other: bool) -> int:
    """Mount at an absolute path; the descriptor to serve. Raises Failed."""
    options = [f"max_read={MAX_READ}"]
    if allow_other:
        options += ["default_permissions", "allow_other"]
    try:
        return _mounted(source, point, options)
    except OSError as error:
        if error.errno not in DENIED:
            raise Failed(f"cannot mount at {point}: {error.strerror}") from None
        return _handed(source, point, options, error.strerror)


def check_machine(*, allow_other: bool) -> None:
    """Raises Failed, with what to do, where a mount could not succeed."""
    if not DEVICE.exists():
        raise Failed(f"no {DEVICE}: load the kernel's fuse module (`modprobe fuse`)")
    if not os.access(DEVICE, os.R_OK | os.W_OK):
        raise Failed(f"no access to {DEVICE}; as root: `chmod 666 {DEVICE}`")
    if os.geteuid() == 0:
        return
    if shutil.which(HELPER) is None:
        raise Failed(f"no {HELPER} to mount with; install the package fuse3")
    if allow_other and not _allows_other():
        raise Failed(f"--allow-other needs the line user_allow_other in {SETTINGS}")


def _allows_other() -> bool:
    try:
        lines = SETTINGS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    return "user_allow_other" in (line.strip() for line in lines)


def read_ahead(device: str) -> None:
    """Let the kernel read ahead further than it does by itself; where that is not permitted,
    it is only slower. After INIT, whose answer would cut it down again."""
    with suppress(OSError):
        (DEVICES / device / "read_ahead_kb").write_text(f"{AHEAD}\n")


def lives(device: str) -> bool:
    """Is a file system still mounted anywhere, be it in a container or below an overlay?"""
    return (DEVICES / device).exists()


# -- by mount(2) --------------------------------------------------------------------------


def _mounted(source: str, point: Path, options: list[str]) -> int:
    """Raises OSError."""
    fd = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    who = [f"fd={fd}", "rootmode=40000", f"user_id={os.geteuid()}", f"group_id={os.getegid()}"]
    try:
        mounts.mount(source, point, TYPE, FLAGS, ",".join(who + options).encode())
    except BaseException:
        os.close(fd)
        raise
    return fd


# -- by the helper ------------------------------------------------------------------------


def _handed(source: str, point: Path, options: list[str], reason: str | None) -> int:
    helper = shutil.which(HELPER)
    if helper is None:
        raise Failed(f"cannot mount at {point}: {reason}, and {HELPER} is not installed")
    text = ",".join(["ro", "nodev", "nosuid", f"fsname={source}", "subtype=casfs", *options])
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        done = subprocess.run(
            [helper, "-o", text, "--", str(point)],
            env={HANDOVER: str(theirs.fileno()), "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            pass_fds=(theirs.fileno(),),
        )
        theirs.close()
        fds = _received(ours) if done.returncode == 0 else []
    if not fds:
        why = " ".join(done.stderr.split()) or f"{HELPER} gave {done.returncode}"
        raise Failed(f"cannot mount at {point}: {why}")
    return fds[0]


def _received(sock: socket.socket) -> list[int]:
    """The descriptors in one message."""
    _, control, _, _ = sock.recvmsg(1, socket.CMSG_LEN(4), socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, data in control:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return list(fds)


# -- and back -----------------------------------------------------------------------------


def detach(point: Path, *, lazy: bool) -> None:
    """Unmount what is at an absolute path; `lazy`: out of sight at once, gone with its last
    user. Raises OSError: EBUSY; EPERM with the reason of whoever was asked instead."""
    try:
        mounts.unmount(point, lazy=lazy)
    except OSError as error:
        if error.errno not in DENIED or (helper := shutil.which(HELPER)) is None:
            raise
    else:
        return
    done = subprocess.run(
        [helper, "-u", *["-z"] * lazy, "--", str(point)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={"LC_ALL": "C"},
    )
    if done.returncode:
        reason = " ".join(done.stderr.split()) or f"{HELPER} gave {done.returncode}"
        raise OSError(errno.EBUSY if "busy" in reason else errno.EPERM, reason)
