"""When what a mount shows last changed, by the journal of heads.

A live directory's mtime must differ whenever its content does: the kernel keeps a listing
or a page for as long as the mtime stands. So an mtime is the time of the newest relevant
move of a head in milliseconds, with the move's number below them: two moves in one
millisecond differ as well.

Relevant to a directory are the heads below a prefix: `threads/`, `checkpoints/<name>/`. Of
each head that moved and of the two prefixes above it the newest move is kept, up to a limit;
what is not kept moved before all that is, at `floor` at the latest. The floor rises when
the older half is dropped, and when the journal has lost moves that nobody here has seen:
then all that was known goes. So the mtime of what did not change may rise, but no mtime is
given to two contents. A head that states in its record when it moved needs no floor: its
own time is older than all that is kept.

Whoever asks for an mtime asks before looking at the heads themselves: content may be newer
than its mtime, never older.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from casfs.backend.derived import version_of
from casfs.backend.protocols import Backend, Move
from casfs.fuse.views.vnode import LONG_AGO, MILLISECOND

KEPT = 1 << 15  # names and prefixes; more than the journal concerns
PREFIXES = 2  # of a name: no directory depends on a longer one


class Stamp(NamedTuple):
    """The number of a move, and its time in ms."""

    seq: int
    at_ms: int

    @property
    def ns(self) -> int:
        """As an mtime."""
        return self.at_ms * MILLISECOND + self.seq % MILLISECOND


class Follower:
    """A reader of the journal: `news` gives each move once. `lost`: between the last answer
    and the one before moves are missing. For one thread at a time."""

    def __init__(self, backend: Backend, after: int = 0) -> None:
        self.seq = after
        self.lost = False
        self._backend = backend
        self._current_version = version_of(backend)
        self._version: int | None = None

    def news(self) -> list[Move]:
        """What moved since; cheap when nothing did. The journal's length bounds it."""
        version = self._current_version()
        self.lost = False
        found: list[Move] = []
        if version != self._version:
            while portion := self._backend.heads.moves(self.seq):
                if portion[0].seq != self.seq + 1:
                    self.lost = True
                    found = []
                found += portion
                self.seq = portion[-1].seq
            self._version = version
        return found


class Moves:
    def __init__(self, backend: Backend) -> None:
        self._news = Follower(backend)
        self._newest: dict[str, Stamp] = {}  # in the order of their moves
        self._floor = Stamp(0, LONG_AGO // MILLISECOND)
        self._lock = threading.Lock()

    def newest(self, *prefixes: str) -> Stamp:
        """The newest move below these prefixes, each of which ends in `/`."""
        with self._lock:
            self._follow()
            return max(self._newest.get(prefix, self._floor) for prefix in prefixes)

    def number(self, name: str, *, follow: bool = True) -> int:
        """The number of a head's newest move; 0 when that is long ago. Without `follow` as it
        was at the last question: for a listing, which asks one before it begins."""
        with self._lock:
            if follow:
                self._follow()
            stamp = self._newest.get(name)
        return 0 if stamp is None else stamp.seq

    def _follow(self) -> None:
        news = self._news.news()
        if self._news.lost:
            self._newest.clear()
            self._floor = Stamp(news[0].seq, news[0].at_ms)
        for move in news:
            stamp = Stamp(move.seq, move.at_ms)
            for name in _concerned(move.name):
                self._newest.pop(name, None)
                self._newest[name] = stamp
        if len(self._newest) > KEPT:
            for name in list(islice(self._newest, KEPT // 2)):
                self._floor = self._newest.pop(name)


def _concerned(name: str) -> Iterator[str]:
    """A head and the prefixes that it is below."""
    end = 0
    for _ in range(PREFIXES):
        end = name.find("/", end) + 1
        if end == 0:
            break
        yield name[:end]
    yield name
