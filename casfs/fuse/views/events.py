"""`.casfs/events`: the head moves since the mount began, a line of JSON each.

    {"seq": 17, "name": "threads/01…", "hash": "…" or null, "at": ms since 1970 UTC}

The file only grows, so `tail -f` follows it and an offset keeps its meaning; poll() wakes a
reader when the file has grown past its offset. Memory is bounded: the lines of the newest
EVENT_LOG_BYTES (up to twice that) are kept, what was before reads as empty lines. Where moves are
missing because the file was not read before the journal dropped them, `seq` has a gap.
"""

from __future__ import annotations

import json
import threading
import time

from casfs.backend.journal import JournalReader
from casfs.backend.protocols import Backend, Move
from casfs.fuse.views.change_times import ChangeTime
from casfs.fuse.views.vnode import READ_FILE, Attr, File
from casfs.store import local_trees

EVENT_LOG_BYTES = 1 << 20


class EventLog:
    """The content of the file, one object for a mount. It begins after the newest move."""

    def __init__(self, backend: Backend) -> None:
        self._journal = JournalReader(backend)
        self._dropped_bytes = 0
        self._tail = bytearray()
        self._mtime_ns = time.time_ns()
        self._lock = threading.Lock()

    def size_and_mtime(self) -> tuple[int, int]:
        with self._lock:
            self._update()
            return self._dropped_bytes + len(self._tail), self._mtime_ns

    def read(self, offset: int, size: int) -> bytes:
        with self._lock:
            self._update()
            dropped = self._dropped_bytes
            end = min(offset + size, dropped + len(self._tail))
            empty = b"\n" * max(min(end, dropped) - offset, 0)
            start = max(offset - dropped, 0)
            return empty + bytes(self._tail[start : max(end - dropped, start)])

    def _update(self) -> None:
        for move in self._journal.new_moves():
            if move.name.startswith(local_trees.HEADS):
                continue  # no page names what stays here
            self._tail += _line(move)
            self._mtime_ns = ChangeTime(move.seq, move.at_ms).mtime_ns
        if len(self._tail) > 2 * EVENT_LOG_BYTES:
            cut = self._tail.rindex(b"\n", 0, len(self._tail) - EVENT_LOG_BYTES) + 1
            self._dropped_bytes += cut
            del self._tail[:cut]


def _line(move: Move) -> bytes:
    event = {"seq": move.seq, "name": move.name, "hash": move.hash, "at": move.at_ms}
    return json.dumps(event, ensure_ascii=False).encode("utf-8") + b"\n"


class EventsFile(File):
    __slots__ = ("_log",)
    live = True
    append_only = True

    def __init__(self, key: bytes, log: EventLog) -> None:
        super().__init__(key)
        self._log = log

    def attr(self) -> Attr:
        size, mtime_ns = self._log.size_and_mtime()
        return Attr(READ_FILE, size, mtime_ns)

    def read(self, offset: int, size: int) -> bytes:
        return self._log.read(offset, size)
