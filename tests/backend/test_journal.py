"""The journal of head moves, read as it grows."""

from __future__ import annotations

from casfs.backend.derived import newest_move
from casfs.backend.journal import JournalReader
from casfs.backend.protocols import JOURNAL_MIN_MOVES
from casfs.store import Store
from tests.support.helpers import move


def test_a_follower_gives_each_move_once(store: Store) -> None:
    follower = JournalReader(store.backend, newest_move(store.heads))
    assert follower.new_moves() == []
    move(store, "a", 3)
    assert [found.name for found in follower.new_moves()] == ["a"] * 3
    assert follower.new_moves() == []
    store.put(b"no head moves")
    assert follower.new_moves() == []
    move(store, "b", 2500)
    assert len(follower.new_moves()) == 2500
    assert not follower.lost


def test_a_follower_knows_when_it_was_too_slow(store: Store) -> None:
    follower = JournalReader(store.backend, newest_move(store.heads))
    move(store, "a", JOURNAL_MIN_MOVES + 2000)
    assert len(follower.new_moves()) >= JOURNAL_MIN_MOVES
    assert follower.lost
    move(store, "a")
    assert len(follower.new_moves()) == 1
    assert not follower.lost
