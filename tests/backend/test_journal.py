"""The journal of head moves, read as it grows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from casfs.backend.journal import JournalReader
from casfs.backend.protocols import JOURNAL_MIN_MOVES, MOVES_PER_READ, Move
from casfs.errors import Failed
from casfs.store.store import Store
from tests.support.helpers import move


def test_a_follower_gives_each_move_once(store: Store) -> None:
    follower = JournalReader(store.backend)
    assert follower.new_moves() == []
    move(store, "a", 3)
    assert [found.name for found in follower.new_moves()] == ["a"] * 3
    assert follower.new_moves() == []
    store.put(b"no head moves")
    assert follower.new_moves() == []
    move(store, "b", 2500)
    assert len(follower.new_moves()) == 2500
    assert not follower.lost


def test_a_read_that_fails_takes_nothing(
    disk_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = JournalReader(disk_store.backend)
    move(disk_store, "a", MOVES_PER_READ + 5)
    read, begin = disk_store.heads.moves, follower.seq

    def failing(after: int = 0) -> Sequence[Move]:
        if after != begin:  # the second part
            raise Failed("disk I/O error")
        return read(after)

    with monkeypatch.context() as patched:
        patched.setattr(disk_store.heads, "moves", failing)
        with pytest.raises(Failed):
            follower.new_moves()
    assert len(follower.new_moves()) == MOVES_PER_READ + 5
    assert not follower.lost


def test_a_follower_knows_when_it_was_too_slow(store: Store) -> None:
    follower = JournalReader(store.backend)
    move(store, "a", JOURNAL_MIN_MOVES + 2000)
    assert len(follower.new_moves()) >= JOURNAL_MIN_MOVES
    assert follower.lost
    move(store, "a")
    assert len(follower.new_moves()) == 1
    assert not follower.lost
