"""Reverse references: equal to a search over all nodes, kept up to date, rebuilt and pruned."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from casfs.backend.protocols import META
from casfs.maintenance import fsck, gc
from casfs.store import graph, referrers
from casfs.store.referrers import FILE, Referrers
from casfs.store.store import Store
from tests.support.cli import Cli, lines
from tests.support.new_store import init_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with init_store(tmp_path / "store") as made:
        yield made


def content(store: Store, text: str, *refs: str) -> str:
    return store.put_node("content", {"text": text, "artifacts": list(refs)}).hash


def searched(store: Store, hash: str) -> list[str]:
    """The referrers of a blob by reading every node."""
    nodes = (node for _, node, info in store.blobs.iterate() if info.type not in (None, META))
    return sorted(node for node in nodes if hash in graph.refs(store, node))


def test_a_node_and_a_blob_have_their_referrers(store: Store) -> None:
    blob = store.put(b"a file").hash
    a, b = content(store, "a", blob), content(store, "b", blob)
    c = content(store, "c", a, b)
    with Referrers(store) as index:
        assert index.of(blob) == sorted([a, b])
        assert index.of(a) == [c]
        assert index.of(c) == []
        assert list(index.walk_up(blob)) == [*sorted([a, b]), c]


def test_what_is_put_before_a_question_is_in_its_answer(store: Store) -> None:
    blob = store.put(b"a file").hash
    with Referrers(store) as index, Referrers(store) as other:
        assert index.of(blob) == []
        a = content(store, "a", blob)
        assert index.of(blob) == [a]
        b = content(store, "b", blob)
        assert other.of(blob) == index.of(blob) == sorted([a, b])


def test_a_schema_is_referred_to_by_its_nodes(store: Store) -> None:
    type = store.registry.current("content")
    a = content(store, "a")
    with Referrers(store) as index:
        assert a in index.of(type)
        assert index.of(type) == searched(store, type)


def test_plain_bytes_that_become_a_node_keep_their_referrers(store: Store) -> None:
    with Store.memory() as other:
        child = content(other, "child")
        data = other.get(child)
    store.put(data)
    with Referrers(store) as index:
        parent = content(store, "parent", child)
        assert index.of(child) == [parent]
        assert content(store, "child") == child  # now as a node
        assert index.of(child) == [parent]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(0, 30), max_size=4), max_size=30), st.integers(0, 30))
def test_equal_to_a_search(shape: list[list[int]], split: int) -> None:
    with Store.memory() as store, Referrers(store) as index:
        hashes = [store.put(b"root").hash]
        for number, below in enumerate(shape):
            refs = dict.fromkeys(hashes[place % len(hashes)] for place in below)
            hashes.append(content(store, str(number), *refs))
            if number == split:
                index.catch_up()
        for hash in hashes:
            assert index.of(hash) == searched(store, hash)


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(referrers, "READ_BLOBS", 3)
    monkeypatch.setattr(referrers, "BATCH_EDGES", 4)


def put_graph(store: Store) -> list[str]:
    hashes = [store.put(b"root").hash]
    for number in range(60):
        refs = dict.fromkeys(hashes[number * factor % len(hashes)] for factor in (1, 5, 11))
        hashes.append(content(store, str(number), *refs))
    return hashes


@pytest.mark.usefixtures("small_batches")
def test_many_batches_are_equal_to_a_search(store: Store) -> None:
    hashes = put_graph(store)
    with Referrers(store) as index:
        assert index.catch_up() >= 60
        assert index.catch_up() == 0
        for hash in hashes:
            assert index.of(hash) == searched(store, hash)


@pytest.mark.usefixtures("small_batches")
def test_several_index_at_once(store: Store) -> None:
    hashes = put_graph(store)
    with Referrers(store) as index, Referrers(store) as other, ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(index.catch_up), pool.submit(other.catch_up)]:
            done.result()
        for hash in hashes:
            assert index.of(hash) == other.of(hash) == searched(store, hash)


@pytest.mark.usefixtures("small_batches")
def test_catching_up_stops_when_it_is_not_wanted(store: Store) -> None:
    hashes = put_graph(store)
    answers = iter([True] * 8)
    with Referrers(store) as index:
        assert 0 < index.catch_up(lambda: next(answers, False)) < 60
        assert index.catch_up(lambda: False) == 0
        assert index.of(hashes[0]) == searched(store, hashes[0])


def collect(store: Store) -> None:
    """gc, of what was put this second too."""
    with sqlite3.connect((store.root or Path()) / "store.db") as db:
        db.execute("UPDATE blobs SET touched = 0")
    db.close()
    gc.collect(store, grace=0)


def test_gc_removes_what_is_gone(store: Store) -> None:
    blob = store.put(b"a file").hash
    a = content(store, "a", blob)
    with Referrers(store) as index:
        assert index.of(blob) == [a]
    collect(store)
    for _ in range(2):  # and put again, it is as it was
        with Referrers(store) as index:
            assert index.of(blob) == []
            assert store.put(b"a file").hash == blob
            assert index.of(blob) == []
            assert index.of(content(store, "a", blob)) == []
            assert index.of(blob) == [a]
        collect(store)
    with sqlite3.connect(store.root / FILE) as db:  # type: ignore[operator]
        (known,) = db.execute("SELECT count(*) FROM numbers WHERE hash = ?", (bytes.fromhex(a),))
        assert known == (0,)
    db.close()


def numbers(store: Store) -> list[int]:
    with sqlite3.connect((store.root or Path()) / FILE) as db:
        found = [number for (number,) in db.execute("SELECT id FROM numbers ORDER BY id")]
    db.close()
    return found


def test_a_number_is_not_given_twice(store: Store) -> None:
    """Else an edge that is about to be pruned would become one of another node."""
    with Referrers(store) as index:
        index.catch_up()
        kept = numbers(store)
        content(store, "a", store.put(b"a file").hash)
        index.catch_up()
        removed = set(numbers(store)) - set(kept)
        collect(store)
        assert numbers(store) == kept
        content(store, "b", store.put(b"another").hash)
        index.catch_up()
        assert min(set(numbers(store)) - set(kept)) > max(removed)


@pytest.mark.parametrize("damage", ["gone", "rubbish", "wrong"])
def test_a_damaged_index_is_rebuilt(store: Store, damage: str) -> None:
    blob = store.put(b"a file").hash
    a = content(store, "a", blob)
    with Referrers(store) as index:
        assert index.of(blob) == [a]
    path = (store.root or Path()) / FILE
    if damage == "gone":
        path.unlink()
    elif damage == "rubbish":
        path.write_bytes(b"rubbish" * 1000)
    else:
        with sqlite3.connect(path) as db:
            db.execute("DELETE FROM edges")
        db.close()
        fsck.check(store)
    with Referrers(store) as index:
        assert index.of(blob) == [a]


def test_the_command_line(store: Store, cli: Cli) -> None:
    blob = store.put(b"a file").hash
    a = content(store, "a", blob)
    b = content(store, "b", a)
    refs = ("--store", str(store.root), "refs", "--reverse")
    assert lines(cli, *refs, blob) == [a]
    assert lines(cli, *refs, "--recursive", blob) == [a, b]
    assert lines(cli, *refs, "--recursive", "--type", "checkpoint", blob) == []
    lines(cli, "--store", str(store.root), "refs", "--recursive", blob, code=2)
