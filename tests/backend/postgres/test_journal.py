"""The journal of a shared store: its order is that of the moves, whatever the order of commits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from casfs.backend.derived import newest_move
from casfs.backend.postgres import create as making
from casfs.backend.postgres.backend import PostgresBackend
from casfs.backend.protocols import JOURNAL_MIN_MOVES, Head, Move, Swap
from casfs.errors import Conflict
from tests.contracts.contract import create, get, put, stage, swap
from tests.support.postgres_server import PostgresServer

INSERT = "INSERT INTO casfs.moves (name, hash, at) VALUES (%s, NULL, 0)"
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


@contextmanager
def transaction(backend: PostgresBackend) -> Iterator[psycopg.Connection]:
    """A transaction that has begun to write: it has its xid."""
    with psycopg.connect(backend.settings.url) as db:
        db.execute("SELECT pg_current_xact_id()")
        yield db


def read_all(backend: PostgresBackend, after: int = 0) -> list[Move]:
    found: list[Move] = []
    while batch := backend.heads.moves(found[-1].seq if found else after):
        found += batch
    return found


def numbers(moves: list[Move]) -> list[int]:
    return [one.seq for one in moves]


def test_a_move_behind_an_open_transaction_is_read_once_that_has_ended(
    backend: PostgresBackend, other: PostgresBackend
) -> None:
    one = put(backend, b"1")
    create(backend, "before", one)
    with transaction(backend) as early:
        create(backend, "behind", one)
        seen = read_all(other)
        assert [move.name for move in seen] == ["before"]
        early.execute(INSERT, ["early"])
        assert read_all(other, 1) == []
        early.commit()
    seen += read_all(other, 1)
    assert [(move.seq, move.name) for move in seen] == [(1, "before"), (2, "early"), (3, "behind")]
    assert read_all(backend) == seen


def test_a_later_transaction_does_not_hide_earlier_moves(backend: PostgresBackend) -> None:
    one = put(backend, b"1")
    create(backend, "first", one)
    with transaction(backend) as late:
        late.execute(INSERT, ["late"])
        assert [move.name for move in read_all(backend)] == ["first"]
        assert backend.heads.version() == backend.heads.version()
        late.rollback()
    create(backend, "second", one)
    assert [(one.seq, one.name) for one in read_all(backend)] == [(1, "first"), (2, "second")]


def test_an_open_transaction_of_another_database_delays_moves_and_loses_none(
    backend: PostgresBackend, postgres: PostgresServer
) -> None:
    one = put(backend, b"1")
    with psycopg.connect(postgres.url()) as foreign:
        foreign.execute("SELECT pg_current_xact_id()")
        create(backend, "name", one)
        assert read_all(backend) == []
    assert [move.name for move in read_all(backend)] == ["name"]


def test_moves_of_a_head_stand_in_the_order_in_which_they_happened(
    backend: PostgresBackend, other: PostgresBackend
) -> None:
    """A publication that began early and waits, while a later one deletes the head it will make."""
    one = put(backend, b"1")
    head = create(backend, "name", one)
    with transaction(backend) as holder:  # makes `late` wait after it has got its xid
        holder.execute("INSERT INTO casfs.heads (name, hash, record) VALUES ('held', '', '{}')")
        group = [swap("held", None, Head(one)), swap("name", None, head)]
        blob = stage(backend, b"its row gives it an xid")
        late = threading.Thread(target=backend.publish, args=([blob], group))
        late.start()
        while holder.execute(WAITING).fetchone() == (0,):
            pass
        other.publish([], [swap("name", head, None)])
        holder.rollback()
    late.join()
    assert get(other, "name") == head
    moves = [move.hash for move in read_all(other) if move.name == "name"]
    assert moves == [one, None, one]


def test_concurrent_publishers_and_a_reader_that_follows(
    backend: PostgresBackend, other: PostgresBackend
) -> None:
    """Each head's moves are read in their true order, each once, with dense numbers."""
    hashes = [put(backend, b"%d" % n) for n in range(40)]
    order = {hash: number for number, hash in enumerate(hashes)}
    done = threading.Event()
    seen: list[Move] = []

    def follow() -> None:
        while True:
            ended = done.is_set()
            batch = other.heads.moves(seen[-1].seq if seen else 0)
            seen.extend(batch)
            if ended and not batch:
                return

    def write(writer: int) -> None:
        by = backend if writer % 2 else other
        for number, hash in enumerate(hashes):
            name, old = f"own{writer}", None if number == 0 else Head(hashes[number - 1])
            by.publish([], [swap(name, old, Head(hash))])
            while True:  # one that all move
                shared = get(by, "shared")
                at = 0 if shared is None else (order[shared.hash] + 1) % len(hashes)
                try:
                    by.publish([], [swap("shared", shared, Head(hashes[at]))])
                    break
                except Conflict:
                    continue

    reader = threading.Thread(target=follow)
    writers = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in [reader, *writers]:
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    reader.join()
    assert numbers(seen) == list(range(1, 8 * 2 * len(hashes) + 1))
    for writer in range(8):
        assert [one.hash for one in seen if one.name == f"own{writer}"] == hashes
    shared = [order[one.hash] for one in seen if one.name == "shared" and one.hash]
    assert shared == [number % len(hashes) for number in range(8 * len(hashes))]
    assert read_all(backend) == seen == read_all(other)


