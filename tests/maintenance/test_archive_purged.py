"""Archives and purged content: it leaves with no archive, and comes back by none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from casfs.digest import hash_bytes
from casfs.errors import Corrupt
from casfs.maintenance import archive, fsck, gc, grep
from casfs.maintenance.needle import Needle
from casfs.maintenance.purge import purge, purge_all
from casfs.maintenance.redact import redact as redact_text
from casfs.store import tombstones
from casfs.store.store import Store
from casfs.store.tombstones import Tombstone
from tests.support.archives import ID, build, members, sealed
from tests.support.helpers import blobs
from tests.support.maintenance import age, content, ended, export, put_checkpoint

SECRET = b"TOKEN=hunter2hunter2"
HASH = hash_bytes(SECRET)
TREE: dict[str, Any] = {".env": SECRET, "main.py": b"print()"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "archive.tar"


def is_purged(store: Store, hash: str) -> bool:
    info = store.blobs.info([hash]).get(hash)
    return info is not None and info.purged and tombstones.get(store, hash) is not None


def redact(store: Store, hash: str, substitute: str) -> None:
    size = store.blobs.info([hash])[hash].size
    purge_all(store, [Tombstone(hash, size, 1, "", substitute)])


def test_the_rest_is_exported(disk_store: Store, target: Store, path: Path) -> None:
    name = put_checkpoint(disk_store, TREE, "secret")
    purge(disk_store, HASH, "leaked")
    assert export(disk_store, path, "secret").purged == [HASH]
    assert SECRET not in path.read_bytes()
    done = archive.load(target, path)
    assert (done.heads, done.purged, done.kept) == ([name], 1, [])
    assert is_purged(target, HASH)
    assert tombstones.get(target, HASH) == tombstones.get(disk_store, HASH)
    assert target.get(hash_bytes(b"print()")) == b"print()"
    assert fsck.check(target).faults == []
    assert archive.load(target, path).heads == []


def test_substitutes_come_along(disk_store: Store, target: Store, path: Path) -> None:
    store = disk_store
    thread = ended(store, "the word is hunter2")
    put_checkpoint(store, TREE, "secret")
    text = store.node(thread.steps[0]).payload["content"]
    step = store.node(thread.steps[0])
    first = store.put(b"hunter2 again").hash
    artifact = store.put(b"an artifact with hunter2").hash
    redact(store, text, content(store, "the word is <purged>", artifact))
    redact(store, HASH, first)
    redact(store, first, store.put(b"TOKEN=<purged>").hash)
    redact(store, artifact, store.put(b"an artifact").hash)
    done = export(store, path, ID, "secret")
    assert done.purged == []
    assert b"hunter2" not in path.read_bytes()
    assert archive.load(target, path).purged == 3
    assert target.get(HASH) == b"TOKEN=<purged>"
    assert target.get(artifact) == b"an artifact"
    assert target.node(step.hash).payload == step.payload
    assert target.node(text).payload["text"] == "the word is <purged>"
    assert fsck.check(target).faults == []
    age(target)
    gc.collect(target)
    assert target.get(HASH) == b"TOKEN=<purged>"


def test_a_head_may_lead_to_what_was_redacted(disk_store: Store, target: Store, path: Path) -> None:
    name = put_checkpoint(disk_store, TREE, "secret", message="hunter2")
    node = disk_store.heads.get(name)  # type: ignore[arg-type]  # a name
    assert node is not None
    payload = disk_store.node(node.hash).payload
    redact(
        disk_store, node.hash, disk_store.put_node("checkpoint", {**payload, "message": ""}).hash
    )
    export(disk_store, path, "secret")
    assert archive.load(target, path).heads == [name]
    assert target.node(node.hash).payload["message"] == ""


def test_what_is_here_stays(disk_store: Store, target: Store, path: Path) -> None:
    put_checkpoint(disk_store, TREE, "secret")
    purge(disk_store, HASH)
    export(disk_store, path, "secret")
    target.put(SECRET)
    done = archive.load(target, path)
    assert (done.purged, done.kept) == (0, [HASH])
    assert target.get(HASH) == SECRET


def test_what_was_purged_here_does_not_come_back(
    disk_store: Store, target: Store, path: Path
) -> None:
    put_checkpoint(disk_store, TREE, "secret")
    export(disk_store, path, "secret")
    target.put(SECRET)
    purge(target, HASH)
    assert archive.load(target, path).kept == []
    assert is_purged(target, HASH)
    assert fsck.check(target).faults == []


def test_an_archive_with_both_stores_none_of_it(
    disk_store: Store, target: Store, path: Path, tmp_path: Path
) -> None:
    put_checkpoint(disk_store, TREE, "secret")
    purge(disk_store, HASH)
    export(disk_store, path, "secret")
    first, *rest = members(path)
    forged = sealed(tmp_path / "forged.tar", [first, (f"blobs/{HASH}", SECRET), *rest])
    archive.load(target, forged)
    assert is_purged(target, HASH)
    assert SECRET not in b"".join(one.read_bytes() for one in target_files(target))


def target_files(store: Store) -> list[Path]:
    return [one for one in store.root.rglob("*") if one.is_file()]


def test_a_missing_substitute_is_an_error(disk_store: Store, target: Store, path: Path) -> None:
    put_checkpoint(disk_store, TREE, "secret")
    substitute = disk_store.put(b"TOKEN=<purged>").hash
    redact(disk_store, HASH, substitute)
    export(disk_store, path, "secret")
    before = blobs(target)
    sealed(path, [one for one in members(path) if one[0] != f"blobs/{substitute}"])
    with pytest.raises(Corrupt, match=r"which is not in this store|need it"):
        archive.load(target, path)
    assert blobs(target) == before


@pytest.mark.parametrize(
    "change",
    [
        (HASH.encode(), HASH[::-1].encode()),
        (b'"size":20', b'"size":-1'),
        (b'"why":""', b'"why":12'),
    ],
)
def test_a_damaged_tombstone_is_refused(
    disk_store: Store, target: Store, path: Path, change: tuple[bytes, bytes]
) -> None:
    put_checkpoint(disk_store, TREE, "secret")
    purge(disk_store, HASH)
    export(disk_store, path, "secret")
    (name, manifest), *rest = members(path)
    build(path, [(name, manifest.replace(*change, 1)), *rest])
    with pytest.raises(Corrupt):
        archive.load(target, path)
    assert tombstones.get(target, HASH) is None


@pytest.mark.parametrize("number", range(6))
def test_the_order_of_hashes_does_not_matter(
    disk_store: Store, target: Store, path: Path, number: int
) -> None:
    """The text is in a file and in the node that leads to it: either hash may be the first."""
    data = b"%d hunter2hunter2" % number
    name = put_checkpoint(disk_store, {"d": {"f": data}}, "secret", message="hunter2hunter2")
    needle = Needle("hunter2hunter2")
    redact_text(disk_store, needle, grep.search(disk_store, needle), "")
    assert b"hunter2" not in disk_store.get(hash_bytes(data))
    export(disk_store, path, "secret")
    assert b"hunter2" not in path.read_bytes()
    assert archive.load(target, path).heads == [name]
    assert target.get(hash_bytes(data)) == disk_store.get(hash_bytes(data))
    assert fsck.check(target).faults == []
