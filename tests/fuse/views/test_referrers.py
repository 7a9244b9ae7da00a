"""The referrers of a node in the mount, as plain vnodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from casfs.fuse.views.root import root
from casfs.fuse.views.stats import Stats
from casfs.fuse.views.store_reader import StoreReader
from casfs.fuse.views.vnode import Directory
from casfs.store import referrers
from casfs.store.referrers import FILE
from casfs.store.store import Store
from tests.support.fuse import at, missing, resolve, target


def content(store: Store, text: str, *refs: str) -> str:
    return store.put_node("content", {"text": text, "artifacts": list(refs)}).hash


def directory(store: Store, hash: str, top: Directory | None = None) -> Directory:
    found = at(store, f"nodes/{hash}/referrers", top)
    assert isinstance(found, Directory)
    return found


def listed(directory: Directory) -> list[str]:
    directory.prepare()
    return [name.decode() for name, _ in directory.entries()]


def test_referrers_are_links_to_nodes(store: Store) -> None:
    child = content(store, "child")
    parent, other = content(store, "parent", child), content(store, "other")
    assert listed(directory(store, child)) == [parent]
    assert target(store, f"nodes/{child}/referrers/{parent}") == f"../../{parent}"
    assert resolve(store, f"nodes/{child}/referrers/{parent}").digest == parent
    assert listed(directory(store, parent)) == []
    blob = store.put(b"bytes").hash
    for name in (other, child, blob, "0" * 64, "no hash"):
        assert missing(store, f"nodes/{child}/referrers/{name}")


def test_only_nodes_by_hash_have_referrers(store: Store) -> None:
    child = content(store, "child")
    parent = content(store, "parent", child)
    assert missing(store, f"nodes/{parent}/artifacts/0000/referrers")


def test_a_listing_and_a_lookup_of_a_name_agree(store: Store) -> None:
    child = content(store, "child")
    content(store, "parent", child)
    found = directory(store, child)
    found.prepare()
    for name, link in found.entries():
        same = found.lookup(name)
        assert same is not None
        assert (same.key, same.attr()) == (link.key, link.attr())


def test_a_schema_is_referred_to_by_its_nodes(store: Store) -> None:
    document = {"$id": "odd", "type": "object", "properties": {
        "of": {"type": "string", "format": "cas_ref"}}}  # fmt: skip
    with store.batch() as batch:
        schema = batch.put_schema(document).hash
    alone = store.put_node("odd", {}).hash
    twice = store.put_node("odd", {"of": schema}).hash  # by its type and by a field
    by_field = content(store, "by field", schema)
    assert listed(directory(store, schema)) == [by_field, alone, twice]
    assert not missing(store, f"nodes/{schema}/referrers/{alone}")


def test_a_listing_is_read_in_pages(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(referrers, "PAGE_PARENTS", 7)
    child = content(store, "child")
    parents = [content(store, str(number), child) for number in range(30)]
    found = directory(store, child)
    whole = listed(found)
    assert sorted(whole) == sorted(parents)
    assert [name.decode() for name, _ in found.entries_after(15)] == whole[15:]
    reading = iter(found.entries())
    first = [next(reading)[0].decode() for _ in range(10)]
    late = content(store, "late", child)
    found.prepare()
    assert [*first, *(name.decode() for name, _ in reading)] == [*whole, late]


def test_the_mtime_changes_with_the_store(disk_store: Store) -> None:
    child = content(disk_store, "child")
    found = directory(disk_store, child)
    before = found.attr().mtime_ns
    assert found.attr().mtime_ns == before
    content(disk_store, "parent", child)
    assert found.attr().mtime_ns != before


def test_a_deleted_index_is_made_again(disk_store: Store) -> None:
    """As fsck deletes it while a mount has it open."""
    child = content(disk_store, "child")
    parent = content(disk_store, "parent", child)
    top = root(StoreReader(disk_store), Stats())
    assert listed(directory(disk_store, child, top)) == [parent]
    referrers.remove(disk_store)
    other = content(disk_store, "other", child)
    assert sorted(listed(directory(disk_store, child, top))) == sorted([parent, other])
    assert ((disk_store.root or Path()) / FILE).exists()
