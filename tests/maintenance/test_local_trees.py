"""A local tree: kept and checked by the store that recorded it, taken along only where asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from casfs.backend.protocols import Swap
from casfs.digest import hash_bytes
from casfs.maintenance import archive, fsck, gc
from casfs.store import graph, local_trees
from casfs.store.referrers import Referrers
from casfs.store.store import Store
from tests.support.archives import members
from tests.support.damage import Victim
from tests.support.helpers import blobs
from tests.support.maintenance import age, export, put_checkpoint, reopened

SECRET = b"TOKEN=hunter2hunter2"
PRIVATE = hash_bytes(SECRET)
WORK: dict[str, Any] = {"main.py": b"print()"}
LOCAL: dict[str, Any] = {**WORK, ".env": SECRET}


def node_of(store: Store, head: str) -> str:
    kept = store.heads.get(head)  # type: ignore[arg-type]  # a name
    assert kept is not None
    return kept.hash


def local_of(store: Store, head: str) -> str:
    local = local_trees.get(store, node_of(store, head))
    assert local is not None
    return local.root


def test_gc_keeps_it_with_its_node(disk_store: Store) -> None:
    head = put_checkpoint(disk_store, WORK, local=LOCAL)
    age(disk_store)
    gc.collect(disk_store)
    assert disk_store.get(PRIVATE) == SECRET
    path = gc.why(disk_store, PRIVATE)
    assert path is not None
    assert path[0] == head
    assert path[2] == local_of(disk_store, head)
    with Referrers(disk_store) as index:
        assert index.of(PRIVATE) == [local_of(disk_store, head)]


def test_gc_deletes_it_with_its_node(disk_store: Store) -> None:
    head = put_checkpoint(disk_store, WORK, local=LOCAL)
    kept = put_checkpoint(disk_store, WORK, "kept", local={**WORK, "other": b"kept"})
    name = local_trees.head_name(node_of(disk_store, head))
    old = disk_store.heads.get(head)  # type: ignore[arg-type]  # a name
    disk_store.backend.publish([], [Swap(head, old, None)])  # type: ignore[arg-type]  # a name
    age(disk_store)
    gc.collect(disk_store, dry_run=True)
    assert disk_store.heads.get(name) is not None
    gc.collect(disk_store)
    assert PRIVATE not in blobs(disk_store)
    assert disk_store.heads.get(name) is None
    assert fsck.check(disk_store).faults == []
    assert local_of(disk_store, kept)


def test_a_walk_follows_it_where_asked(store: Store) -> None:
    root = node_of(store, put_checkpoint(store, WORK, local=LOCAL))
    for walk in (graph.walk, graph.post_order):
        assert PRIVATE not in set(walk(store, [root]))
        assert PRIVATE in set(walk(store, [root], with_local=True))


def test_an_archive_lacks_it(source: Store, target: Store, tmp_path: Path) -> None:
    head = put_checkpoint(source, WORK, "secret", local=LOCAL)
    path = tmp_path / "archive.tar"
    export(source, path, "secret")
    data = path.read_bytes()
    assert SECRET not in data
    assert local_of(source, head).encode() not in data
    archive.load(target, path)
    assert PRIVATE not in blobs(target)
    assert fsck.check(target).faults == []
    age(target)
    gc.collect(target)
    again = tmp_path / "again.tar"
    for with_local in (False, True):
        export(target, again, "secret", with_local=with_local)
        assert members(again) == members(path)


def test_an_archive_takes_it_along_where_asked(
    source: Store, target: Store, tmp_path: Path
) -> None:
    head = put_checkpoint(source, WORK, "secret", local=LOCAL)
    path = tmp_path / "archive.tar"
    export(source, path, "secret", with_local=True)
    archive.load(target, path, with_local=True)
    assert target.blobs.local_among([PRIVATE, local_of(target, head)])
    age(target)
    gc.collect(target)
    assert target.get(PRIVATE) == SECRET
    assert local_of(target, head) == local_of(source, head)


def test_an_archive_adds_none_to_a_node_that_is_here(
    source: Store, target: Store, tmp_path: Path
) -> None:
    """Else a stranger's archive says what a restore of one's own checkpoint writes."""
    head = put_checkpoint(source, WORK, "secret", local=LOCAL)
    assert put_checkpoint(target, WORK, "secret") == head
    path = tmp_path / "archive.tar"
    export(source, path, "secret", with_local=True)
    archive.load(target, path, with_local=True)
    assert local_trees.get(target, node_of(target, head)) is None


def test_fsck_checks_it(victim: Victim) -> None:
    store = victim.store
    head = put_checkpoint(store, WORK, "secret", local={**LOCAL, "big": b"x" * (1 << 20)})
    victim.lose(hash_bytes(b"x" * (1 << 20)))
    with reopened(store) as again:
        [fault] = fsck.check(again).faults
    assert (fault.kind, fault.takes) == ("missing", [head])
