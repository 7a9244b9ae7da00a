"""Packs of a remote whose frames are fetched when they are first read.

A frame is fetched once, by the first thread or process that reads it; the others wait for it. All
members of a frame come with it. Where the frames before it are there already, as many behind it
are fetched by the same request, up to WINDOW_BYTES: so the windows double while a reader goes on;
and once half of a window was read, the next one is fetched in the background.

A thread that must not wait for the network (the loop of a mount) says so with `waiting.allowed`:
there a frame that is absent raises `NotLocal`, which can fetch it in another thread.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from casfs import config
from casfs.backend.frame_mirror import FrameMirror, evict, mirror_path
from casfs.digest import Hasher
from casfs.errors import CasfsError, Corrupt, CorruptBlob, Failed, NotFound, Unreachable
from casfs.object_storage.interface import ObjectStorage
from casfs.object_storage.location import open_storage
from casfs.packs.layout import MAX_FRAME_BYTES
from casfs.packs.reader import PackReader
from casfs.system.lru_cache import LruCache

WINDOW_BYTES = 4 << 20  # of one request
PATIENCE_S = 5.0  # for a request and its retries
BACKOFF_S = 0.5  # after a failure, in which nothing is asked
MAX_BACKOFF_S = 8.0
EVICT_SHARE = 16  # of the limit: evictions are looked for after so much was fetched
BACKGROUND_THREADS = 2
REFERRED_PACKS = 32  # whose readers are kept: a descriptor, an index and a frame each
MOVES = 1 << 62  # behind every frame: where the locks of `moving` begin
SHARED = "_shared"  # the remote of the packs of a shared store; no name that a user can give
T = TypeVar("T")


class _Waiting(threading.local):
    allowed = True


waiting = _Waiting()


@contextmanager
def without_waiting() -> Iterator[None]:
    """Has this thread not wait for a network."""
    before = waiting.allowed
    waiting.allowed = False
    try:
        yield
    finally:
        waiting.allowed = before


class NotLocal(Exception):
    """The content is not here, and this thread must not wait for it. `fetch` brings it, in a thread
    that may; it raises what a read would."""

    def __init__(self, fetch: Callable[[], object]) -> None:
        super().__init__("not fetched yet")
        self.fetch = fetch


class LazyRemote:
    """The object storage of a remote, for reads by range. Thread-safe.

    After a failure requests fail at once for a short time; then one is let through, and the others
    go on failing until that one has succeeded: so few threads ever wait for a dead network.
    """

    def __init__(
        self, root: Path, name: str, limit: int, connect: Callable[[], ObjectStorage]
    ) -> None:
        """`root`: of the store; `limit`: bytes of the mirrors of all its remotes, 0 for none."""
        self.root = root
        self.name = name
        self.window = min(WINDOW_BYTES, limit // EVICT_SHARE or WINDOW_BYTES)
        self._limit = limit
        self._connect = connect
        self._storage: ObjectStorage | None = None
        self._lock = threading.Lock()
        self._failures = 0
        self._again = 0.0
        self._stored = 0
        self._pool: ThreadPoolExecutor | None = None
        self._referred = LruCache(REFERRED_PACKS)

    def referred(self, pack: str) -> LazyPack:
        """Returns the reader of a pack to which others refer; all of these share it. Raises as
        LazyPack."""
        reader: LazyPack | None = self._referred.get(pack)
        if reader is None:
            reader = LazyPack(self, pack)
            self._referred.put(pack, reader, 1)
        return reader

    def get(self, pack: str, offset: int, size: int) -> bytes:
        """Raises Unreachable, Corrupt (no such pack, or too short)."""
        return self._ask(lambda storage: storage.get_range(f"packs/{pack}.pack", offset, size))

    def tail(self, pack: str, size: int) -> tuple[bytes, int]:
        """As `get`: the last bytes of a pack, and its size."""
        return self._ask(lambda storage: storage.get_tail(f"packs/{pack}.pack", size))

    def _ask(self, request: Callable[[ObjectStorage], T]) -> T:
        if not waiting.allowed:
            raise NotLocal(partial(self._ask, request))
        with self._lock:
            if self._failures:
                if time.monotonic() < self._again:
                    raise Unreachable(f"the remote {self.name} does not answer; trying again soon")
                self._again = time.monotonic() + 2 * PATIENCE_S
            if self._storage is None:
                self._storage = self._connect()
        try:
            answer = request(self._storage)
        except Unreachable:
            with self._lock:
                pause = min(MAX_BACKOFF_S, BACKOFF_S * 2 ** min(self._failures, 8))
                self._failures = self._failures + 1
                self._again = time.monotonic() + pause
            raise
        except NotFound as error:
            raise Corrupt(f"gone from the remote {self.name}: {error}") from None
        self._failures = 0
        return answer

    def note_stored(self, size: int) -> None:
        """Evicts, once enough was stored since the last time."""
        self._stored += size
        if self._limit and self._stored > self._limit // EVICT_SHARE:
            self._stored = 0
            evict(self.root, self._limit)

    def in_background(self, task: Callable[[], object]) -> None:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(BACKGROUND_THREADS, "casfs-read-ahead")
        with suppress(RuntimeError):  # this process ends
            self._pool.submit(task)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def cache_limit(root: Path) -> int:
    """Returns `cache.max_size`. Raises Invalid."""
    return int(config.values(root, os.environ)["cache.max_size"])


class LazyRemotes:
    """The remotes of the store at `root`, each opened when it is first asked. Thread-safe."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._open: dict[str, LazyRemote] = {}
        self._lock = threading.Lock()

    def pack(self, remote: str, name: str) -> LazyPack:
        """Raises NotFound (no such remote), Unreachable, Corrupt, Failed."""
        with self._lock:
            if remote not in self._open:
                connect = partial(self._connect, remote)
                limit = cache_limit(self._root)
                self._open[remote] = LazyRemote(self._root, remote, limit=limit, connect=connect)
        try:
            return LazyPack(self._open[remote], name)
        except NotLocal:
            raise NotLocal(partial(self.pack, remote, name)) from None

    def _connect(self, name: str) -> ObjectStorage:
        shared = config.shared(self._root) if name == SHARED else None
        if shared is not None:
            return open_storage(
                shared.objects,
                endpoint=shared.endpoint,
                region=shared.region,
                patience_s=PATIENCE_S,
            )
        settings: Any = config.remotes(self._root).get(name)
        if not settings or "url" not in settings:
            raise Failed(f"no remote {name!r} any more, but blobs are there; `casfs remote add` it")
        return open_storage(**settings, patience_s=PATIENCE_S)

    def close(self) -> None:
        for remote in self._open.values():
            remote.close()


