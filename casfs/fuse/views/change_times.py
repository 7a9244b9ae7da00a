"""The mtimes of live files and directories, from the journal of head moves.

A live directory's mtime must differ whenever its content does: the kernel keeps a cached
listing or page as long as the mtime stands. So an mtime is the time of the newest relevant
move in milliseconds, with the move's sequence number below them: two moves in one millisecond
differ as well.

Relevant to a directory are the heads below a prefix: `threads/`, `checkpoints/<name>/`. The
newest move of each head and of its first two prefixes is cached (MAX_TRACKED_NAMES); a name that is
not cached moved before all that are, at `floor` at the latest. The floor rises when the older
half is evicted, and when the journal has dropped moves unread: then all entries go. So the
mtime of unchanged content may rise, but two contents never have one mtime. A head whose record
states its time of change needs no floor: that time is older than all that is kept.

Callers must ask for the mtime before they read the heads: content may be newer than its mtime,
never older.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from casfs.backend.journal import JournalReader
from casfs.backend.protocols import Backend, HeadName
from casfs.fuse.views.vnode import MILLISECOND, Y2000_NS

MAX_TRACKED_NAMES = 1 << 15  # heads and prefixes; more than the journal's moves concern
PREFIXES = 2  # of a head's name: no directory depends on a longer one


class ChangeTime(NamedTuple):
    """The sequence number of a move, and its time in ms."""

    seq: int
    at_ms: int

    @property
    def mtime_ns(self) -> int:
        return self.at_ms * MILLISECOND + self.seq % MILLISECOND


class ChangeTimes:
    """Thread-safe."""

    def __init__(self, backend: Backend) -> None:
        self._journal = JournalReader(backend, after=0)
        self._newest: dict[str, ChangeTime] = {}  # in the order of their moves
        self._floor = ChangeTime(0, Y2000_NS // MILLISECOND)
        self._lock = threading.Lock()

    def latest(self, *prefixes: str) -> ChangeTime:
        """Returns the newest move below these prefixes, each of which ends in `/`."""
        with self._lock:
            self._update()
            return max(self._newest.get(prefix, self._floor) for prefix in prefixes)

    def head_seq(self, name: HeadName, *, update: bool = True) -> int:
        """Returns the sequence number of a head's newest move; 0 if that is no longer kept.
        `update=False` answers as of the last call, for a listing that updates once."""
        with self._lock:
            if update:
                self._update()
            newest = self._newest.get(name)
        return 0 if newest is None else newest.seq

    def _update(self) -> None:
        moves = self._journal.new_moves()
        if self._journal.lost:
            self._newest.clear()
            self._floor = ChangeTime(moves[0].seq, moves[0].at_ms)
        for move in moves:
            changed = ChangeTime(move.seq, move.at_ms)
            for name in _prefixes_and_name(move.name):
                self._newest.pop(name, None)
                self._newest[name] = changed
        if len(self._newest) > MAX_TRACKED_NAMES:
            for name in list(islice(self._newest, MAX_TRACKED_NAMES // 2)):
                self._floor = self._newest.pop(name)


def _prefixes_and_name(name: HeadName) -> Iterator[str]:
    end = 0
    for _ in range(PREFIXES):
        end = name.find("/", end) + 1
        if end == 0:
            break
        yield name[:end]
    yield name
