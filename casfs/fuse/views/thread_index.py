"""The two index files of threads: `threads.json` (active) and `history/<UTC date>.jsonl`
(ended, by the date of their end), in the formats of seed 000.

    {"<ULID>": {"head": hash, "start": hash, "updatedAt": ms}, …}
    {"threadId": ULID, "head": hash, "start": hash, "completedAt": ms}        a line each

They are views of the heads, which are read once; after that only moved threads are read
again, by the journal, so polling these files costs O(moves), however many threads there are.
The index keeps the line of an active thread, and the time and id of an ended one, 34 bytes; the
rest of that line is read on demand. Every line has the same length, so the size of a file
follows from its number of lines, and a read loads only the lines in its range.

An ended thread's head moved last when it ended: `completedAt` is the record's `updatedAt`.
A thread whose record is damaged is in neither file; `threads/` has it.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict
from datetime import UTC, datetime
from functools import partial

from casfs.backend.journal import JournalReader
from casfs.backend.protocols import Head
from casfs.fuse.views.directories import LiveDirectory, VnodeFactory
from casfs.fuse.views.files import LiveFile
from casfs.fuse.views.store_reader import StoreReader
from casfs.fuse.views.vnode import READ_FILE, Attr, File
from casfs.store.nodes import head_kinds
from casfs.threads.threads import HEADS, ID_LENGTH, RUNNING, SUSPENDED, ThreadId, head_name

ACTIVE = b'  "%b": {"head": "%b", "start": "%b", "updatedAt": %d}'
LINE = b'{"threadId":"%b","head":"%b","start":"%b","completedAt":%d}\n'
TIMES_MS = range(10**12, 10**13)  # thirteen digits
LENGTHS = (b"-" * ID_LENGTH, b"-" * 64, b"-" * 64, TIMES_MS[0])
ACTIVE_LENGTH = len(ACTIVE % LENGTHS)
LINE_LENGTH = len(LINE % LENGTHS)
DAY_MS = 86_400_000
TIME_BYTES = 8
ENTRY_BYTES = TIME_BYTES + ID_LENGTH  # of an ended thread
RELOAD_MOVES = 1000  # from there on reading all heads again is quicker


class ThreadIndex:
    """Thread-safe; one object for a mount."""

    def __init__(self, reader: StoreReader) -> None:
        self._reader = reader
        self._journal = JournalReader(reader.store.backend)
        self._active: dict[str, bytes] = {}
        self._days: dict[int, bytearray] = {}  # sorted entries, by days since 1970
        self._loaded = False
        self._lock = threading.Lock()

    # -- queries ----------------------------------------------------------------------------

    def active_size(self) -> int:
        with self._lock:
            self._update()
            count = len(self._active)
        return len(b"{\n}\n") + count * (ACTIVE_LENGTH + len(b",\n")) - 1 if count else len(b"{}\n")

    def active(self) -> bytes:
        with self._lock:
            self._update()
            lines = [line for _, line in sorted(self._active.items())]
        return b"{\n" + b",\n".join(lines) + b"\n}\n" if lines else b"{}\n"

    def days(self) -> list[int]:
        with self._lock:
            self._update()
            return sorted(self._days)

    def count(self, day: int) -> int:
        """Returns the number of threads that ended on that day."""
        with self._lock:
            self._update()
            return len(self._days.get(day, b"")) // ENTRY_BYTES

    def lines(self, day: int, first: int, count: int) -> bytes:
        """Returns `count` lines of a day from the `first` on, by time of end."""
        with self._lock:
            self._update()
            packed = self._days.get(day, b"")
            entries = bytes(packed[first * ENTRY_BYTES : (first + count) * ENTRY_BYTES])
        places = range(TIME_BYTES, len(entries), ENTRY_BYTES)
        return b"".join(
            self._line(entries[offset : offset + ID_LENGTH].decode("ascii")) for offset in places
        )

    def _line(self, id: str) -> bytes:
        head = self._reader.store.heads.get(head_name(ThreadId(id)))
        if head is None or not _is_valid(id, head):  # removed meanwhile
            return b" " * (LINE_LENGTH - 1) + b"\n"
        return LINE % _fields(id, head)

    # -- updates ---------------------------------------------------------------------------

    def _update(self) -> None:
        moves = self._journal.new_moves()
        moved = {move.name for move in moves if move.name.startswith(HEADS)}
        if not self._loaded or self._journal.lost or len(moved) > RELOAD_MOVES:
            self._load_all()
            return
        for name in moved:
            id = name[len(HEADS) :]
            self._drop(id)
            head = self._reader.store.heads.get(name)
            if head is not None and _is_valid(id, head):
                self._add(id, head)

    def _load_all(self) -> None:
        self._active.clear()
        days: defaultdict[int, list[bytes]] = defaultdict(list)
        for name, head in self._reader.store.heads.list(HEADS):
            id = name[len(HEADS) :]
            if not _is_valid(id, head):
                continue
            if _is_active(head):
                self._active[id] = ACTIVE % _fields(id, head)
            else:
                days[head.record["updatedAt"] // DAY_MS].append(_entry(id, head))
        self._days = {day: bytearray(b"".join(sorted(entries))) for day, entries in days.items()}
        self._loaded = True

    def _add(self, id: str, head: Head) -> None:
        if _is_active(head):
            self._active[id] = ACTIVE % _fields(id, head)
            return
        packed = self._days.setdefault(head.record["updatedAt"] // DAY_MS, bytearray())
        entry = _entry(id, head)
        starts = range(0, len(packed), ENTRY_BYTES)
        index = bisect_left(
            starts, entry, key=lambda start: bytes(packed[start : start + ENTRY_BYTES])
        )
        packed[index * ENTRY_BYTES : index * ENTRY_BYTES] = entry

    def _drop(self, id: str) -> None:
        """Removes a thread, active or ended."""
        if self._active.pop(id, None) is not None or len(id) != ID_LENGTH:
            return
        for day, packed in self._days.items():
            offset = _find(packed, id.encode("utf-8"))
            if offset >= 0:
                del packed[offset : offset + ENTRY_BYTES]
                if not packed:
                    del self._days[day]
                return


def _find(packed: bytearray, id: bytes) -> int:
    """Returns the offset of a thread's entry; -1 if there is none."""
    id_offset = packed.find(id)
    while id_offset >= 0 and id_offset % ENTRY_BYTES != TIME_BYTES:
        id_offset = packed.find(id, id_offset + 1)
    return id_offset - TIME_BYTES if id_offset >= 0 else -1


