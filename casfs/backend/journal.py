"""Reading the journal of head moves as it grows."""

from __future__ import annotations

from casfs.backend.derived import newest_move, version_of
from casfs.backend.protocols import Backend, Move


class JournalReader:
    """Reads each move of the journal once: those after the number `after`, by default those from
    now on. `lost`: moves are missing before those of the last `new_moves`. Not thread-safe."""

    def __init__(self, backend: Backend, after: int | None = None) -> None:
        self.seq = newest_move(backend.heads) if after is None else after
        self.lost = False
        self._backend = backend
        self._current_version = version_of(backend)
        self._version: int | None = None

    def new_moves(self) -> list[Move]:
        """Returns the moves since the last call, at most the journal's length; cheap if there
        are none. A call that fails has read none."""
        version = self._current_version()
        lost = False
        seq = self.seq
        all_moves: list[Move] = []
        if version != self._version:
            while moves := self._backend.heads.moves(seq):
                if moves[0].seq != seq + 1:
                    lost = True
                    all_moves = []
                all_moves += moves
                seq = moves[-1].seq
        self.lost = lost
        self.seq = seq
        self._version = version
        return all_moves
