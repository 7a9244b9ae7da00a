"""A local ref: kept and checked by the store that recorded it, taken along only where asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from casfs import graph
from casfs.digest import hash_bytes
from casfs.errors import Invalid
from casfs.maintenance import archive, fsck, gc
from casfs.referrers import Referrers
from casfs.store import Store
from tests.support.archives import members
from tests.support.damage import Victim
from tests.support.helpers import ABSENT, blobs, put_tree
from tests.support.maintenance import age, export, put_checkpoint, reopened

SECRET = b"TOKEN=hunter2hunter2"
PRIVATE = hash_bytes(SECRET)
WORK: dict[str, Any] = {"main.py": b"print()"}
LOCAL: dict[str, Any] = {**WORK, ".env": SECRET}


def local_of(store: Store, head: str) -> str:
    found = store.heads.get(head)  # type: ignore[arg-type]  # a name
    assert found is not None
    local: str = store.node(found.hash).payload["local"]
    return local


def payload(store: Store, **more: Any) -> dict[str, Any]:
    stats = {"files": 1, "bytes": 1, "added": 1, "modified": 0, "deleted": 0}
    record = {"previous": None, "name": "work", "createdAt": 1, "message": "", "stats": stats}
    return {**record, "root": put_tree(store, WORK), "changed_files": [], **more}


def test_a_node_made_here_needs_its_target(store: Store) -> None:
    with pytest.raises(Invalid, match="not in this store"):
        store.put_node("checkpoint", payload(store, local=ABSENT))


def test_a_node_made_elsewhere_may_lack_it_but_not_have_a_wrong_one(store: Store) -> None:
    with Store.memory() as other:
        local = put_tree(other, LOCAL)
        good = other.get(other.put_node("checkpoint", payload(other, local=local)).hash)
    bad = good.replace(local.encode(), store.put(b"no directory").hash.encode())
    put_tree(store, WORK)
    with pytest.raises(Invalid, match="must be a directory"), store.batch() as batch:
        batch.put_encoded(bad)
    with store.batch() as batch:
        node = batch.put_encoded(good)
    assert local not in blobs(store)
    assert fsck.check(store).faults == []
    age(store)
    assert node.hash not in graph.refs(store, node.hash, with_local=True)


def test_gc_keeps_what_is_local(disk_store: Store) -> None:
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


def test_a_walk_follows_it_where_asked(store: Store) -> None:
    head = put_checkpoint(store, WORK, local=LOCAL)
    root = store.heads.get(head).hash  # type: ignore[union-attr,arg-type]  # was made
    for walk in (graph.walk, graph.post_order):
        assert PRIVATE not in set(walk(store, [root]))
        assert PRIVATE in set(walk(store, [root], with_local=True))
    assert local_of(store, head) not in graph.refs(store, root)


def test_a_target_that_is_the_tree_as_well_is_followed(store: Store) -> None:
    head = put_checkpoint(store, WORK, local=WORK)
    root = store.heads.get(head).hash  # type: ignore[union-attr,arg-type]  # was made
    assert local_of(store, head) in graph.refs(store, root)


def test_an_archive_lacks_it(source: Store, target: Store, tmp_path: Path) -> None:
    head = put_checkpoint(source, WORK, "secret", local=LOCAL)
    path = tmp_path / "archive.tar"
    export(source, path, "secret")
    assert SECRET not in path.read_bytes()
    archive.load(target, path)
    assert PRIVATE not in blobs(target)
    assert fsck.check(target).faults == []
    age(target)
    gc.collect(target)
    again = tmp_path / "again.tar"
    for with_local in (False, True):
        export(target, again, "secret", with_local=with_local)
        assert members(again) == members(path)
    assert local_of(target, head) == local_of(source, head)


def test_an_archive_takes_it_along_where_asked(
    source: Store, target: Store, tmp_path: Path
) -> None:
    put_checkpoint(source, WORK, "secret", local=LOCAL)
    path = tmp_path / "archive.tar"
    export(source, path, "secret", with_local=True)
    archive.load(target, path)
    age(target)
    gc.collect(target)
    assert target.get(PRIVATE) == SECRET


def test_fsck_checks_what_is_here(victim: Victim) -> None:
    store = victim.store
    head = put_checkpoint(store, WORK, "secret", local={**LOCAL, "big": b"x" * (1 << 20)})
    victim.lose(hash_bytes(b"x" * (1 << 20)))
    with reopened(store) as again:
        [fault] = fsck.check(again).faults
    assert (fault.kind, fault.takes) == ("missing", [head])
