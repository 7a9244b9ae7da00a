"""A disk that loses what was not flushed when its power is cut: an ext4 on a loop device over a
file that a FUSE server of ours serves.

The server keeps what is written in memory until a flush (fsync of the file, which the loop device
makes of a barrier), then puts it into a file. At a cut a random part of what is in memory goes
there, too, as real disks write in any order, and the server ends.

Run as a program, this is the server: `python volatile_disk.py BACKING POINT SEED`.
"""

from __future__ import annotations

import errno
import os
import random
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyfuse3
import trio

BLOCK = 4096
NAME = b"disk"
INODE = pyfuse3.ROOT_INODE + 1
SETTINGS = ("-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0")
TIMEOUT_S = 20.0


class Server(pyfuse3.Operations):
    """One file, `disk`."""

    def __init__(self, backing: Path, seed: int) -> None:
        super().__init__()
        self._fd = os.open(backing, os.O_RDWR)
        self._size = os.fstat(self._fd).st_size
        self._unflushed: dict[int, bytes] = {}
        self._chance = random.Random(seed)

    def cut(self) -> None:
        """Ends the process; of what was not flushed a random part is on the disk."""
        for number, block in self._unflushed.items():
            if self._chance.random() < 0.5:
                os.pwrite(self._fd, block, number * BLOCK)
        os._exit(0)

    async def lookup(self, parent: int, name: bytes, ctx: Any = None) -> pyfuse3.EntryAttributes:
        if name != NAME:
            raise pyfuse3.FUSEError(errno.ENOENT)
        return await self.getattr(INODE)

    async def getattr(self, inode: int, ctx: Any = None) -> pyfuse3.EntryAttributes:
        entry = pyfuse3.EntryAttributes()
        is_file = inode == INODE
        entry.st_mode = stat.S_IFREG | 0o600 if is_file else stat.S_IFDIR | 0o700
        entry.st_size = self._size if is_file else 0
        entry.st_ino = inode
        return entry

    async def setattr(
        self, inode: int, attr: Any, fields: Any, fh: Any, ctx: Any
    ) -> pyfuse3.EntryAttributes:
        return await self.getattr(inode)

    async def open(self, inode: int, flags: int, ctx: Any) -> pyfuse3.FileInfo:
        return pyfuse3.FileInfo(fh=inode)

    async def read(self, fh: int, offset: int, size: int) -> bytes:
        first, last = offset // BLOCK, (offset + size - 1) // BLOCK
        data = b"".join(self._block(number) for number in range(first, last + 1))
        return data[offset - first * BLOCK :][:size]

    async def write(self, fh: int, offset: int, data: bytes) -> int:
        position = 0
        while position < len(data):
            number, start = divmod(offset + position, BLOCK)
            piece = data[position : position + BLOCK - start]
            block = piece
            if len(piece) < BLOCK:
                before = self._block(number)
                block = before[:start] + piece + before[start + len(piece) :]
            self._unflushed[number] = block
            position += len(piece)
        return len(data)

    async def fsync(self, fh: int, datasync: bool) -> None:
        for number, block in self._unflushed.items():
            os.pwrite(self._fd, block, number * BLOCK)
        self._unflushed = {}

    def _block(self, number: int) -> bytes:
        block = self._unflushed.get(number)
        return os.pread(self._fd, BLOCK, number * BLOCK) if block is None else bytes(block)


class VolatileDisk:
    """`path`: where its file system is mounted, while the power is on."""

    def __init__(self, folder: Path, size: int) -> None:
        self._backing = folder / "backing"
        self._point = folder / "served"
        self.path = folder / "disk"
        self._loop = ""
        self._server: subprocess.Popen[bytes] | None = None
        with self._backing.open("wb") as file:
            file.truncate(size)
        _run("mkfs.ext4", *SETTINGS, str(self._backing))
        self._point.mkdir()
        self.path.mkdir()

    def power_on(self, seed: int) -> None:
        """`seed`: of what is lost at the next cut."""
        command = [sys.executable, __file__, str(self._backing), str(self._point), str(seed)]
        self._server = subprocess.Popen(command)
        _until(lambda: (self._point / NAME.decode()).exists())
        served = str(self._point / NAME.decode())
        self._loop = _run("losetup", "--find", "--show", served).strip()
        _run("mount", self._loop, str(self.path))

    def cut(self) -> None:
        assert self._server is not None
        self._server.send_signal(signal.SIGUSR1)
        self._server.wait(TIMEOUT_S)
        self._server = None

    def unmount(self) -> None:
        """After a cut, or to let go of it. What is mounted in it must be gone."""
        subprocess.run(["umount", "-l", str(self.path)], capture_output=True)
        if self._loop:
            _run("losetup", "--detach", self._loop)
            _until(lambda: not _run("losetup", "--associated", str(self._point / "disk")))
            self._loop = ""
        subprocess.run(["umount", "-l", str(self._point)], capture_output=True)
        if self._server is not None:
            self._server.kill()
            self._server.wait(TIMEOUT_S)
            self._server = None


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _until(condition: Any) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the disk does not answer")
        time.sleep(0.02)


def main(backing: str, point: str, seed: str) -> None:
    server = Server(Path(backing), int(seed))
    options = {*pyfuse3.default_options, "fsname=casfs-volatile-disk"}
    pyfuse3.init(server, point, options)

    async def serve() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pyfuse3.main)
            with trio.open_signal_receiver(signal.SIGUSR1) as signals:
                async for _ in signals:
                    server.cut()

    trio.run(serve)


if __name__ == "__main__":
    main(*sys.argv[1:])
