"""gc of a shared store: what it deletes, what it must not, and who may run it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from casfs.backend.postgres import gc as shared_gc
from casfs.backend.postgres.backend import RETRIES, PostgresBackend
from casfs.backend.postgres.gc import SharedMarkSweep
from casfs.backend.postgres.schema import GUARD
from casfs.backend.protocols import Head, HeadName, Swap
from casfs.digest import Digest, NodeHash
from casfs.errors import Conflict, NotFound, Unreachable
from casfs.maintenance import gc
from casfs.store import graph
from casfs.store.store import Store
from tests.support.postgres_server import PostgresServer
from tests.support.s3_servers import S3Server
from tests.support.shared_stores import join, make_store

PACKED = 20_000  # bytes of a blob that is put into a pack


@pytest.fixture
def store(tmp_path: Path, database_url: str, s3: S3Server) -> Iterator[Store]:
    with make_store(tmp_path / "a", database_url, s3) as opened:
        yield opened


@pytest.fixture
def other(store: Store, tmp_path: Path, database_url: str) -> Iterator[Store]:
    """The same store from another machine."""
    with join(tmp_path / "b", database_url) as opened:
        yield opened


@pytest.fixture(autouse=True)
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_gc, "PACK_GRACE_S", 0)


def backend(store: Store) -> PostgresBackend:
    assert isinstance(store.backend, PostgresBackend)
    return store.backend


def collect(store: Store, **options: bool) -> gc.Result:
    """As with a grace of 0, some time later."""
    age(store)
    result = gc.collect(store, grace=0, **options)
    age(store)
    gc.collect(store, grace=500, **options)  # the strays that the first has made
    return result


def age(store: Store) -> None:
    backend(store).pool.run("UPDATE casfs.blobs SET touched = touched - 1000")
    backend(store).pool.run("UPDATE casfs.strays SET since = since - interval '1000 s'")


def hold(store: Store, name: str, *blobs: str) -> str:
    """A head, with a node that refers to blobs."""
    with store.batch() as new:
        node = new.put_node("content", {"text": name, "artifacts": list(blobs)})
        new.swap(HeadName(name), None, Head(node.hash))
    return node.hash


def drop(store: Store, name: str) -> None:
    head = store.heads.get(HeadName(name))
    assert head is not None
    store.backend.publish([], [Swap(HeadName(name), head, None)])


def objects(store: Store) -> set[str]:
    return {key for key, _ in backend(store)._storage().list("packs/")}


def rows(store: Store, table: str) -> list[tuple[object, ...]]:
    return backend(store).pool.run(f"SELECT * FROM casfs.{table}")


def test_deletes_what_no_head_reaches_and_its_objects(store: Store) -> None:
    kept, gone = store.put(b"k" * PACKED).hash, store.put(b"g" * PACKED).hash
    hold(store, "held/1", kept, store.put(b"row").hash)
    lost = hold(store, "held/2", gone)
    drop(store, "held/2")
    assert len(objects(store)) == 2
    would = collect(store, dry_run=True)
    assert would.freed.blobs == 2
    assert store.blobs.info([gone, lost])
    assert collect(store).freed == would.freed
    assert not store.blobs.info([gone, lost])
    assert store.get(kept) == b"k" * PACKED
    assert len(objects(store)) == len(rows(store, "packs")) == 1
    assert not rows(store, "strays")
    assert not rows(store, "marks")
    assert collect(store).freed.blobs == 0


def test_objects_stay_for_their_grace(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_gc, "PACK_GRACE_S", 3600)
    store.put(b"g" * PACKED)
    assert collect(store).freed.blobs == 1
    assert len(rows(store, "strays")) == len(objects(store)) == 1
    backend(store).pool.run("UPDATE casfs.strays SET since = since - interval '2 h'")
    gc.collect(store, grace=20_000)
    assert len(objects(store)) == 1
    gc.collect(store, grace=3600)
    assert not rows(store, "strays")
    assert not objects(store)


def test_what_is_young_stays(store: Store) -> None:
    hash = store.put(b"young").hash
    gc.collect(store, grace=3600)
    assert store.get(hash) == b"young"


# -- one run at a time -------------------------------------------------------------------------


def test_a_second_gc_is_told_where_the_first_runs(store: Store, other: Store) -> None:
    with backend(store).collection(), pytest.raises(Conflict, match=f"on .*:{store.root}; wait"):
        backend(other).collection()
    with backend(other).collection():
        pass


def test_a_dead_gc_is_taken_over_and_does_no_harm(
    store: Store, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = store.put(b"gone").hash
    age(store)
    dead = backend(store).collection()
    backend(store).pool.run("UPDATE casfs.collecting SET expires = now() - interval '1 s'")
    with backend(other).collection() as second:
        for action in (
            lambda: list(dead.sweep(1 << 40, lambda _: None, dry_run=False)),
            dead.reset,
        ):
            with pytest.raises(Conflict):
                action()
        dead.mark([gone])  # counts for the dead run only
        assert store.blobs.info([gone])
        dead.__exit__()
        assert rows(store, "collecting")[0][2], "it has ended the other one's run"
        swept = [hash for hash, _ in second.sweep(1 << 40, lambda _: None, dry_run=False)]
        assert gone in swept


def test_a_mark_whose_answer_is_lost_is_made_again(store: Store) -> None:
    node = hold(store, "held/1")
    with backend(store).collection() as run:
        assert isinstance(run, SharedMarkSweep)
        assert run.mark([node]) == [node]
        assert run.mark([node]) == []
        run._batch -= 1  # as the same batch again
        run._batch -= 1
        assert run.mark([node]) == [node]


def test_nothing_is_deleted_after_a_crash_of_the_server(
    store: Store, postgres: PostgresServer
) -> None:
    """The table of the marks is empty then."""
    kept = hold(store, "held/1", store.put(b"kept").hash)
    age(store)
    with backend(store).collection() as run:
        run.mark(list(graph.walk(store, [kept])))
        postgres.kill()
        postgres.start()
        with pytest.raises(Conflict, match="restarted"):
            list(run.sweep(1 << 40, lambda _: None, dry_run=False))
    assert list(graph.walk(store, [kept]))
    collect(store)


# -- gc and writers ----------------------------------------------------------------------------


class Racing:
    """Runs `action` while gc is between marking and deleting."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, action: object) -> None:
        real, ran = SharedMarkSweep._delete, []

        def delete(*args: object) -> object:
            if not ran:
                ran.append(True)
                action()  # type: ignore[operator]
            return real(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(SharedMarkSweep, "_delete", delete)


def test_what_a_writer_takes_up_during_the_run_stays(
    store: Store, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = store.put(b"b" * PACKED).hash
    node = hold(store, "held/1", blob)
    drop(store, "held/1")
    other.get(node)  # it is in the cache of that machine

    def revive() -> None:
        other.backend.publish([], [Swap(HeadName("held/2"), None, Head(NodeHash(node)))])

    Racing(monkeypatch, revive)
    age(store)
    gc.collect(store, grace=0)
    with join(Path(f"{store.root}-new"), backend(store).settings.url) as fresh:
        assert set(graph.walk(fresh, [node])) > {node, blob}
        assert fresh.get(blob) == b"b" * PACKED


def test_a_new_node_keeps_what_it_refers_to(
    store: Store, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = store.put(b"b" * PACKED).hash
    Racing(monkeypatch, lambda: hold(other, "held/1", blob))
    collect(store)
    assert store.get(blob)


def test_a_publication_during_a_run_waits_only_for_a_deletion(store: Store, other: Store) -> None:
    with backend(store).collection():
        assert other.put(b"at once").size_bytes == 7


def test_gc_waits_for_a_publication_in_flight(
    store: Store, other: Store, database_url: str
) -> None:
    with psycopg.connect(database_url) as db:
        db.execute("SELECT pg_advisory_xact_lock_shared(%s)", [GUARD])
        began = threading.Event()

        def begin() -> None:
            with backend(store).collection():
                began.set()

        thread = threading.Thread(target=begin)
        thread.start()
        assert not began.wait(0.5)
        db.rollback()
        assert began.wait(10)
        thread.join()


def test_what_was_collected_is_not_relied_on(store: Store, other: Store) -> None:
    """The local cache of a writer has it still."""
    hash = store.put(b"r" * 100).hash
    other.get(hash)
    collect(store)
    assert other.get(hash)
    assert not other.blobs.info([hash])
    with pytest.raises(NotFound):
        other.backend.publish([], (), [hash])
    assert other.put(b"r" * 100).hash == hash
    assert store.blobs.info([hash])


def test_an_upload_that_was_collected_is_made_again(
    store: Store, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploads, content = backend(other).uploads, b"u" * PACKED
    real, tries = uploads.place, []

    def place(*arguments: Any) -> object:
        placed = real(*arguments)
        tries.append(placed)
        if len(tries) == 1:
            collect(store)
        return placed

    monkeypatch.setattr(uploads, "place", place)
    hash = other.put(content).hash
    assert len(tries) == 2
    assert len(objects(store)) == len(rows(store, "packs")) == 1
    with join(Path(f"{store.root}-new"), backend(store).settings.url) as fresh:
        assert fresh.get(hash) == content


def test_an_upload_that_is_always_collected_is_given_up(
    store: Store, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploads = backend(other).uploads
    real, tries = uploads.place, []

    def place(*arguments: Any) -> object:
        tries.append(real(*arguments))
        collect(store)
        return tries[-1]

    monkeypatch.setattr(uploads, "place", place)
    with pytest.raises(Conflict, match="longer than the grace period; try again"):
        other.put(b"u" * PACKED)
    assert len(tries) == 1 + RETRIES


def test_a_blob_that_was_found_stored_and_collected_is_uploaded(
    store: Store, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = b"s" * PACKED
    store.put(content)
    staged = backend(other).blobs.stage_bytes(Digest.of(content), content)
    uploads = backend(other).uploads
    real, tries = uploads.place, []

    def place(*arguments: Any) -> object:
        placed = real(*arguments)
        tries.append(placed)
        if len(tries) == 1:
            collect(store)
        return placed

    monkeypatch.setattr(uploads, "place", place)
    other.backend.publish([staged])
    assert len(tries) == 2
    with join(Path(f"{store.root}-new"), backend(store).settings.url) as fresh:
        assert fresh.get(staged.digest.hash) == content


def test_a_doomed_object_is_never_published(
    store: Store, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gc died between the deletion of the object and that of its row."""
    uploads = backend(other).uploads
    real, tries = uploads.place, []

    def place(*arguments: Any) -> object:
        placed = real(*arguments)
        tries.append(placed)
        if len(tries) == 1:
            backend(store).pool.run("UPDATE casfs.strays SET since = '-infinity'")
        return placed

    monkeypatch.setattr(uploads, "place", place)
    other.put(b"d" * PACKED)
    assert len(tries) == 2
    collect(store)
    assert not rows(store, "strays")
    assert not objects(store)


def test_gc_without_a_database_says_so(store: Store, postgres: PostgresServer) -> None:
    backend(store).pool.patience_s = 0.1
    postgres.stop("immediate")
    with pytest.raises(Unreachable):
        gc.collect(store)
