"""Events of directories: by fanotify(7) of whole file systems where the process may, as root
may, else by inotify(7).

Both report a change by a key of the directory that holds the changed name, a file handle or a watch
number, which `add` returns of an open directory. No library is used: those for Python watch ignored
directories too, and hide that the queue was full.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from casfs.errors import Failed
from casfs.system import mounts
from casfs.system.syscalls import call

RENAMES = 0xC0  # moved from, moved to
ENTRIES = RENAMES | 0x300  # created, deleted
CHANGES = 0x2 | 0x4 | 0x8 | ENTRIES  # content, attributes, closed after writing
OVERFLOW = 0x4000
UNMOUNTED = 0x2000
IGNORED = 0x8000
DIRECTORY = 0x40000000
EXCL_UNLINK = 0x04000000  # of inotify: not of files that are deleted and still open
FANOTIFY_FLAGS = 0x1 | 0x2 | 0x10 | 0x400 | 0x800  # close-on-exec, non-blocking, no limit, names
ADD_FILE_SYSTEM = 0x1 | 0x100
HANDLE_BYTES = 128
EMPTY_PATH = 0x1000
INOTIFY_HEADER = struct.Struct("=iIII")
FANOTIFY_HEADER = struct.Struct("=IBxHQii")
INFO_HEADER = struct.Struct("=BxHQI4x")  # type, length, file system, bytes of the handle
READ_BYTES = 1 << 18
SUPPORTED = ("ext2", "ext3", "ext4", "xfs", "tmpfs")  # whose handles are the same everywhere
LIMITS = {errno.ENOSPC: "max_user_watches", errno.EMFILE: "max_user_instances"}
Key = bytes | int


class Event(NamedTuple):
    """`key` is None where events were lost; `name` is empty for the directory itself; `is_moved`:
    it is a directory that was created, deleted or moved; `is_renamed`: anything that was moved;
    `pid`: of the process that did it, which may have ended, 0 where the kernel does not say."""

    key: Key | None
    name: bytes
    is_moved: bool
    is_directory: bool
    is_renamed: bool = False
    pid: int = 0


class EventSource:
    """Reports changes in the directories that were added. This one is inotify, with a watch for
    each directory."""

    method = "inotify"

    def __init__(self) -> None:
        self.fd = self._call("inotify_init1", os.O_NONBLOCK | os.O_CLOEXEC)

    def add(self, fd: int) -> Key:
        path = b"/proc/self/fd/%d" % fd
        return self._call("inotify_add_watch", self.fd, path, CHANGES | EXCL_UNLINK)

    def remove(self, key: Key) -> None:
        with suppress(OSError):  # the kernel removes those of deleted directories
            call("inotify_rm_watch", self.fd, int(key))

    def read(self) -> Iterator[Event]:
        with suppress(BlockingIOError):
            while data := os.read(self.fd, READ_BYTES):
                yield from self._events(data)

    def _events(self, data: bytes) -> Iterator[Event]:
        offset = 0
        while offset < len(data):
            key, mask, _, length = INOTIFY_HEADER.unpack_from(data, offset)
            offset += INOTIFY_HEADER.size + length
            if not mask & IGNORED:
                yield _event(key, mask, data[offset - length : offset].rstrip(b"\0"))

    def _call(self, name: str, *arguments: int | bytes) -> int:
        """Raises Failed at a limit of inotify."""
        try:
            return call(name, *arguments)
        except OSError as error:
            if (limit := LIMITS.get(error.errno or 0)) is None:
                raise
            raise Failed(f"the limit fs.inotify.{limit} is reached; raise it by sysctl") from None


class Fanotify(EventSource):
    """A mark for each file system; also reports directories that were not added. Raises OSError
    where it may not, or cannot."""

    method = "fanotify"

    def __init__(self, fd: int) -> None:
        self.fd = call("fanotify_init", FANOTIFY_FLAGS, os.O_RDONLY)
        self._devices: set[int] = set()
        try:
            self.add(fd)
        except OSError:
            os.close(self.fd)
            raise

    def add(self, fd: int) -> Key:
        device = os.fstat(fd).st_dev
        if device not in self._devices:
            number = mounts.device_name(device)
            if not any(
                mounted.device == number and mounted.type in SUPPORTED
                for mounted in mounts.mounts()
            ):
                raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
            call("fanotify_mark", self.fd, ADD_FILE_SYSTEM, CHANGES | DIRECTORY, fd, 0)
            self._devices.add(device)
        handle = ctypes.create_string_buffer(struct.pack("=I", HANDLE_BYTES), 2 * HANDLE_BYTES)
        call("name_to_handle_at", fd, b"", handle, ctypes.create_string_buffer(8), EMPTY_PATH)
        size = 8 + struct.unpack_from("=I", handle)[0]
        return struct.pack("=Q", os.fstatvfs(fd).f_fsid) + handle.raw[:size]

    def remove(self, key: Key) -> None:
        """The mark stays: it is of the whole file system."""

    def _events(self, data: bytes) -> Iterator[Event]:
        offset = 0
        while offset < len(data):
            length, _, start, mask, _, pid = FANOTIFY_HEADER.unpack_from(data, offset)
            info = data[offset + start : offset + length]
            offset = offset + length
            if not info:
                yield _event(None, mask, b"")
                continue
            _, end, _, size = INFO_HEADER.unpack_from(info)
            name = info[20 + size : end].partition(b"\0")[0]
            yield _event(info[4 : 20 + size], mask, b"" if name == b"." else name, pid)


def open_source(fd: int | None) -> EventSource:
    """Returns fanotify where it works for the directory `fd`. Raises Failed."""
    with suppress(OSError):
        if fd is not None:
            return Fanotify(fd)
    return EventSource()


def _event(key: Key | None, mask: int, name: bytes, pid: int = 0) -> Event:
    directory = bool(mask & DIRECTORY)
    lost = mask & (OVERFLOW | UNMOUNTED)
    return Event(
        None if lost else key,
        name,
        is_moved=directory and bool(mask & ENTRIES),
        is_directory=directory,
        is_renamed=bool(mask & RENAMES),
        pid=pid,
    )