def _is_valid(id: str, head: Head) -> bool:
    """Whether the head is sound, and its time has the length of a line's."""
    return not head_kinds.fault(HEADS + id, head) and head.record["updatedAt"] in TIMES_MS


def _is_active(head: Head) -> bool:
    return head.record["status"] in (RUNNING, SUSPENDED)


def _fields(id: str, head: Head) -> tuple[bytes, bytes, bytes, int]:
    start = head.record["start"]
    updated_at = head.record["updatedAt"]
    return id.encode("ascii"), head.hash.encode("ascii"), start.encode("ascii"), updated_at


def _entry(id: str, head: Head) -> bytes:
    updated_at: int = head.record["updatedAt"]
    return updated_at.to_bytes(TIME_BYTES, "big") + id.encode("ascii")


# -- vnodes -------------------------------------------------------------------------------


class ActiveThreads(LiveFile):
    """`threads.json`."""

    __slots__ = ("_index", "_reader")

    def __init__(self, key: bytes, reader: StoreReader, index: ThreadIndex) -> None:
        super().__init__(key, self._content)
        self._reader = reader
        self._index = index

    def _content(self) -> tuple[bytes, int]:
        mtime_ns = _mtime_ns(self._reader)  # before the content
        return self._index.active(), mtime_ns

    def attr(self) -> Attr:
        mtime_ns = _mtime_ns(self._reader)
        return Attr(READ_FILE, self._index.active_size(), mtime_ns)


class HistoryFile(File):
    """`history/<date>.jsonl`. It grows until `thread rm` removes a line."""

    __slots__ = ("_day", "_index", "_reader")
    live = True
    append_only = True

    def __init__(self, key: bytes, reader: StoreReader, index: ThreadIndex, day: int) -> None:
        super().__init__(key)
        self._reader = reader
        self._index = index
        self._day = day

    def attr(self) -> Attr:
        mtime_ns = _mtime_ns(self._reader)
        return Attr(READ_FILE, self._index.count(self._day) * LINE_LENGTH, mtime_ns)

    def read(self, offset: int, size: int) -> bytes:
        size = min(size, self._index.count(self._day) * LINE_LENGTH - offset)
        if size <= 0:
            return b""
        first, skipped = divmod(offset, LINE_LENGTH)
        count = -(-(skipped + size) // LINE_LENGTH)
        return self._index.lines(self._day, first, count)[skipped : skipped + size]


def history(key: bytes, reader: StoreReader, index: ThreadIndex) -> LiveDirectory:
    """`history/`: one file for each day on which a thread ended."""

    def find() -> dict[bytes, VnodeFactory]:
        return {
            _file_name(day): partial(HistoryFile, reader=reader, index=index, day=day)
            for day in index.days()
        }

    return LiveDirectory(key, find, lambda: _mtime_ns(reader))


def _mtime_ns(reader: StoreReader) -> int:
    return reader.change_times.latest(HEADS).mtime_ns


def _file_name(day: int) -> bytes:
    return f"{datetime.fromtimestamp(day * DAY_MS // 1000, UTC):%Y-%m-%d}.jsonl".encode()