def test_numbers_stay_dense_while_the_journal_is_pruned(
    backend: PostgresBackend, other: PostgresBackend
) -> None:
    one, rounds, size = put(backend, b"1"), 4, JOURNAL_MIN_MOVES // 2
    done = threading.Event()
    seen: list[Move] = []

    def follow() -> None:
        while True:
            ended = done.is_set()
            batch = other.heads.moves(seen[-1].seq if seen else 0)
            seen.extend(batch)
            if ended and not batch:
                return

    reader = threading.Thread(target=follow)
    reader.start()
    for part in range(rounds):
        create_many(backend, [f"{part}/{number:05}" for number in range(size)], Head(one))
        backend.pool.run("SELECT casfs.prune_moves(%s)", [JOURNAL_MIN_MOVES])
    done.set()
    reader.join()
    total = rounds * size
    by_number = {move.seq: move.name for move in seen}
    assert numbers(seen) == sorted(by_number)
    assert all(
        name == f"{(seq - 1) // size}/{(seq - 1) % size:05}" for seq, name in by_number.items()
    )
    kept = read_all(backend)
    assert numbers(kept) == list(range(total - JOURNAL_MIN_MOVES + 1, total + 1))
    assert read_all(other, total - 5) == kept[-5:] == list(other.heads.moves(-5))
    assert newest_move(backend.heads) == newest_move(other.heads) == total


def create_many(backend: PostgresBackend, names: list[str], head: Head) -> None:
    backend.publish([], [swap(name, None, head) for name in names])


def test_two_prunings_at_once_count_each_move_once(backend: PostgresBackend) -> None:
    one = put(backend, b"1")
    create_many(backend, [f"{number:03}" for number in range(500)], Head(one))
    prunings = [
        threading.Thread(target=backend.pool.run, args=["SELECT casfs.prune_moves(%s)", [keep]])
        for keep in (400, 300, 200, 100, 150, 250, 350, 50)
    ]
    for thread in prunings:
        thread.start()
    for thread in prunings:
        thread.join()
    assert [(move.seq, move.name) for move in read_all(backend)] == [
        (number + 1, f"{number:03}") for number in range(500 - len(read_all(backend)), 500)
    ]


def test_a_place_that_was_pruned_is_no_place_any_more(
    backend: PostgresBackend, other: PostgresBackend
) -> None:
    one = put(backend, b"1")
    create_many(backend, [f"a{number}" for number in range(10)], Head(one))
    assert newest_move(other.heads) == 10  # `other` keeps this place
    create_many(backend, [f"b{number}" for number in range(10)], Head(one))
    backend.pool.run("SELECT casfs.prune_moves(3)")
    assert numbers(read_all(other, 10)) == numbers(read_all(other)) == [18, 19, 20]
    create(backend, "c", one)
    assert numbers(read_all(other, 19)) == [20, 21]
    assert newest_move(other.heads) == 21


def test_the_version_grows_with_own_moves_and_others(
    backend: PostgresBackend, other: PostgresBackend
) -> None:
    one = put(backend, b"1")
    versions = [backend.heads.version()]
    for number in range(20):
        create(backend if number % 2 else other, f"{number}", one)
        if number % 2:
            versions.append(backend.heads.version())
    assert versions == sorted(set(versions))
    with transaction(backend):
        versions.append(backend.heads.version())
        create(backend, "while the journal waits", one)
        assert backend.heads.version() > versions[-1]


def test_no_publication_listens_or_notifies(backend: PostgresBackend) -> None:
    functions = backend.pool.run(
        "SELECT prosrc FROM pg_proc WHERE pronamespace = 'casfs'::regnamespace"
    )
    assert len(functions) >= 3
    assert not any("notify" in source.lower() for (source,) in functions)


@pytest.mark.parametrize("count", [1, 3])
def test_a_publication_is_one_transaction_of_the_journal(
    backend: PostgresBackend, count: int
) -> None:
    one = put(backend, b"1")
    swaps = [Swap(name, None, Head(one)) for name in map(str, range(count))]  # type: ignore[arg-type]
    backend.publish([], swaps)
    assert backend.pool.run("SELECT count(DISTINCT xid), count(*) FROM casfs.moves") == [(1, count)]


def test_a_dump_in_another_server(backend: PostgresBackend) -> None:
    """Transaction ids of a new server are below those of the moves in the dump."""
    one = put(backend, b"1")
    head = create(backend, "name", one)
    create(backend, "other", one)
    backend.pool.run("UPDATE casfs.moves SET xid = (xid::text::bigint + 1000000)::text::xid8")
    making.create(backend.root, backend.settings)
    assert list(backend.heads.moves()) == []
    backend.publish([], [swap("name", head, None)])
    fresh = PostgresBackend.open(backend.root)
    try:
        assert [(move.seq, move.name) for move in fresh.heads.moves()] == [(3, "name")]
    finally:
        fresh.close()
