"""Mounting and unmounting: obtains the /dev/fuse descriptor of a new mount.

Root, also of a user namespace, mounts by mount(2). Other users call fusermount3, which
passes the descriptor over a socket. The mount lives as long as any process has that
descriptor, so the worker that serves it can be replaced.

The kernel enforces `ro`, `nodev` and `nosuid`. `default_permissions` goes with `allow_other`
only: without that only the mounting user can enter, so there is nothing to check, and the
kernel would send GETATTR for live directories on every path walk.

Nothing here accesses the mount itself, which may have no worker yet: deadlock.
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
from casfs.system.store_mounts import TYPE

DEVICE = Path("/dev/fuse")
FUSE_CONF = Path("/etc/fuse.conf")
HELPER = "fusermount3"
COMM_FD_VARIABLE = "_FUSE_COMMFD"  # the helper sends the descriptor over this socket
FLAGS = mounts.MS_RDONLY | mounts.MS_NODEV | mounts.MS_NOSUID
MAX_READ_BYTES = 1 << 20  # of one READ request
BDI = Path("/sys/class/bdi")  # has one entry for each mounted device
READ_AHEAD_KIB = 1024
DENIED = (errno.EPERM, errno.EACCES)


def attach(source: str, point: Path, *, allow_other: bool) -> int:
    """Mounts at an absolute path; returns the descriptor to serve. Raises Failed."""
    options = [f"max_read={MAX_READ_BYTES}"]
    if allow_other:
        options += ["default_permissions", "allow_other"]
    try:
        return _mount_directly(source, point, options)
    except OSError as error:
        if error.errno not in DENIED:
            raise Failed(f"cannot mount at {point}: {error.strerror}") from None
        return _mount_by_helper(source, point, options=options, reason=error.strerror)


def check_machine(*, allow_other: bool) -> None:
    """Raises Failed, with a remedy, where a mount cannot succeed."""
    if not DEVICE.exists():
        raise Failed(f"no {DEVICE}: load the kernel's fuse module (`modprobe fuse`)")
    if not os.access(DEVICE, os.R_OK | os.W_OK):
        raise Failed(f"no access to {DEVICE}; as root: `chmod 666 {DEVICE}`")
    if os.geteuid() == 0:
        return
    if shutil.which(HELPER) is None:
        raise Failed(f"no {HELPER} to mount with; install the package fuse3")
    if allow_other and not _user_allow_other():
        raise Failed(f"--allow-other needs the line user_allow_other in {FUSE_CONF}")


def _user_allow_other() -> bool:
    try:
        lines = FUSE_CONF.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    return "user_allow_other" in (line.strip() for line in lines)


def set_read_ahead(device: str) -> None:
    """Raises the kernel's read-ahead; without the permission for that, reads are only slower.
    To be called after INIT, whose answer would lower it again."""
    with suppress(OSError):
        (BDI / device / "read_ahead_kb").write_text(f"{READ_AHEAD_KIB}\n")


def is_mounted(device: str) -> bool:
    """Whether the file system is still mounted anywhere, also in a container or below an
    overlay."""
    return (BDI / device).exists()


# -- mount(2) --------------------------------------------------------------------------


def _mount_directly(source: str, point: Path, options: list[str]) -> int:
    """Raises OSError."""
    fd = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    identity = [f"fd={fd}", "rootmode=40000", f"user_id={os.geteuid()}", f"group_id={os.getegid()}"]
    try:
        mounts.mount(
            source, point, type=TYPE, flags=FLAGS, options=",".join(identity + options).encode()
        )
    except BaseException:
        os.close(fd)
        raise
    return fd


# -- fusermount3 ------------------------------------------------------------------------


def _mount_by_helper(source: str, point: Path, options: list[str], reason: str | None) -> int:
    helper = shutil.which(HELPER)
    if helper is None:
        raise Failed(f"cannot mount at {point}: {reason}, and {HELPER} is not installed")
    text = ",".join(["ro", "nodev", "nosuid", f"fsname={source}", "subtype=casfs", *options])
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, theirs:
        done = subprocess.run(
            [helper, "-o", text, "--", str(point)],
            env={COMM_FD_VARIABLE: str(theirs.fileno()), "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            pass_fds=(theirs.fileno(),),
        )
        theirs.close()
        fds = _receive_fds(ours) if done.returncode == 0 else []
    if not fds:
        raise Failed(f"cannot mount at {point}: {_helper_error(done)}")
    return fds[0]


def _receive_fds(sock: socket.socket) -> list[int]:
    _, control, _, _ = sock.recvmsg(1, socket.CMSG_LEN(4), socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, data in control:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return list(fds)


# -- unmounting -----------------------------------------------------------------------------


def detach(point: Path, *, lazy: bool) -> None:
    """Unmounts an absolute path; `lazy`: detached at once, released with its last user.
    Raises OSError: EBUSY; EPERM with the helper's message."""
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
        reason = _helper_error(done)
        raise OSError(errno.EBUSY if "busy" in reason else errno.EPERM, reason)


def _helper_error(done: subprocess.CompletedProcess[str]) -> str:
    return " ".join(done.stderr.split()) or f"{HELPER} exited with {done.returncode}"
