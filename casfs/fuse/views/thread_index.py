"""The two index files of threads: `threads.json` (active) and `history/<UTC date>.jsonl`
(ended, by the date of their end), in the formats of seed 000.

    {"<ULID>": {"head": hash, "start": hash, "updatedAt": ms}, …}
    {"threadId": ULID, "head": hash, "start": hash, "completedAt": ms}        a line each

They are views of the heads, which are read once; from then on the journal says which
threads moved, so watching these files costs what moves, however many threads there are.
Of an active thread its line is kept, of an ended one its time and id, 34 bytes; the rest of
a line is looked up when somebody reads it. Every line has one length, so the size of a file
is known from its number of lines, and a read looks at the lines that it asks for alone.

An ended thread's head moved last when it ended: `completedAt` is the record's `updatedAt`.
A thread whose record is damaged is in neither file; `threads/` has it.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict
from datetime import UTC, datetime
from functools import partial

from casfs.backend.derived import newest_move
from casfs.backend.protocols import Head
from casfs.digest import is_hash
from casfs.fuse.views.change_times import Follower
from casfs.fuse.views.store_reader import Reader
from casfs.fuse.views.vnode import READ_FILE, Attr, Changing, File, Live, Maker
from casfs.threads import CANCELLED, ENDED, HEADS, ID_LENGTH, RUNNING, SUSPENDED

ACTIVE = b'  "%b": {"head": "%b", "start": "%b", "updatedAt": %d}'
LINE = b'{"threadId":"%b","head":"%b","start":"%b","completedAt":%d}\n'
TIMES = range(10**12, 10**13)  # ms: thirteen digits
LENGTHS = (b"-" * ID_LENGTH, b"-" * 64, b"-" * 64, TIMES[0])
ACTIVE_LENGTH, LINE_LENGTH = len(ACTIVE % LENGTHS), len(LINE % LENGTHS)
DAY = 86_400_000  # ms
TIME_BYTES = 8
WIDTH = TIME_BYTES + ID_LENGTH  # of an ended thread's entry
MANY = 1000  # moved threads; from there on it is quicker to read all heads again


class Index:
    """One object for a mount; any thread may ask it."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._news = Follower(reader.store.backend, newest_move(reader.store.backend.heads))
        self._active: dict[str, bytes] = {}
        self._days: dict[int, bytearray] = {}  # sorted entries, by days since 1970
        self._known = False
        self._lock = threading.Lock()

    # -- questions ----------------------------------------------------------------------------

    def active_size(self) -> int:
        with self._lock:
            self._follow()
            count = len(self._active)
        return len(b"{\n}\n") + count * (ACTIVE_LENGTH + len(b",\n")) - 1 if count else len(b"{}\n")

    def active(self) -> bytes:
        with self._lock:
            self._follow()
            lines = [line for _, line in sorted(self._active.items())]
        return b"{\n" + b",\n".join(lines) + b"\n}\n" if lines else b"{}\n"

    def days(self) -> list[int]:
        with self._lock:
            self._follow()
            return sorted(self._days)

    def count(self, day: int) -> int:
        """How many threads ended on that day."""
        with self._lock:
            self._follow()
            return len(self._days.get(day, b"")) // WIDTH

    def lines(self, day: int, first: int, count: int) -> bytes:
        """Some lines of a day, in the order of the ends."""
        with self._lock:
            self._follow()
            packed = self._days.get(day, b"")
            entries = bytes(packed[first * WIDTH : (first + count) * WIDTH])
        places = range(TIME_BYTES, len(entries), WIDTH)
        return b"".join(self._line(entries[at : at + ID_LENGTH].decode("ascii")) for at in places)

    def _line(self, id: str) -> bytes:
        head = self._reader.store.heads.get(HEADS + id)
        if head is None or not _sound(id, head):  # it went a moment ago
            return b" " * (LINE_LENGTH - 1) + b"\n"
        return LINE % _fields(id, head)

    # -- keeping up ---------------------------------------------------------------------------

    def _follow(self) -> None:
        news = self._news.news()
        moved = {move.name for move in news if move.name.startswith(HEADS)}
        if not self._known or self._news.lost or len(moved) > MANY:
            self._read_all()
            return
        for name in moved:
            id = name[len(HEADS) :]
            self._drop(id)
            head = self._reader.store.heads.get(name)
            if head is not None and _sound(id, head):
                self._add(id, head)

    def _read_all(self) -> None:
        self._active.clear()
        days: defaultdict[int, list[bytes]] = defaultdict(list)
        for name, head in self._reader.store.heads.list(HEADS):
            id = name[len(HEADS) :]
            if not _sound(id, head):
                continue
            if _is_active(head):
                self._active[id] = ACTIVE % _fields(id, head)
            else:
                days[head.record["updatedAt"] // DAY].append(_entry(id, head))
        self._days = {day: bytearray(b"".join(sorted(found))) for day, found in days.items()}
        self._known = True

    def _add(self, id: str, head: Head) -> None:
        if _is_active(head):
            self._active[id] = ACTIVE % _fields(id, head)
            return
        packed = self._days.setdefault(head.record["updatedAt"] // DAY, bytearray())
        entry = _entry(id, head)
        starts = range(0, len(packed), WIDTH)
        place = bisect_left(starts, entry, key=lambda at: bytes(packed[at : at + WIDTH]))
        packed[place * WIDTH : place * WIDTH] = entry

    def _drop(self, id: str) -> None:
        """Take a thread out, wherever it is."""
        if self._active.pop(id, None) is not None or len(id) != ID_LENGTH:
            return
        for day, packed in self._days.items():
            at = _find(packed, id.encode("utf-8"))
            if at >= 0:
                del packed[at : at + WIDTH]
                if not packed:
                    del self._days[day]
                return


def _find(packed: bytearray, id: bytes) -> int:
    """Where the entry of a thread begins; -1 where there is none."""
    at = packed.find(id)
    while at >= 0 and at % WIDTH != TIME_BYTES:
        at = packed.find(id, at + 1)
    return at - TIME_BYTES if at >= 0 else -1


def _sound(id: str, head: Head) -> bool:
    """Whether the record has all that a line needs."""
    record = head.record
    start, at = record.get("start"), record.get("updatedAt")
    return (
        len(id) == ID_LENGTH
        and id.isascii()
        and id.isalnum()
        and isinstance(start, str)
        and is_hash(start)
        and isinstance(at, int)
        and at in TIMES
        and record.get("status") in (RUNNING, SUSPENDED, ENDED, CANCELLED)
    )


def _is_active(head: Head) -> bool:
    return head.record["status"] in (RUNNING, SUSPENDED)


def _fields(id: str, head: Head) -> tuple[bytes, bytes, bytes, int]:
    start, at = head.record["start"], head.record["updatedAt"]
    return id.encode("ascii"), head.hash.encode("ascii"), start.encode("ascii"), at


def _entry(id: str, head: Head) -> bytes:
    at: int = head.record["updatedAt"]
    return at.to_bytes(TIME_BYTES, "big") + id.encode("ascii")


# -- vnodes -------------------------------------------------------------------------------


class Active(Live):
    """`threads.json`."""

    __slots__ = ("_index", "_reader")

    def __init__(self, key: bytes, reader: Reader, index: Index) -> None:
        super().__init__(key, partial(_active, reader, index))
        self._reader = reader
        self._index = index

    def attr(self) -> Attr:
        mtime_ns = self._reader.moves.newest(HEADS).ns
        return Attr(READ_FILE, self._index.active_size(), mtime_ns)


def _active(reader: Reader, index: Index) -> tuple[bytes, int]:
    mtime_ns = reader.moves.newest(HEADS).ns
    return index.active(), mtime_ns


class Day(File):
    """`history/<date>.jsonl`. It grows until `thread rm` takes a line out."""

    __slots__ = ("_day", "_index", "_reader")
    live = True
    grows = True

    def __init__(self, key: bytes, reader: Reader, index: Index, day: int) -> None:
        super().__init__(key)
        self._reader = reader
        self._index = index
        self._day = day

    def attr(self) -> Attr:
        mtime_ns = self._reader.moves.newest(HEADS).ns
        return Attr(READ_FILE, self._index.count(self._day) * LINE_LENGTH, mtime_ns)

    def read(self, offset: int, size: int) -> bytes:
        size = min(size, self._index.count(self._day) * LINE_LENGTH - offset)
        if size <= 0:
            return b""
        first, skipped = divmod(offset, LINE_LENGTH)
        count = -(-(skipped + size) // LINE_LENGTH)
        return self._index.lines(self._day, first, count)[skipped : skipped + size]


def history(key: bytes, reader: Reader, index: Index) -> Changing:
    """`history/`."""

    def find() -> dict[bytes, Maker]:
        return {
            _name(day): partial(Day, reader=reader, index=index, day=day) for day in index.days()
        }

    return Changing(key, find, lambda: reader.moves.newest(HEADS).ns)


def _name(day: int) -> bytes:
    return f"{datetime.fromtimestamp(day * DAY // 1000, UTC):%Y-%m-%d}.jsonl".encode()
