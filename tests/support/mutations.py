"""Calls that would change a file system, each made in the tree of `PLANTED` by relative paths.

Also a program: `python mutations.py DIR USER…` prints what each user gets, as JSON, for a
directory that only another process can see.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import mmap
import os
import signal
import socket
import stat
import sys
from collections.abc import Callable, Mapping
from contextlib import closing

NOBODY = 65534
TIMEOUT_S = 60  # seconds
SETFLAGS = 0x40086602  # FS_IOC_SETFLAGS
CLONE = 0x40049409  # FICLONE
NOREPLACE, EXCHANGE, WHITEOUT = 1, 2, 4
KEEP_SIZE = 1
HERE = -100  # AT_FDCWD
ATTRIBUTE = b"value"
TOO_LONG_NAME = "n" * 256
PLANTED = {
    "file": b"some text\n" * 1000,
    "other": b"other\n",
    "full": {"inner": b"inner\n"},
    "empty": {},
}
libc = ctypes.CDLL(None, use_errno=True)
Call = Callable[[], object]


def called(name: str, *arguments: object) -> None:
    """A function of the C library. Raises OSError."""
    made = [os.fsencode(one) if isinstance(one, str) else one for one in arguments]
    if getattr(libc, name)(*made) < 0:
        raise OSError(ctypes.get_errno(), name)


def opening(path: str, flags: int) -> Call:
    return lambda: os.close(os.open(path, flags, 0o644))


def on(path: str, use: Callable[[int], object]) -> Call:
    """Something done to a descriptor that is open for reading."""

    def call() -> None:
        fd = os.open(path, os.O_RDONLY)
        try:
            use(fd)
        finally:
            os.close(fd)

    return call


def renaming(old: str, new: str, flags: int = 0) -> Call:
    return lambda: called("renameat2", HERE, old, HERE, new, flags)


def bind(path: str) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as one:
        one.bind(path)


def copy(fd: int) -> None:
    with open("other", "rb") as source:
        os.copy_file_range(source.fileno(), fd, 3)


def clone(fd: int) -> None:
    with open("other", "rb") as source:
        fcntl.ioctl(fd, CLONE, source.fileno())


def send(fd: int) -> None:
    with open("other", "rb") as source:
        os.sendfile(fd, source.fileno(), 0, 3)


MUTATIONS: dict[str, Call] = {
    "open for writing": opening("file", os.O_WRONLY),
    "open for both": opening("file", os.O_RDWR),
    "open for appending": opening("file", os.O_WRONLY | os.O_APPEND),
    "open and truncate": opening("file", os.O_RDONLY | os.O_TRUNC),
    "open a directory for writing": opening("full", os.O_WRONLY),
    "open what is not there for writing": opening("none", os.O_WRONLY),
    "open by a link for writing": opening("link", os.O_RDWR),
    "open a link for writing": opening("link", os.O_RDWR | os.O_NOFOLLOW),
    "create": opening("new", os.O_CREAT | os.O_WRONLY),
    "create for reading": opening("new", os.O_CREAT | os.O_RDONLY),
    "create what is there": opening("file", os.O_CREAT | os.O_EXCL | os.O_WRONLY),
    "create a directory that is there": opening("full", os.O_CREAT | os.O_RDONLY),
    "create by a dangling link": opening("dangling", os.O_CREAT | os.O_WRONLY),
    "create below nothing": opening("none/new", os.O_CREAT | os.O_WRONLY),
    "create below a file": opening("file/new", os.O_CREAT | os.O_WRONLY),
    "create with a long name": opening(TOO_LONG_NAME, os.O_CREAT | os.O_WRONLY),
    "create with a slash behind": opening("new/", os.O_CREAT | os.O_WRONLY),
    "tmpfile": opening(".", os.O_TMPFILE | os.O_RDWR),
    "mkdir": lambda: os.mkdir("new"),
    "mkdir with a slash behind": lambda: os.mkdir("new/"),
    "mkdir of what is there": lambda: os.mkdir("full"),
    "mkdir of a file that is there": lambda: os.mkdir("file"),
    "mkdir below nothing": lambda: os.mkdir("none/new"),
    "mkdir with a long name": lambda: os.mkdir(TOO_LONG_NAME),
    "rmdir": lambda: os.rmdir("empty"),
    "rmdir of a full one": lambda: os.rmdir("full"),
    "rmdir of nothing": lambda: os.rmdir("none"),
    "rmdir of a file": lambda: os.rmdir("file"),
    "rmdir of .": lambda: os.rmdir("full/."),
    "unlink": lambda: os.unlink("file"),
    "unlink of a link": lambda: os.unlink("dangling"),
    "unlink of nothing": lambda: os.unlink("none"),
    "unlink of a directory": lambda: os.unlink("empty"),
    "unlink with a slash behind": lambda: os.unlink("file/"),
    "rename": lambda: os.rename("file", "new"),
    "rename over another": lambda: os.rename("file", "other"),
    "rename over itself": lambda: os.rename("file", "file"),
    "rename of nothing": lambda: os.rename("none", "new"),
    "rename into itself": lambda: os.rename("full", "full/new"),
    "rename a directory": lambda: os.rename("full", "empty"),
    "rename unless there": renaming("file", "new", NOREPLACE),
    "rename unless there, it is": renaming("file", "other", NOREPLACE),
    "exchange": renaming("file", "other", EXCHANGE),
    "exchange with nothing": renaming("file", "none", EXCHANGE),
    "rename and white out": renaming("file", "new", WHITEOUT),
    "rename with odd flags": renaming("file", "new", NOREPLACE | EXCHANGE),
    "link": lambda: os.link("file", "new"),
    "link to what is there": lambda: os.link("file", "other"),
    "link from nothing": lambda: os.link("none", "new"),
    "link of a directory": lambda: os.link("full", "new"),
    "symlink": lambda: os.symlink("file", "new"),
    "symlink where something is": lambda: os.symlink("file", "other"),
    "mknod of a file": lambda: os.mknod("new", stat.S_IFREG | 0o644),
    "mknod of a pipe": lambda: os.mknod("new", stat.S_IFIFO | 0o644),
    "mknod of a device": lambda: os.mknod("new", stat.S_IFCHR | 0o644, os.makedev(1, 3)),
    "mknod of what is there": lambda: os.mknod("file", stat.S_IFIFO | 0o644),
    "chmod": lambda: os.chmod("file", 0o600),
    "chmod of a directory": lambda: os.chmod("full", 0o700),
    "chmod of nothing": lambda: os.chmod("none", 0o600),
    "fchmod": on("file", lambda fd: os.fchmod(fd, 0o600)),
    "chown": lambda: os.chown("file", 1, 1),
    "chown to nobody new": lambda: os.chown("file", -1, -1),
    "lchown": lambda: os.lchown("dangling", 1, 1),
    "fchown": on("file", lambda fd: os.fchown(fd, 1, 1)),
    "truncate": lambda: os.truncate("file", 0),
    "truncate to more": lambda: os.truncate("file", 1 << 30),
    "truncate a directory": lambda: os.truncate("full", 0),
    "truncate nothing": lambda: os.truncate("none", 0),
    "ftruncate": on("file", lambda fd: os.ftruncate(fd, 0)),
    "utimensat": lambda: os.utime("file", (1, 1)),
    "utimensat to now": lambda: os.utime("file"),
    "utimensat of a link": lambda: os.utime("dangling", (1, 1), follow_symlinks=False),
    "futimens": on("file", lambda fd: os.utime(fd, (1, 1))),
    "setxattr": lambda: os.setxattr("file", "user.x", ATTRIBUTE),
    "setxattr of what is there": lambda: os.setxattr("file", "user.x", b"", os.XATTR_REPLACE),
    "setxattr of a directory": lambda: os.setxattr("full", "user.x", ATTRIBUTE),
    "setxattr of nothing": lambda: os.setxattr("none", "user.x", ATTRIBUTE),
    "setxattr, trusted": lambda: os.setxattr("file", "trusted.x", ATTRIBUTE),
    "fsetxattr": on("file", lambda fd: os.setxattr(fd, "user.x", ATTRIBUTE)),
    "lsetxattr": lambda: os.setxattr("link", "user.x", ATTRIBUTE, follow_symlinks=False),
    "removexattr": lambda: os.removexattr("file", "user.x"),
    "removexattr of the hash": lambda: os.removexattr("file", "user.blake3"),
    "write": on("file", lambda fd: os.write(fd, b"x")),
    "pwrite": on("file", lambda fd: os.pwrite(fd, b"x", 3)),
    "sendfile into": on("file", send),
    "copy_file_range into": on("file", copy),
    "clone into": on("file", clone),
    "fallocate": on("file", lambda fd: os.posix_fallocate(fd, 0, 1 << 20)),
    "fallocate beyond": on("file", lambda fd: called("fallocate", fd, KEEP_SIZE, 0, 1 << 20)),
    "map for shared writing": on(
        "file", lambda fd: mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_WRITE)
    ),
    "bind a socket": lambda: bind("new"),
    "bind a socket where something is": lambda: bind("file"),
    "set flags": on("file", lambda fd: fcntl.ioctl(fd, SETFLAGS, (16).to_bytes(8, "little"))),
    "set flags of a directory": on(
        "full", lambda fd: fcntl.ioctl(fd, SETFLAGS, (16).to_bytes(8, "little"))
    ),
}


def outcomes(where: int | str, user: int, calls: Mapping[str, Call]) -> dict[str, str]:
    """What each call gives a user in a directory: the errno's name, "" for success.

    In a process of its own: whoever has given up root does not get it back.
    """
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(TIMEOUT_S)
            if user:
                os.setgroups([])
                os.setresgid(user, user, user)
                os.setresuid(user, user, user)
            os.chdir(where)
            made = {name: _code(call) for name, call in calls.items()}
            with open(theirs, "w") as pipe:
                json.dump(made, pipe)
        finally:
            os._exit(0)
    os.close(theirs)
    with open(ours) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    found: dict[str, str] = json.loads(text)
    return found


def _code(call: Call) -> str:
    try:
        call()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return ""


if __name__ == "__main__":
    directory, *users = sys.argv[1:]
    made = {user: outcomes(directory, int(user), MUTATIONS) for user in users}
    json.dump(made, sys.stdout)
