"""The conformance suite for the journal of head moves, and for what is derived from it."""

from __future__ import annotations

import io
import threading

import pytest

from casfs.backend.capabilities import UsageTracking
from casfs.backend.derived import last_use, newest_move, note_use, version_of
from casfs.backend.protocols import (
    JOURNAL_MIN_MOVES,
    MAX_RECORD_BYTES,
    MOVES_PER_READ,
    Head,
    HeadName,
    Move,
)
from casfs.errors import Conflict, Invalid, NotFound
from casfs.system.clock import now_ms
from tests.contracts.contract import ABSENT, Factory, checks, create, get, put, swap


def the_version_tells_of_other_writers(make_backend: Factory) -> None:
    backend = make_backend()
    one = put(backend, b"1")
    version = version_of(backend)()
    assert version_of(backend)() == version
    thread = threading.Thread(target=create, args=(backend, "name", one))
    thread.start()
    thread.join()
    moved = version_of(backend)()
    assert moved != version
    assert version_of(backend)() == moved


def a_use_is_remembered_until_its_head_goes(make_backend: Factory) -> None:
    backend = make_backend()
    if not isinstance(backend.heads, UsageTracking):
        pytest.skip("this backend does not track usage")
    one = put(backend, b"1")
    head = create(backend, "name", one)
    assert last_use(backend.heads, HeadName("name")) == 0
    before = now_ms()
    note_use(backend.heads, [HeadName("name"), HeadName("nowhere")])
    assert before <= last_use(backend.heads, HeadName("name")) <= now_ms()
    assert last_use(backend.heads, HeadName("nowhere")) == 0
    assert get(backend, "name") == head
    backend.publish([], [swap("name", head, None)])
    create(backend, "name", one)
    assert last_use(backend.heads, HeadName("name")) == 0


def every_move_is_in_the_journal(make_backend: Factory) -> None:
    backend = make_backend()
    one, two = put(backend, b"1"), put(backend, b"2")
    assert (newest_move(backend.heads), list(backend.heads.moves())) == (0, [])
    before = now_ms()
    first = create(backend, "a/ü", one)
    second = Head(one, {"only": "the record"})
    third = Head(two)
    backend.publish([], [swap("a/ü", first, second), swap("b", None, third)])
    backend.publish([], [swap("a/ü", second, None)])
    found = backend.heads.moves()
    expected = [(1, "a/ü", one), (2, "a/ü", one), (3, "b", two), (4, "a/ü", None)]
    assert [(move.seq, move.name, move.hash) for move in found] == expected
    assert all(isinstance(move, Move) for move in found)
    times = [before, *(move.at_ms for move in found), now_ms()]
    assert times == sorted(times)
    assert newest_move(backend.heads) == 4
    assert list(backend.heads.moves(2)) == list(found[2:])
    assert list(backend.heads.moves(-1)) == list(found[-1:])
    assert list(backend.heads.moves(-3)) == list(found[-3:])
    assert list(backend.heads.moves(4)) == list(backend.heads.moves(99)) == []


def what_did_not_move_is_not_in_the_journal(make_backend: Factory) -> None:
    backend = make_backend()
    one = put(backend, b"1")
    create(backend, "a", one)
    staged = backend.blobs.stage(io.BytesIO(b"2"))
    for swaps, require in (
        ([swap("b", None, Head(one)), swap("a", None, Head(one))], []),
        ([swap("b", None, Head(ABSENT))], []),
        ([swap("b", None, Head(one))], [ABSENT]),
        ([swap("b", None, Head(one, {"x": "x" * MAX_RECORD_BYTES}))], []),
    ):
        with pytest.raises((Conflict, NotFound, Invalid)):
            backend.publish([], swaps, require=require)
    backend.publish([staged], [])
    note_use(backend.heads, [HeadName("a")])
    assert [(move.seq, move.name) for move in backend.heads.moves()] == [(1, "a")]
    create(backend, "b", one)
    assert newest_move(backend.heads) == 2, "without a gap"


def the_journal_is_read_in_batches_and_drops_old_moves(make_backend: Factory) -> None:
    backend = make_backend()
    one = put(backend, b"1")
    names = [f"{n:05}" for n in range(JOURNAL_MIN_MOVES + 3 * MOVES_PER_READ)]
    backend.publish([], [swap(name, None, Head(one)) for name in names])
    assert newest_move(backend.heads) == len(names)
    seen: list[Move] = []
    while batch := backend.heads.moves(seen[-1].seq if seen else 0):
        assert len(batch) <= MOVES_PER_READ
        seen += batch
    assert JOURNAL_MIN_MOVES <= len(seen) < len(names), "the last ones"
    assert [move.seq for move in seen] == list(range(seen[0].seq, len(names) + 1))
    assert [move.name for move in seen] == names[-len(seen) :]
    assert backend.heads.moves(-2) == seen[-2:]
    assert backend.heads.moves(5)[0] == seen[0], "what begins too late says that some are lost"


CONTRACT = checks(globals())
