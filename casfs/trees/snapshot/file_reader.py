"""Reads the files of a snapshot: read, hash, and stage the content that the store lacks.

Files are opened relative to their directory's descriptor and never through a link. The
store is asked once for a batch of files, and only content that it does not have is staged.
Runs in the process that makes the snapshot, or in a worker (`casfs.trees.snapshot.reader_pool`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from casfs.backend import protocols
from casfs.backend.derived import stager
from casfs.backend.hot_packs import HotPacks
from casfs.backend.protocols import FILE_MIN_BYTES, INLINE_MAX_BYTES, BlobInfo, Blobs, Staged
from casfs.digest import Digest
from casfs.errors import Failed
from casfs.system.paths import FILE_FLAGS, printable

NO_ATTRIBUTES: tuple[list[str], ...] = ([], ["security.selinux"])
STREAM_MIN_BYTES = 1 << 20  # a larger file is read in pieces
STAGE_BATCH_BYTES = 4 << 20  # content held until the store is asked for it


class Stat(NamedTuple):
    """The fields that a snapshot uses, named as in `os.stat_result`."""

    st_mode: int
    st_size: int
    st_mtime_ns: int
    st_ctime_ns: int
    st_ino: int

    @classmethod
    def of(cls, seen: os.stat_result) -> Stat:
        return cls(seen.st_mode, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino)


@dataclass(slots=True)
class ReadFile:
    """A file that was read. `has_xattrs`: it has extended attributes. `staged` is None where the
    store has the content already, as `info` says, where it was staged with an earlier file, or is
    in a pack (`hot`: the number of the group, and its own in that)."""

    name: bytes
    digest: Digest
    stat: Stat
    has_xattrs: bool = False
    staged: Staged | None = None
    info: BlobInfo | None = None
    hot: tuple[int, int] | None = None


class FileReader:
    """`is_known`: returns whether a hash is known to be stored, or staged already. `packs`: where
    new content goes that is neither short nor long."""

    def __init__(
        self, blobs: Blobs, is_known: Callable[[str], bool], packs: HotPacks | None = None
    ) -> None:
        self._blobs = blobs
        self._packs = packs
        self._stage_bytes = stager(blobs)
        self._is_known = is_known

    def read(self, fd: int, names: Iterable[bytes], where: str) -> list[ReadFile]:
        """Reads files of the directory `fd`; omits those that have vanished. Raises Failed."""
        done: list[ReadFile] = []
        held: list[tuple[ReadFile, bytes]] = []
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
                    if size > STAGE_BATCH_BYTES:
                        self._stage(held)
                        held, size = [], 0
            self._stage(held)
        except BaseException:
            discard(done)
            raise
        return done

    def _file(self, fd: int, name: bytes) -> tuple[ReadFile, bytes | None]:
        """Returns the file and its content, or None for a large file, which is staged here."""
        file = os.open(name, FILE_FLAGS, dir_fd=fd)
        try:
            size = os.fstat(file).st_size
            marked = has_xattrs(file)
            if size > STREAM_MIN_BYTES:
                with open(file, "rb", buffering=0, closefd=False) as source:
                    staged = self._blobs.stage(source)
                return ReadFile(name, staged.digest, Stat.of(os.fstat(file)), marked, staged), None
            data = _read_whole(file, size)
            return ReadFile(name, Digest.of(data), Stat.of(os.fstat(file)), marked), data
        finally:
            os.close(file)

    def _stage(self, held: list[tuple[ReadFile, bytes]]) -> None:
        """Asks the store once for all; stages only content that it does not have."""
        unknown = {one.digest.hash for one, _ in held if not self._is_known(one.digest.hash)}
        stored = self._blobs.info(unknown) if unknown else {}
        for one, data in held:
            hash = one.digest.hash
            found = stored.get(hash)
            one.info = None if found is None or not found.is_here else found
            if hash in unknown:
                unknown.discard(hash)
                if one.info is not None:
                    continue
                if self._packs is not None and INLINE_MAX_BYTES < len(data) < FILE_MIN_BYTES:
                    one.hot = self._packs.add(one.digest, data)
                else:
                    one.staged = self._stage_bytes(one.digest, data)


def has_xattrs(file: int | str) -> bool:
    """Whether a file has extended attributes but the label that SELinux gives to every file."""
    try:
        return os.listxattr(file) not in NO_ATTRIBUTES
    except OSError:  # not on every file system
        return False


def discard(done: Iterable[ReadFile]) -> None:
    protocols.discard(one.staged for one in done if one.staged is not None)


def _read_whole(fd: int, size: int) -> bytes:
    """Reads a whole file of `size` bytes; more or less where it has changed since."""
    data = os.read(fd, size + 1)
    while data and len(data) != size:
        more = os.read(fd, STREAM_MIN_BYTES)
        if not more:
            break
        data += more
    return data
