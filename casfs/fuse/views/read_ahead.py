"""Reads the small files of a directory a few at a time, as a program reads them one by one.

What a file costs is mostly its row's query. The first miss in a directory reads MIN_BATCH_FILES; a
further one twice as many as the last, up to MAX_BATCH_FILES, where the last were of use, else half
as many. In whatever order a program goes, the files after the one that is asked for come first,
then those before it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Protocol

from casfs.backend.lazy_packs import NotLocal
from casfs.errors import CasfsError
from casfs.system.lru_cache import LruCache

MAX_DIRECTORIES = 32
MAX_FILES = 4096  # of a directory
MIN_BATCH_FILES = 4
MAX_BATCH_FILES = 64
MAX_BATCH_BYTES = 1 << 20
READ_BYTES = 8 << 20  # of contents that were read ahead
ReadMany = Callable[[Sequence[str]], Iterator[bytes | None]]


class FilesOfDirectory(Protocol):
    """A directory, which its files know."""

    @property
    def digest(self) -> str: ...

    def small_files(self) -> dict[str, int]:
        """Returns the hashes and sizes of the files that may be read ahead."""


class _Unread:
    """The files of a directory that were not read yet: their sizes by hash; `next`: the first after
    the last batch; `used`: how many of that were asked for."""

    def __init__(self, files: dict[str, int]) -> None:
        self.files = files
        self.batch_files = MIN_BATCH_FILES
        self.next = ""
        self.used = 0

    def take(self, hash: str) -> list[str]:
        """Returns what is read next: this hash, and some of those after it."""
        if self.next:
            is_useful = hash == self.next or 2 * (self.used - 1) >= self.batch_files - 1
            wanted = 2 * self.batch_files if is_useful else self.batch_files // 2
            self.batch_files = min(max(wanted, 1), MAX_BATCH_FILES)
        hashes = list(self.files)
        start = hashes.index(hash)
        batch = [*hashes[start:], *hashes[:start]]
        self.next = ""
        size = 0
        for count, candidate in enumerate(batch):
            size += self.files[candidate]
            if count == self.batch_files or (count and size > MAX_BATCH_BYTES):
                self.next = candidate
                batch = batch[:count]
                break
        for taken in batch:
            del self.files[taken]
        self.used = 1
        return batch


class ReadAhead:
    """Contents by hash, verified. Thread-safe."""

    def __init__(self, read_many: ReadMany) -> None:
        """`read_many` yields the verified bytes of each hash, None of one to be read otherwise."""
        self.contents = LruCache(READ_BYTES)
        self._read_many = read_many
        self._directories: OrderedDict[str, _Unread] = OrderedDict()  # by their hash
        self._lock = threading.Lock()

    def read(self, hash: str, directory: FilesOfDirectory) -> bytes | None:
        """Returns the content of a file in a directory; None where it is to be read by itself."""
        content: bytes | None = self.contents.get(hash)
        with self._lock:
            unread = self._unread(directory)
            if content is not None:
                unread.used += 1
                return content
            batch = unread.take(hash) if hash in unread.files else []
        return self._read_batch(batch) if len(batch) > 1 else None

    def _unread(self, directory: FilesOfDirectory) -> _Unread:
        unread = self._directories.get(directory.digest)
        if unread is None:
            files: dict[str, int] = {}
            # It may be gone, though this file of it is in another tree, too.
            with suppress(CasfsError, NotLocal):
                files = directory.small_files()
            unread = _Unread(files if len(files) <= MAX_FILES else {})
            self._directories[directory.digest] = unread
            if len(self._directories) > MAX_DIRECTORIES:
                self._directories.popitem(last=False)
        else:
            self._directories.move_to_end(directory.digest)
        return unread

    def _read_batch(self, batch: list[str]) -> bytes | None:
        generation = self.contents.generation
        size = 0
        # What is damaged or elsewhere raises when it is read by itself.
        with suppress(CasfsError, NotLocal):
            for hash, content in zip(batch, self._read_many(batch), strict=True):
                if content is not None:
                    self.contents.put(hash, content, len(content), generation)
                    size += len(content)
                if size > MAX_BATCH_BYTES:  # more than the tree says
                    break
        read: bytes | None = self.contents.get(batch[0])
        return read
