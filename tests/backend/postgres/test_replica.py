"""The replica of heads and journal in a machine's directory."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from casfs.backend.postgres import replica
from casfs.backend.postgres.backend import PostgresBackend
from casfs.backend.postgres.create import create as join
from casfs.backend.protocols import Head, HeadName, Move
from casfs.config import FILE
from casfs.errors import Unreachable
from casfs.mount.registry import wait_until
from tests.contracts.contract import create, put, swap
from tests.support.postgres_server import PostgresServer
from tests.support.s3_servers import S3Server
from tests.support.shared_stores import make_backend

Open = Callable[[str], PostgresBackend]


@pytest.fixture
def writer(tmp_path: Path, database_url: str, s3: S3Server) -> Iterator[PostgresBackend]:
    made = make_backend(tmp_path / "writer", database_url, s3)
    yield made
    made.close()


@pytest.fixture
def open_machine(writer: PostgresBackend, tmp_path: Path) -> Iterator[Open]:
    """Opens the directory of a machine, made at the first time."""
    opened: list[PostgresBackend] = []

    def open_one(name: str) -> PostgresBackend:
        root = tmp_path / name
        if not root.exists():
            root.mkdir()
            join(root, writer.settings)
            (root / FILE).write_text((writer.root / FILE).read_text())
        opened.append(PostgresBackend.open(root))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


def state(backend: PostgresBackend) -> tuple[dict[HeadName, Head], list[Move]]:
    moves: list[Move] = []
    while found := backend.heads.moves(moves[-1].seq if moves else 0):
        moves += found
    return dict(backend.heads.list()), moves


def caught_up(found: PostgresBackend, writer: PostgresBackend) -> None:
    wait_until(lambda: state(found) == state(writer), "the replica is behind")
    assert [*found.heads.list(reverse=True)] == [*found.heads.list()][::-1]


def move_some(backend: PostgresBackend, count: int, seed: int) -> None:
    source, hashes = random.Random(seed), [put(backend, b"%d" % n) for n in range(5)]
    for number in range(count):
        name = HeadName(f"{source.choice('abü')}/{source.randrange(9)}")
        old = backend.heads.get(name)
        new = Head(source.choice(hashes), {"at": number, "seed": seed})
        backend.publish([], [swap(name, old, None if old and source.random() < 0.3 else new)])


def test_it_is_the_same(writer: PostgresBackend, open_machine: Open) -> None:
    move_some(writer, 40, 1)
    machine = open_machine("machine")
    before = state(machine)
    machine.follow()
    assert state(machine) == before == state(writer)
    for seed in range(2, 6):
        version = machine.version()
        move_some(writer, 30, seed)
        caught_up(machine, writer)
        assert machine.version() != version


def test_it_goes_on_where_it_was(writer: PostgresBackend, open_machine: Open) -> None:
    for seed in range(3):
        move_some(writer, 20, seed)
        machine = open_machine("machine")
        machine.follow()
        assert state(machine) == state(writer)
        machine.close()


@pytest.mark.parametrize("rows", [1, 3, 5000])
def test_all_heads_are_copied_where_moves_are_lost(
    writer: PostgresBackend, open_machine: Open, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(replica, "COPY_ROWS", rows)
    monkeypatch.setattr(
        replica, "NEXT", f"{replica.HEADS} WHERE name > %s ORDER BY name LIMIT {rows}"
    )
    move_some(writer, 30, 1)
    machine = open_machine("machine")
    machine.follow()
    machine.close()
    move_some(writer, 60, 2)
    for name, head in [*writer.heads.list("a/")]:
        writer.publish([], [swap(name, head, None)])
    move_some(writer, 5, 3)
    writer.pool.run("SELECT casfs.prune_moves(2)")
    for name in ("machine", "another"):
        machine = open_machine(name)
        machine.follow()
        assert state(machine) == state(writer)
        assert len(machine.heads.moves()) == 2


def test_a_restored_database(writer: PostgresBackend, open_machine: Open) -> None:
    move_some(writer, 30, 1)
    machine = open_machine("machine")
    machine.follow()
    machine.close()
    writer.pool.run("DELETE FROM casfs.moves WHERE id > (SELECT min(id) + 9 FROM casfs.moves)")
    writer.pool.run("DELETE FROM casfs.heads WHERE name >= 'a' AND name < 'b'")
    machine = open_machine("machine")
    machine.follow()
    fresh = open_machine("writer")
    caught_up(machine, fresh)
    move_some(fresh, 10, 2)
    caught_up(machine, fresh)


def test_an_open_transaction_holds_it_back(writer: PostgresBackend, open_machine: Open) -> None:
    """A move is replicated in the order in which it is readable, never skipped."""
    one = put(writer, b"1")
    machine = open_machine("machine")
    machine.follow()
    with writer.pool.transaction() as db:
        db.execute("SELECT pg_current_xact_id()")
        create(writer, "held", one)
        assert machine.heads.get(HeadName("held")) is None
    caught_up(machine, writer)
    assert machine.heads.get(HeadName("held")) is not None


def test_one_follows_and_another_takes_over(writer: PostgresBackend, open_machine: Open) -> None:
    first, second = open_machine("machine"), open_machine("machine")
    first.follow()
    second.follow()
    move_some(writer, 10, 1)
    caught_up(first, writer)
    caught_up(second, writer)
    first.close()
    move_some(writer, 10, 2)
    caught_up(second, writer)


def test_names_of_this_machine(writer: PostgresBackend, open_machine: Open) -> None:
    machine, name = open_machine("machine"), HeadName("workspaces/one")
    head = create(machine, name, put(machine, b"1"))
    machine.follow()
    writer.follow()
    caught_up(machine, open_machine("machine"))
    assert machine.heads.get(name) == head
    assert [*machine.heads.list("workspaces/")] == [(name, head)]
    assert [move.name for move in machine.heads.moves()] == [name]
    assert writer.heads.get(name) is None
    assert [*writer.heads.list("workspaces/")] == []


def test_without_the_database(
    writer: PostgresBackend, open_machine: Open, postgres: PostgresServer
) -> None:
    move_some(writer, 10, 1)
    machine = open_machine("machine")
    machine.follow()
    expected = state(writer)
    machine.close()
    new = open_machine("new")
    postgres.stop()
    machine = open_machine("machine")
    machine.follow()
    assert state(machine) == expected
    with pytest.raises(Unreachable):
        new.follow()
    postgres.start()
    move_some(writer, 10, 2)
    caught_up(machine, writer)