class FrameFetcher:
    """Reads the frames of one pack: from its mirror, else from the remote. Thread-safe."""

    def __init__(self, remote: LazyRemote, name: str) -> None:
        self.remote = remote
        self.name = name
        path = mirror_path(remote.root, remote.name, name)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.mirror = FrameMirror(path, partial(remote.tail, name))
        self._count = len(self.mirror.starts)
        self._ahead = range(0)  # frames whose use starts the next fetch in the background

    def read_at(self, offset: int, size: int) -> bytes:
        """Returns bytes of one frame, not verified. Raises as `LazyRemote.get`; NotLocal."""
        mirror = self.mirror
        frame = mirror.frame_at(offset)
        if frame < 0 or offset + size > mirror.ends[frame]:
            raise Corrupt(f"no frame holds the bytes at {offset}")
        data = mirror.read(frame, offset, size)
        if data is None:
            if not waiting.allowed:
                raise NotLocal(partial(self._fetch, frame))
            start = offset - mirror.starts[frame]
            data = self._fetch(frame)[start : start + size]
        if frame in self._ahead:
            behind = self._ahead.stop
            self._ahead = range(0)
            if behind < self._count and not mirror.is_present(behind):
                self.remote.in_background(partial(self._fetch_quietly, behind))
        return data

    def _fetch_quietly(self, frame: int) -> None:
        with suppress(CasfsError):
            self._fetch(frame)

    def _fetch(self, first: int) -> bytes:
        """Returns the stored bytes of a frame, which it fetches with those behind it, unless
        another reader has."""
        mirror = self.mirror
        last = self._window(first)
        start = mirror.starts[first]
        own = mirror.ends[first] - mirror.starts[first]
        with mirror.locked(start, mirror.ends[last]):
            data = mirror.read(first, start, own)
            if data is not None:
                return data
            later_frames = range(first + 1, last + 1)
            last = next((frame - 1 for frame in later_frames if mirror.is_present(frame)), last)
            data = self.remote.get(self.name, start, mirror.ends[last] - start)
            mirror.store(first, last, data)
        if last > first:
            self._ahead = range((first + last + 1) // 2, last + 1)
        self.remote.note_stored(len(data))
        return data[:own]

    def _window(self, first: int) -> int:
        """Returns the last frame to fetch with `first`: as many as there are before it."""
        mirror = self.mirror
        most = self.remote.window
        start = mirror.starts[first]
        before = last = first
        while before and mirror.is_present(before - 1) and start - mirror.starts[before] < most:
            before -= 1
        while (
            last + 1 < min(self._count, 2 * first - before)
            and not mirror.is_present(last + 1)
            and mirror.ends[last + 1] - start <= most
        ):
            last += 1
        return last


class LazyPack(PackReader):
    """The reader of one pack of a remote. Beside what PackReader raises: Unreachable, and NotLocal
    in a thread that must not wait."""

    _fd = -1

    def __init__(self, remote: LazyRemote, name: str) -> None:
        """Raises Unreachable, Corrupt, Failed."""
        self._fetcher = FrameFetcher(remote, name)
        super().__init__(
            self._fetcher.mirror.index,
            self._fetcher.read_at,
            open_other=remote.referred,
        )

    def read(self, number: int) -> bytes:
        """Where a member is damaged, its frames are fetched again, once."""
        try:
            try:
                return super().read(number)
            except CorruptBlob:
                self._drop(number)
            return super().read(number)
        except CorruptBlob as error:
            self._drop(number)
            raise CorruptBlob(f"{error}; in the remote {self._fetcher.remote.name}") from None
        except NotLocal:
            raise NotLocal(partial(self.read, number)) from None

    def pieces(self, number: int) -> Iterator[bytes]:
        """A large member is verified at its end. Where it is damaged, its frames are fetched again
        by the next reader."""
        member = self.index.member(number)
        hasher = Hasher()
        for piece in super().pieces(number):
            if member.size > MAX_FRAME_BYTES:
                hasher.update(piece)
            yield piece
        if member.size > MAX_FRAME_BYTES and hasher.hexdigest() != member.hash:
            self._drop(number)
            raise self._damaged(number, "its bytes do not hash to its name")

    @contextmanager
    def moving(self, number: int) -> Iterator[None]:
        """One process at a time, so that none fetches what another has just freed: the room of the
        member's frames is free after the block. A thread that must not wait does not."""
        mirror = self._fetcher.mirror
        lock_offset = MOVES + number
        with mirror.locked(lock_offset, lock_offset + 1) if waiting.allowed else nullcontext():
            yield
            for frame in self.index.frames_of(number):
                mirror.evict(frame)

    def _drop(self, number: int) -> None:
        for frame in self.index.frames_of(number):
            with suppress(CasfsError):  # a reference that leads nowhere
                reader, ref = self.resolved(frame)
                if isinstance(reader, LazyPack) and reader is not self:
                    reader._fetcher.mirror.forget(ref.number)
            self._fetcher.mirror.forget(frame)
        self.forget()
