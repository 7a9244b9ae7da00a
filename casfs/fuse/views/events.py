"""`.casfs/events`: the moves of all heads since the mount began, a line of JSON each.

    {"seq": 17, "name": "threads/01…", "hash": "…" or null, "at": ms since 1970 UTC}

The file only grows, so `tail -f` follows it and an offset keeps its meaning; who waits in
poll() is woken when the file has grown past what he has read. Memory is bounded: of the
newest MiB or two the lines are kept, what was before reads as empty lines. Where moves are
missing because nobody looked for longer than the journal reaches back, `seq` shows it.
"""

from __future__ import annotations

import json
import threading
import time

from casfs.backend.derived import newest_move
from casfs.backend.protocols import Backend, Move
from casfs.fuse.views.change_times import Follower, Stamp
from casfs.fuse.views.vnode import READ_FILE, Attr, File

KEPT = 1 << 20  # bytes


class EventLog:
    """The lines, one object for a mount. `after`: the move after which it begins; the newest
    one unless given."""

    def __init__(self, backend: Backend, after: int | None = None) -> None:
        self._news = Follower(backend, newest_move(backend.heads) if after is None else after)
        self._gone = 0  # bytes that are not kept
        self._tail = bytearray()
        self._mtime_ns = time.time_ns()
        self._lock = threading.Lock()

    def now(self) -> tuple[int, int]:
        """Its size and its mtime."""
        with self._lock:
            self._follow()
            return self._gone + len(self._tail), self._mtime_ns

    def read(self, offset: int, size: int) -> bytes:
        with self._lock:
            self._follow()
            end = min(offset + size, self._gone + len(self._tail))
            empty = b"\n" * max(min(end, self._gone) - offset, 0)
            start = max(offset - self._gone, 0)
            return empty + bytes(self._tail[start : max(end - self._gone, start)])

    def _follow(self) -> None:
        for move in self._news.news():
            self._tail += _line(move)
            self._mtime_ns = Stamp(move.seq, move.at_ms).ns
        if len(self._tail) > 2 * KEPT:
            cut = self._tail.rindex(b"\n", 0, len(self._tail) - KEPT) + 1
            self._gone += cut
            del self._tail[:cut]


def _line(move: Move) -> bytes:
    about = {"seq": move.seq, "name": move.name, "hash": move.hash, "at": move.at_ms}
    return json.dumps(about, ensure_ascii=False).encode("utf-8") + b"\n"


class Events(File):
    __slots__ = ("_log",)
    live = True
    grows = True

    def __init__(self, key: bytes, log: EventLog) -> None:
        super().__init__(key)
        self._log = log

    def attr(self) -> Attr:
        size, mtime_ns = self._log.now()
        return Attr(READ_FILE, size, mtime_ns)

    def read(self, offset: int, size: int) -> bytes:
        return self._log.read(offset, size)
