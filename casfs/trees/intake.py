"""Reading files for a snapshot, in threads: read, hash, and write what the store lacks.

Files are opened relative to their directory's descriptor and never through a link. The
store is asked once for a portion of files, and only what it does not have is staged.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass

from ..backend import BlobInfo, Staged
from ..batch import Batch
from ..digest import Digest
from ..errors import Failed

FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
LARGE = 1 << 20  # bytes; a larger file is read in pieces


@dataclass(slots=True)
class Read:
    """A file that was read. `staged` is None when the store has it already, as `info` says."""

    name: bytes
    digest: Digest
    stat: os.stat_result
    staged: Staged | None = None
    info: BlobInfo | None = None


class Reader:
    """What runs in the threads: read, hash, and write what the store does not have."""

    def __init__(self, batch: Batch) -> None:
        self._blobs = batch.blobs
        self._has = batch.has_met
        self.stopped = threading.Event()

    def read(self, fd: int, names: list[bytes], where: str) -> list[Read]:
        """The files of a directory, less those that have vanished. Takes over `fd`."""
        done: list[Read] = []
        held: list[tuple[Read, bytes]] = []
        try:
            for name in names:
                if self.stopped.is_set():
                    break
                try:
                    one, data = self._file(fd, name)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    shown = name.decode("utf-8", "replace")
                    raise Failed(f"cannot read {where}/{shown}: {error.strerror}") from None
                done.append(one)
                if data is not None:
                    held.append((one, data))
                if sum(len(data) for _, data in held[-8:]) >= LARGE:
                    self._stage(held)
                    held.clear()
            self._stage(held)
        except BaseException:
            self.discard(done)
            raise
        finally:
            os.close(fd)
        return done

    def _file(self, fd: int, name: bytes) -> tuple[Read, bytes | None]:
        """The file and its content; a large one is staged already."""
        with open(os.open(name, FILE_FLAGS, dir_fd=fd), "rb", buffering=0) as source:
            if os.fstat(source.fileno()).st_size > LARGE:
                staged = self._blobs.stage(source)
                return Read(name, staged.digest, os.fstat(source.fileno()), staged), None
            data = source.readall()
            return Read(name, Digest.of(data), os.fstat(source.fileno())), data

    def _stage(self, held: list[tuple[Read, bytes]]) -> None:
        """One look at the store for all of them; only what is new is written."""
        unmet = {one.digest.hash for one, _ in held if not self._has(one.digest.hash)}
        stored = self._blobs.info(unmet)
        for one, data in held:
            one.info = stored.get(one.digest.hash)
            if one.info is None and one.digest.hash in unmet:
                one.staged = self._blobs.stage_bytes(one.digest, data)

    def discard(self, done: list[Read]) -> None:
        self._blobs.discard(one.staged for one in done if one.staged is not None)
