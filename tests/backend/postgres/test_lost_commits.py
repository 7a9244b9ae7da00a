"""A publication whose answer is lost: it is neither reported as a conflict nor applied twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from casfs.backend.derived import newest_move
from casfs.backend.postgres.backend import PostgresBackend
from casfs.backend.postgres.schema import GUARD
from casfs.backend.protocols import Head, Publication
from casfs.errors import Conflict
from tests.contracts.contract import create, get, put, stage, swap
from tests.support.links import Link
from tests.support.postgres_server import PostgresServer
from tests.support.s3_servers import S3Server
from tests.support.shared_stores import make_backend

LARGE = bytes(range(256)) * 100  # goes to object storage
Results = list[set[str] | BaseException]


@pytest.fixture
def link(postgres: PostgresServer) -> Iterator[Link]:
    with Link(postgres.host, postgres.port) as made:
        yield made


@pytest.fixture
def far(
    link: Link, backend: PostgresBackend, postgres: PostgresServer, tmp_path: Path
) -> Iterator[PostgresBackend]:
    """A backend that reaches the database of `backend` by the link."""
    settings = backend.settings
    url = postgres.url(settings.url.rpartition("/")[2], link.port)
    s3 = S3Server("the same", settings.endpoint or "")
    made = make_backend(tmp_path / "far", url, s3, settings.objects)
    yield made
    made.close()


@contextmanager
def held(backend: PostgresBackend) -> Iterator[psycopg.Connection]:
    """Publications wait in the server until the transaction ends."""
    with psycopg.connect(backend.settings.url) as db:
        db.execute("SELECT pg_advisory_xact_lock(%s)", [GUARD])
        yield db


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def waiting(backend: PostgresBackend) -> list[int]:
    """The server's processes of publications that wait."""
    query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
    return [pid for (pid,) in backend.pool.run(f"{query} AND wait_event_type = 'Lock'")]


class Publishing:
    """A group that is published in a thread."""

    def __init__(self, backend: PostgresBackend, group: list[Publication]) -> None:
        self._results: Results = []
        self._thread = threading.Thread(target=self._run, args=(backend, group))
        self._thread.start()

    def _run(self, backend: PostgresBackend, group: list[Publication]) -> None:
        self._results = backend.publish_group(group)

    def results(self) -> Results:
        self._thread.join(60)
        return self._results


def lose_the_answer(
    backend: PostgresBackend, far: PostgresBackend, link: Link, group: list[Publication]
) -> Results:
    """Publishes; the connection breaks after the commit, before the answer."""
    before = newest_move(backend.heads)
    with held(backend) as db:
        publishing = Publishing(far, group)
        wait_for(lambda: waiting(backend))
        link.cut()
        db.commit()
        wait_for(lambda: newest_move(backend.heads) > before)
    link.reset()
    link.heal()
    return publishing.results()


def test_a_committed_group_is_no_conflict(
    backend: PostgresBackend, far: PostgresBackend, link: Link
) -> None:
    one, two = put(backend, b"1"), put(backend, b"2")
    heads = [create(backend, name, one) for name in ("moved", "deleted")]
    group = [
        Publication([stage(far, b"new")], [swap("moved", heads[0], Head(two))]),
        Publication([], [swap("deleted", heads[1], None)]),
        Publication([], [swap("made", None, Head(one))]),
        Publication([stage(far, LARGE)]),
    ]
    results = lose_the_answer(backend, far, link, group)
    assert all(isinstance(one, set) for one in results)
    moves = [(move.name, move.hash) for move in backend.heads.moves(2)]
    assert moves == [("moved", two), ("deleted", None), ("made", one)]
    assert backend.blobs.get(stage(far, LARGE).digest.hash).data == LARGE


def test_a_committed_move_that_was_undone_is_not_applied_again(
    backend: PostgresBackend, far: PostgresBackend, link: Link
) -> None:
    one, two = put(backend, b"1"), put(backend, b"2")
    head = create(backend, "name", one)
    with held(backend) as db:
        publishing = Publishing(far, [Publication([], [swap("name", head, Head(two))])])
        wait_for(lambda: waiting(backend))
        link.cut()
        db.commit()
        wait_for(lambda: get(backend, "name") == Head(two))
    backend.publish([], [swap("name", Head(two), head)])
    link.reset()
    link.heal()
    assert publishing.results() == [set()]
    assert get(backend, "name") == head
    assert [move.hash for move in backend.heads.moves()] == [one, two, one]


def test_a_large_blob_alone_is_published_again(
    backend: PostgresBackend, far: PostgresBackend, link: Link
) -> None:
    staged = stage(far, LARGE)
    with held(backend) as db:
        publishing = Publishing(far, [Publication([staged])])
        wait_for(lambda: waiting(backend))
        link.cut()
        db.commit()
        wait_for(lambda: backend.blobs.info([staged.digest.hash]))
    link.reset()
    link.heal()
    assert all(isinstance(one, set) for one in publishing.results())
    assert backend.pool.run("SELECT count(*) FROM casfs.packs") == [(1,)]
    assert backend.pool.run("SELECT count(*) FROM casfs.strays") == [(0,)]


def test_a_transaction_that_still_runs_is_waited_for(
    backend: PostgresBackend, far: PostgresBackend, link: Link
) -> None:
    one = put(backend, b"1")
    with held(backend) as db:
        publishing = Publishing(far, [Publication([], [swap("name", None, Head(one))])])
        wait_for(lambda: waiting(backend))
        link.reset()  # the server does not see it before it answers
        wait_for(lambda: len(waiting(backend)) == 2)
        db.commit()
    assert publishing.results() == [set()]
    assert [(move.name, move.hash) for move in backend.heads.moves()] == [("name", one)]


def test_what_was_not_committed_is_published_once(
    backend: PostgresBackend, far: PostgresBackend
) -> None:
    one = put(backend, b"1")
    group = [
        Publication([stage(far, LARGE)], [swap("name", None, Head(one))]),
        Publication([], [swap("other", None, Head(one))]),
    ]
    with held(backend) as db:
        publishing = Publishing(far, group)
        wait_for(lambda: waiting(backend))
        first = waiting(backend)
        db.execute("SELECT pg_terminate_backend(%s)", first)
        wait_for(lambda: {*waiting(backend)} - {*first})
        db.commit()
    assert publishing.results() == [set(), set()]
    assert [move.name for move in backend.heads.moves()] == ["name", "other"]


@pytest.mark.parametrize("deletes", [False, True])
def test_an_equal_move_of_another_writer_is_a_conflict(
    backend: PostgresBackend, far: PostgresBackend, deletes: bool
) -> None:
    """The heads are as the lost publication would have made them, but its blobs are not stored."""
    one = put(backend, b"1")
    head = create(backend, "name", one) if deletes else None
    move = swap("name", head, None if deletes else Head(one))
    staged = stage(far, b"its own")
    with held(backend) as db:
        publishing = Publishing(far, [Publication([staged], [move])])
        wait_for(lambda: waiting(backend))
        if deletes:
            backend.pool.run("DELETE FROM casfs.heads")
        else:
            row = "INSERT INTO casfs.heads VALUES ('name', %s, '{}')"
            backend.pool.run(row, [bytes.fromhex(one)])
        db.execute("SELECT pg_terminate_backend(%s)", waiting(backend))
        db.commit()
    (result,) = publishing.results()
    assert isinstance(result, Conflict)
    assert not backend.blobs.info([staged.digest.hash])
