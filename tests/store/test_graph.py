from __future__ import annotations

from pathlib import Path

import pytest

from casfs.errors import CorruptBlob, NotFound
from casfs.store.graph import refs, walk
from casfs.store.store import Store
from tests.support.helpers import ABSENT, put_tree, put_unchecked
from tests.support.thread_example import make_thread


def content(store: Store, text: str, *artifacts: str) -> str:
    return store.put_node("content", {"text": text, "artifacts": list(artifacts)}).hash


def types(store: Store, *names: str) -> list[str]:
    return [store.registry.head(name).hash for name in names]


def test_a_blob_refers_to_nothing(store: Store) -> None:
    blob = store.put(b'{"payload":{},"type":"schema"}').hash
    assert refs(store, blob) == []
    assert list(walk(store, [blob])) == [blob]


def test_refs_are_distinct_and_the_type_comes_last(store: Store) -> None:
    a, b = store.put(b"a").hash, store.put(b"b").hash
    node = content(store, "x", b, a, b)
    assert refs(store, node) == [b, a, *types(store, "content")]


def test_the_meta_schema_ends_every_walk(store: Store) -> None:
    (meta,) = types(store, "schema")
    assert refs(store, meta) == []
    assert refs(store, *types(store, "content")) == [meta]
    assert list(walk(store, [meta])) == [meta]


def test_each_hash_comes_once_and_a_node_before_its_refs(store: Store) -> None:
    blob = store.put(b"shared").hash
    left, right = content(store, "left", blob), content(store, "right", blob)
    top = content(store, "top", left, right, left)
    found = list(walk(store, [top]))
    assert found[:3] == [top, left, blob]
    assert sorted(found) == sorted({top, left, right, blob, *types(store, "content", "schema")})


def test_roots_may_repeat_and_overlap(store: Store) -> None:
    blob = store.put(b"blob").hash
    node = content(store, "x", blob)
    found = list(walk(store, [node, blob, node, blob]))
    assert sorted(found) == sorted({node, blob, *types(store, "content", "schema")})
    assert list(walk(store, [])) == []


def test_a_tree_is_walked_through_its_directories(store: Store) -> None:
    root = put_tree(store, {"a": {"b": {"c": b"deep"}}, "f": b"top"})
    inside = [put_tree(store, {"b": {"c": b"deep"}}), put_tree(store, {"c": b"deep"})]
    files = [store.put(b"deep").hash, store.put(b"top").hash]
    expected = {root, *inside, *files, *types(store, "directory", "schema")}
    assert set(walk(store, [root])) == expected


def test_everything_of_a_thread_is_reached_from_its_head(store: Store) -> None:
    thread = make_thread(store)
    artifact = store.put(b"artifact").hash
    thread.step("planner", "one", artifacts=[artifact])
    thread.step("planner", "two")
    found = set(walk(store, [thread.end()]))
    assert {*thread.steps, thread.start, thread.workflow, thread.tree, artifact} <= found


@pytest.mark.parametrize("depth", [5000])
def test_a_long_chain_needs_no_deep_stack(store: Store, depth: int) -> None:
    with store.batch() as batch:
        hash = batch.put(b"end").hash
        for n in range(depth):
            hash = batch.put_node("content", {"text": str(n), "artifacts": [hash]}).hash
    assert len(list(walk(store, [hash]))) == depth + 3


def test_a_hole_is_not_found(store: Store) -> None:
    broken = put_unchecked(store, "content", {"text": "", "artifacts": [ABSENT]})
    for root in (ABSENT, broken):
        with pytest.raises(NotFound, match=ABSENT):
            list(walk(store, [root]))


def test_a_corrupt_node_is_told(tmp_path: Path, disk_store: Store) -> None:
    import sqlite3

    node = content(disk_store, "x")
    with sqlite3.connect(tmp_path / "store" / "store.db") as db:
        db.execute("UPDATE blobs SET data = x'00' WHERE hash = ?", (bytes.fromhex(node),))
    db.close()
    with pytest.raises(CorruptBlob, match=node):
        list(walk(disk_store, [node]))
