"""The local mirror of a remote pack: a sparse file of the pack's own form.

    remotes/<remote>/packs/<name>.pack   the index and the trailer at their place, and the frames
                                         that were fetched; holes elsewhere
    remotes/<remote>/packs/<name>.uses   mapped by all processes: the last use of each frame (UTC
                                         seconds), 0 of an absent one

A frame is written under a lock of its range, then its time is set; an eviction clears the time
first. The lock is one of an open file description, so it holds between threads as well. Readers
take none, and nothing is synced: what is read is verified against the hashes of its members, and
fetched again where it is wrong. All of `remotes/` may be deleted while nothing runs.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from casfs.backend.sqlite_statements import FULL_SHARE
from casfs.errors import CasfsError, Corrupt
from casfs.packs.index import PackIndex, read_trailer
from casfs.packs.layout import MAGIC, TRAILER
from casfs.packs.reader import read_index
from casfs.system import locks
from casfs.system.files import closing_fd, os_errors, replacing
from casfs.system.syscalls import call

LOCK = struct.Struct("@hhqqi4x")  # struct flock
PUNCH = 0x03  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
BLOCK = 4096
TAIL_BYTES = 256 << 10  # of a pack, in which its index is looked for
STAT_BLOCK = 512
OPEN = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
PACKS = "remotes/*/packs/*.pack"
USES = ".uses"
Tail = Callable[[int], tuple[bytes, int]]  # size -> the last bytes of a pack, and its size


class FrameMirror:
    """Thread-safe. `starts`, `ends`: of the frames in the file."""

    def __init__(self, path: Path, tail: Tail | None = None) -> None:
        """`tail`: reads the end of the remote pack, where the mirror has no index yet, or a damaged
        one. Raises Corrupt, Failed, and what `tail` raises."""
        self.path = path
        with os_errors(f"cannot use {path}"):
            self._fd = os.open(path, OPEN, 0o600)
            try:
                self.index = self._read_index()
            except Corrupt:
                if tail is None:
                    raise
                self._fetch_index(tail)
                self.index = self._read_index()
            frames = [self.index.frame(number) for number in range(self.index.frames)]
            self.starts = array("Q", [frame.offset for frame in frames])
            self.ends = array("Q", [frame.offset + frame.stored for frame in frames])
            sound = zip(self.starts, [0, *self.ends], strict=False)
            if any(start < end for start, end in sound):
                raise Corrupt(f"pack {self.index.name}: its frames overlap")
            uses = os.open(path.with_suffix(USES), OPEN, 0o600)
            with closing_fd(uses):
                room = 4 * max(1, len(frames))
                os.posix_fallocate(uses, 0, room)  # a hole is SIGBUS on a full disk
                self._uses = memoryview(mmap.mmap(uses, room)).cast("I")

    def _read_index(self) -> PackIndex:
        total = os.fstat(self._fd).st_size
        index = read_index(lambda offset, size: os.pread(self._fd, size, offset), total)
        if index.name != self.path.stem:
            raise Corrupt(f"{self.path} has the index of another pack")
        return index

    def _fetch_index(self, tail: Tail) -> None:
        data, total = tail(TAIL_BYTES)
        _, offset, _ = read_trailer(data, total)
        if total - offset > len(data):
            data, total = tail(total - offset)
        os.ftruncate(self._fd, total)
        os.pwrite(self._fd, data[offset - total :], offset)

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            os.close(self._fd)

    def frame_at(self, offset: int) -> int:
        return bisect_right(self.starts, offset) - 1

    def is_present(self, frame: int) -> bool:
        return self._uses[frame] != 0

    def touch(self, frame: int) -> None:
        now_s = int(time.time())
        if self._uses[frame] != now_s:
            self._uses[frame] = now_s

    def used(self) -> list[tuple[int, int]]:
        """Returns (last use, frame) of all that is present."""
        return [(last_use, frame) for frame, last_use in enumerate(self._uses.tolist()) if last_use]

    @contextmanager
    def locked(self, start: int, end: int, *, wait: bool = True) -> Iterator[None]:
        """Holds a range of the file. Raises BlockingIOError where it does not `wait`."""
        fd = os.open(f"/proc/self/fd/{self._fd}", os.O_RDWR | os.O_CLOEXEC)
        with closing_fd(fd):
            lock = LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, end - start, 0)
            fcntl.fcntl(fd, fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK, lock)
            yield

    def read(self, frame: int, offset: int, size: int) -> bytes | None:
        """Returns bytes of a frame, not verified; None where it is absent."""
        if not self.is_present(frame):
            return None
        data = os.pread(self._fd, size, offset)
        if not self.is_present(frame):  # evicted meanwhile
            return None
        self.touch(frame)
        return data

    def store(self, first: int, last: int, data: bytes) -> None:
        """Stores the frames `first` to `last`; the caller holds their range. On a full disk they
        stay absent."""
        with suppress(OSError):
            if os.pwrite(self._fd, data, self.starts[first]) == len(data):
                for frame in range(first, last + 1):
                    self.touch(frame)

    def forget(self, frame: int) -> None:
        self._uses[frame] = 0

    def evict(self, frame: int) -> int:
        """Frees the room of a frame, unless it is being fetched; returns how many bytes it was."""
        start = self.starts[frame]
        end = self.ends[frame]
        if frame and not self.is_present(frame - 1):  # their block is free as well
            start = max(start // BLOCK * BLOCK, self.starts[frame - 1])
        if frame + 1 < self.index.frames and not self.is_present(frame + 1):
            end = min(-(-end // BLOCK) * BLOCK, self.ends[frame + 1])
        before = os.fstat(self._fd).st_blocks
        with suppress(BlockingIOError), self.locked(start, end, wait=False):
            if end > self.ends[frame] and self.is_present(frame + 1):
                end = self.ends[frame]
            if start < self.starts[frame] and self.is_present(frame - 1):
                start = self.starts[frame]
            self.forget(frame)
            call("fallocate", self._fd, PUNCH, start, end - start)
        return (before - os.fstat(self._fd).st_blocks) * STAT_BLOCK


def create_mirror(root: Path, remote: str, size: int, index: PackIndex) -> None:
    """Writes the index of a remote pack of `size` bytes to the mirror, so that it is not
    fetched again. Raises Failed, Corrupt."""
    offset = index.check_end(size)
    trailer = TRAILER.pack(offset, len(index.data), bytes.fromhex(index.name), MAGIC)
    path = mirror_path(root, remote, index.name)
    with os_errors(f"cannot write {path}"):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replacing(path) as out:
            out.truncate(size)
            out.seek(offset)
            out.write(index.data + trailer)


def mirror_path(root: Path, remote: str, name: str) -> Path:
    return root / "remotes" / remote / "packs" / f"{name}.pack"


def remove_mirror(root: Path, remote: str, name: str) -> None:
    path = mirror_path(root, remote, name)
    for mirror_file in (path, path.with_suffix(USES)):
        mirror_file.unlink(missing_ok=True)


def evict(root: Path, limit: int) -> None:
    """Evicts what was used least recently, in all mirrors of the store at `root`, once they take
    more than `limit` bytes of the disk. Raises Failed."""
    if _room(root) <= limit:
        return
    with locks.held(root, "cache", lambda: None):
        total = _room(root)
        candidates = []
        for path in root.glob(PACKS):
            with suppress(CasfsError):
                mirror = FrameMirror(path)
                candidates += [(last_use, frame, mirror) for last_use, frame in mirror.used()]
        for _, frame, mirror in sorted(candidates, key=lambda candidate: candidate[:2]):
            if total <= limit * FULL_SHARE:
                return
            total -= mirror.evict(frame)


def erase(root: Path, keys: Collection[bytes]) -> None:
    """Evicts the frames that hold one of these blobs, from all mirrors of the store at `root`."""
    for path in root.glob(PACKS) if keys else ():
        with suppress(CasfsError):
            mirror = FrameMirror(path)
            if any(key in mirror.index.data for key in keys):
                for number in range(mirror.index.members):
                    if bytes.fromhex(mirror.index.member(number).hash) in keys:
                        for frame in mirror.index.frames_of(number):
                            mirror.evict(frame)


def _room(root: Path) -> int:
    """Returns how many bytes of the disk the mirrors take."""
    total = 0
    for path in root.glob(PACKS):
        with suppress(FileNotFoundError):
            total += path.stat().st_blocks * STAT_BLOCK
    return total
