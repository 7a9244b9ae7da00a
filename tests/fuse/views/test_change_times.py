"""Times of change, taken from the journal of heads."""

from __future__ import annotations

import pytest

from casfs.backend.derived import newest_move
from casfs.backend.protocols import JOURNAL_MIN_MOVES
from casfs.fuse.views import change_times
from casfs.fuse.views.change_times import ChangeTime, ChangeTimes
from casfs.fuse.views.vnode import Y2000_NS
from casfs.store.store import Store
from tests.support.helpers import move

MS = 1_000_000


def test_two_moves_in_one_millisecond_have_two_times() -> None:
    assert ChangeTime(1, 5).mtime_ns != ChangeTime(2, 5).mtime_ns
    assert ChangeTime(1, 5).mtime_ns // MS == 5
    assert ChangeTime(MS + 1, 6).mtime_ns == 6 * MS + 1, "the number never reaches the milliseconds"


def test_only_what_is_below_a_prefix_matters_to_it(store: Store) -> None:
    known = ChangeTimes(store.backend)
    for name in ("threads/A", "checkpoints/ws/1", "checkpoints/other/1"):
        move(store, name)
    prefixes = ["threads/", "checkpoints/", "checkpoints/ws/", "checkpoints/other/", "workflows/"]
    before = [known.latest(prefix) for prefix in prefixes]
    move(store, "checkpoints/ws/2")
    after = [known.latest(prefix) for prefix in prefixes]
    assert [old != new for old, new in zip(before, after, strict=True)] == [
        False, True, True, False, False,
    ]  # fmt: skip
    assert known.latest("threads/", "checkpoints/") == after[1]
    assert known.head_seq("checkpoints/ws/2") == after[1].seq == newest_move(store.heads)
    assert known.head_seq("checkpoints/ws/9") == 0


def test_an_empty_journal_is_long_ago(disk_store: Store) -> None:
    known = ChangeTimes(disk_store.backend)
    assert known.latest("threads/").mtime_ns == Y2000_NS
    move(disk_store, "threads/A")
    assert known.latest("threads/").mtime_ns > Y2000_NS


def test_a_number_may_be_asked_for_as_it_was(store: Store) -> None:
    known = ChangeTimes(store.backend)
    known.latest("a/")
    move(store, "a/b")
    assert known.head_seq("a/b", update=False) == 0
    assert known.head_seq("a/b") == newest_move(store.heads)
    assert known.head_seq("a/b", update=False) == newest_move(store.heads)


def test_after_lost_moves_everything_has_another_time(store: Store) -> None:
    known = ChangeTimes(store.backend)
    move(store, "a/b")
    before = known.latest("a/")
    move(store, "z/z", JOURNAL_MIN_MOVES + 2000)
    lost = known.latest("a/")
    assert lost.seq > before.seq, "a/ may have moved among those"
    assert known.latest("a/") == lost
    assert known.head_seq("a/b") == 0


def test_memory_is_bounded_and_times_only_rise(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_times, "MAX_TRACKED_NAMES", 100)
    known = ChangeTimes(store.backend)
    move(store, "old/one")
    seen = [known.latest("old/")]
    for n in range(300):
        move(store, f"new/{n}")
        seen.append(known.latest("old/"))
        assert known.latest("new/").seq == newest_move(store.heads)
    assert seen == sorted(seen)
    assert len(set(seen)) < 20, "it rises now and then, not with every move"
    move(store, "old/one")
    assert known.latest("old/").seq == newest_move(store.heads) > seen[-1].seq
