"""Vnodes of files whose content is made in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from casfs.errors import CasfsError
from casfs.fuse.views.vnode import READ_FILE, Y2000_NS, Attr, File


class TextFile(File):
    """Content held in memory: only for short texts and for the only file of its kind."""

    __slots__ = ("_data", "_mtime_ns")

    def __init__(self, key: bytes, data: bytes, mtime_ns: int = Y2000_NS) -> None:
        super().__init__(key)
        self._data = data
        self._mtime_ns = mtime_ns

    def attr(self) -> Attr:
        return Attr(READ_FILE, len(self._data), self._mtime_ns)

    def read(self, offset: int, size: int) -> bytes:
        return self._data[offset : offset + size]


class ComputedFile(File):
    """Immutable content, computed for every read; only its size is held."""

    __slots__ = ("_make", "_mtime_ns", "_size")

    def __init__(self, key: bytes, make: Callable[[], bytes], mtime_ns: int = Y2000_NS) -> None:
        super().__init__(key)
        self._make = make
        self._size = len(make())
        self._mtime_ns = mtime_ns

    def attr(self) -> Attr:
        return Attr(READ_FILE, self._size, self._mtime_ns)

    def read(self, offset: int, size: int) -> bytes:
        return self._make()[offset : offset + size]


class LiveFile(File):
    """Changing content; `make` returns its current bytes and their mtime (ns)."""

    __slots__ = ("_make",)
    live = True

    def __init__(self, key: bytes, make: Callable[[], tuple[bytes, int]]) -> None:
        super().__init__(key)
        self._make = make

    def snapshot(self) -> tuple[bytes, int]:
        """Returns all of the current content, and its mtime (ns)."""
        return self._make()

    def attr(self) -> Attr:
        data, mtime_ns = self._make()
        return Attr(READ_FILE, len(data), mtime_ns)

    def read(self, offset: int, size: int) -> bytes:
        return self._make()[0][offset : offset + size]


class BrokenFile(File):
    """Takes the place of an entry that cannot be made; reading it raises the error."""

    __slots__ = ("_error",)
    live = True

    def __init__(self, key: bytes, error: CasfsError) -> None:
        super().__init__(key)
        self._error = error

    def attr(self) -> Attr:
        return Attr(READ_FILE, 0, Y2000_NS)

    def read(self, offset: int, size: int) -> NoReturn:
        raise type(self._error)(str(self._error))
