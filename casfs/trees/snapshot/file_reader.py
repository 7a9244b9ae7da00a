"""Reading files for a snapshot: read, hash, and write what the store lacks.

Files are opened relative to their directory's descriptor and never through a link. The
store is asked once for a portion of files, and only what it does not have is staged. Runs in
the process that makes the snapshot, or in those that help it (`casfs.trees.snapshot.reader_pool`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from casfs.backend import protocols
from casfs.backend.derived import stager
from casfs.backend.protocols import BlobInfo, Blobs, Staged
from casfs.digest import Digest
from casfs.errors import Failed
from casfs.system.paths import FILE_FLAGS, printable

LARGE = 1 << 20  # bytes; a larger file is read in pieces
HELD = 4 << 20  # bytes of content that wait for one look at the store


class Stat(NamedTuple):
    """What a snapshot wants to know of an entry, named as in `os.stat_result`."""

    st_mode: int
    st_size: int
    st_mtime_ns: int
    st_ctime_ns: int
    st_ino: int

    @classmethod
    def of(cls, seen: os.stat_result) -> Stat:
        return cls(seen.st_mode, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino)


@dataclass(slots=True)
class Read:
    """A file that was read. `staged` is None when the store has it already, as `info` says,
    or when it was staged with an earlier file."""

    name: bytes
    digest: Digest
    stat: Stat
    staged: Staged | None = None
    info: BlobInfo | None = None


class Intake:
    """`met`: is that hash known to be stored, or staged already?"""

    def __init__(self, blobs: Blobs, met: Callable[[str], bool]) -> None:
        self._blobs = blobs
        self._stage_bytes = stager(blobs)
        self._met = met

    def read(self, fd: int, names: Iterable[bytes], where: str) -> list[Read]:
        """The files of the directory `fd`, less those that have vanished. Raises Failed."""
        done: list[Read] = []
        held: list[tuple[Read, bytes]] = []
        size = 0
        try:
            for name in names:
                try:
                    one, data = self._file(fd, name)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    shown = printable(name)
                    raise Failed(f"cannot read {where}/{shown}: {error.strerror}") from None
                done.append(one)
                if data is not None:
                    held.append((one, data))
                    size += len(data)
                    if size > HELD:
                        self._stage(held)
                        held, size = [], 0
            self._stage(held)
        except BaseException:
            discard(done)
            raise
        return done

    def _file(self, fd: int, name: bytes) -> tuple[Read, bytes | None]:
        """The file and its content; a large one is staged already."""
        file = os.open(name, FILE_FLAGS, dir_fd=fd)
        try:
            size = os.fstat(file).st_size
            if size > LARGE:
                with open(file, "rb", buffering=0, closefd=False) as source:
                    staged = self._blobs.stage(source)
                return Read(name, staged.digest, Stat.of(os.fstat(file)), staged), None
            data = _whole(file, size)
            return Read(name, Digest.of(data), Stat.of(os.fstat(file))), data
        finally:
            os.close(file)

    def _stage(self, held: list[tuple[Read, bytes]]) -> None:
        """One look at the store for all of them; only what is new is written."""
        unmet = {one.digest.hash for one, _ in held if not self._met(one.digest.hash)}
        stored = self._blobs.info(unmet) if unmet else {}
        for one, data in held:
            hash = one.digest.hash
            one.info = stored.get(hash)
            if hash in unmet:
                unmet.discard(hash)
                if one.info is None:
                    one.staged = self._stage_bytes(one.digest, data)


def discard(done: Iterable[Read]) -> None:
    protocols.discard(one.staged for one in done if one.staged is not None)


def _whole(fd: int, size: int) -> bytes:
    """All of a file: `size` bytes, or what there is when it has changed since."""
    data = os.read(fd, size + 1)
    while data and len(data) != size:
        more = os.read(fd, LARGE)
        if not more:
            break
        data += more
    return data
