"""An answer of the database that is lost: what was done is neither done twice nor called a failure.
A cut that ends within the patience is not noticed; a longer one is one clear error."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from casfs.backend.postgres.backend import PostgresBackend
from casfs.backend.protocols import Head, HeadName, Publication, Staged, Swap
from casfs.digest import NodeHash
from casfs.errors import Conflict, Unreachable
from tests.contracts.contract import put, swap
from tests.support.links import Link
from tests.support.postgres_server import PostgresServer
from tests.support.s3_servers import S3Server
from tests.support.shared_stores import make_backend

NAME = HeadName("threads/one")


@pytest.fixture
def link(postgres: PostgresServer) -> Iterator[Link]:
    with Link(postgres.host, postgres.port) as opened:
        yield opened


@pytest.fixture
def backend(
    postgres: PostgresServer, link: Link, database_url: str, s3: S3Server, tmp_path: Path
) -> Iterator[PostgresBackend]:
    """A shared backend behind a link, with a connection that is in use already."""
    url = postgres.url(database_url.rpartition("/")[2], link.port)
    made = make_backend(tmp_path / "machine", url, s3)
    made.publish([], [swap("warm", None, Head(NodeHash(put(made, b"warm"))))])
    yield made
    made.close()


def staged(backend: PostgresBackend, size: int = 100) -> Staged:
    return backend.blobs.stage(io.BytesIO(os.urandom(size)))


def moved(backend: PostgresBackend, name: str = NAME) -> int:
    return sum(move.name == name for move in backend.heads.moves())


def step(backend: PostgresBackend, name: str = NAME, old: Head | None = None) -> Publication:
    """A new head and the blob that it needs."""
    blob = staged(backend)
    new = Head(NodeHash(blob.digest.hash), {"step": blob.digest.hash})
    return Publication([blob], [Swap(HeadName(name), old, new)], ())


def test_a_publication_that_was_done_is_done_once(backend: PostgresBackend, link: Link) -> None:
    one = step(backend)
    link.lose()
    assert backend.publish(*one) == set()
    assert backend.heads.get(NAME) == one.swaps[0].new
    assert moved(backend) == 1


def test_a_deletion_that_was_done(backend: PostgresBackend, link: Link) -> None:
    one = step(backend)
    backend.publish(*one)
    link.lose()
    backend.publish([], [Swap(NAME, one.swaps[0].new, None)])
    assert backend.heads.get(NAME) is None
    assert moved(backend) == 2


def test_blobs_alone(backend: PostgresBackend, link: Link) -> None:
    blob = staged(backend)
    link.lose()
    backend.publish([blob])
    assert backend.blobs.info([blob.digest.hash])


@pytest.mark.parametrize("answer", [1, 2, 3])
def test_blobs_in_packs(answer: int, backend: PostgresBackend, link: Link) -> None:
    """A pack's name is used once: here for the question, its announcement, its publication."""
    blob = staged(backend, 2 << 20)
    link.lose(answer)
    backend.publish([blob])
    with backend.blobs.open(blob.digest.hash) as content:
        assert len(content.read()) == 2 << 20
    ((strays,),) = backend.pool.run("SELECT count(*) FROM casfs.strays")
    assert strays == 0


def test_a_group_of_which_one_is_refused(backend: PostgresBackend, link: Link) -> None:
    """Those that were done are not called conflicts for the sake of the one that was refused."""
    good, bad, last = (
        step(backend, "a"),
        step(backend, "b", old=Head(NodeHash("0" * 64))),
        step(backend, "c"),
    )
    link.lose()
    first, second, third = backend.publish_group([good, bad, last])
    assert (first, third) == (set(), set())
    assert isinstance(second, Conflict)
    assert (moved(backend, "a"), moved(backend, "b"), moved(backend, "c")) == (1, 0, 1)


def test_another_writer_came_between(
    backend: PostgresBackend, link: Link, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is lost, and the head has moved on before one asks again."""
    one = step(backend)
    backend.publish(*one)
    two = step(backend, old=one.swaps[0].new)
    link.lose()
    original = backend.pool.connect

    def after_another() -> object:
        monkeypatch.setattr(backend.pool, "connect", original)
        three = step(backend, old=two.swaps[0].new)
        backend.publish(*three)
        return original()

    monkeypatch.setattr(backend.pool, "connect", after_another)
    assert backend.publish(*two) == set()
    assert moved(backend) == 3


def test_a_cut_that_ends_in_time(backend: PostgresBackend, link: Link) -> None:
    one, results = step(backend), []
    link.cut()
    writer = threading.Thread(target=lambda: results.append(backend.publish(*one)))
    writer.start()
    writer.join(2)
    assert writer.is_alive()
    link.heal()
    writer.join(30)
    assert results == [set()]
    assert moved(backend) == 1


def test_a_cut_that_does_not_end(backend: PostgresBackend, link: Link) -> None:
    """What is local is read, writing is an error; then all goes on."""
    known = put(backend, b"known")
    assert backend.blobs.get(known).data == b"known"
    one = step(backend)
    backend.pool.patience_s = 1.0
    link.cut()
    with pytest.raises(Unreachable, match="database"):
        backend.publish(*one)
    assert backend.blobs.get(known).data == b"known"
    link.heal()
    assert moved(backend) in (0, 1)
    backend.publish(*step(backend, "other"))


def test_the_database_is_killed_and_comes_back(
    backend: PostgresBackend, postgres: PostgresServer
) -> None:
    before = step(backend)
    backend.publish(*before)
    postgres.kill()
    after = step(backend, old=before.swaps[0].new)
    writer = threading.Thread(target=backend.publish, args=after)
    writer.start()
    writer.join(1)
    postgres.start()
    writer.join()
    assert backend.heads.get(NAME) == after.swaps[0].new
    assert moved(backend) == 2
