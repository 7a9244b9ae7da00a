"""fsck finds each kind of damage that an attack planted: one case a kind."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from casfs.backend.protocols import Staged
from casfs.digest import Digest
from casfs.maintenance import fsck
from casfs.store.nodes.node import encode
from casfs.store.store import Store
from tests.support.helpers import LARGE, set_head
from tests.support.maintenance import put_checkpoint, reopened, sql
from tests.support.new_store import init_store
from tests.support.thread_example import make_thread

ID = "01JD0000000000000000000000"


def object_of(store: Store) -> Path:
    hash = Digest.of(LARGE).hash
    return store.root / "objects" / hash[:2] / hash[2:]


def replaced(make: Callable[[Path], object]) -> Callable[[Store], None]:
    """Puts something in place of an object."""

    def plant(store: Store) -> None:
        path = object_of(store)
        path.rename(path.parent.parent.parent / "moved")
        make(path)

    return plant


def rewritten(change: Callable[[bytes], bytes]) -> Callable[[Store], None]:
    def plant(store: Store) -> None:
        path = object_of(store)
        path.chmod(0o644)
        path.write_bytes(change(path.read_bytes()))
        path.chmod(0o444)

    return plant


def row(statement: str) -> Callable[[Store], None]:
    return lambda store: sql(store, statement) and None


def null(store: Store) -> None:
    """A NULL that the table's own definition does not allow."""
    with closing(sqlite3.connect(store.root / "store.db")) as db, db:
        db.execute("PRAGMA writable_schema=1")
        db.execute("UPDATE sqlite_master SET sql = replace(sql, 'NOT NULL', '') WHERE name='heads'")
    sql(store, f"UPDATE heads SET hash = NULL WHERE name = 'threads/{ID}'")


def directory(**item: Any) -> Callable[[Store], None]:
    """Plants a directory node with a file that no put would take."""

    def plant(store: Store) -> None:
        blob = {"hash": Digest.of(LARGE).hash, "size_bytes": len(LARGE)}
        file = {"name": "f", "digest": blob, "is_executable": False, **item}
        type = store.registry.head("directory").hash
        data = encode(type, {"files": [file], "directories": [], "symlinks": []})
        store.backend.publish([Staged(Digest.of(data), data, type=type)])

    return plant


def other_root(store: Store) -> None:
    name, head = next(store.heads.list("checkpoints/"))
    root = store.put_node("directory", {"files": [], "directories": [], "symlinks": []}).hash
    set_head(store, name, head.hash, **{**head.record, "root": root})


SIZE = {"hash": Digest.of(LARGE).hash, "size_bytes": 3000}
HEAD = f"UPDATE heads SET %s WHERE name = 'threads/{ID}'"
PLANTS: dict[str, tuple[Callable[[Store], None], str]] = {
    "a row's hash is NULL": (null, "does not decode"),
    "a row's hash is text": (row(HEAD % "hash = 'text'"), "does not decode"),
    "a row's hash is a number": (row(HEAD % "hash = 7"), "does not decode"),
    "a record is not JSON": (row(HEAD % "record = 'x'"), "does not decode"),
    "a thread's record is bad": (row(HEAD % "record = '{}'"), "its record is damaged"),
    "a checkpoint's record is not its node's": (other_root, "another root than its node"),
    "an object is a fifo": (replaced(os.mkfifo), "not a regular file"),
    "an object is a directory": (replaced(Path.mkdir), "not a regular file"),
    "an object is a link": (
        replaced(lambda path: path.symlink_to(path.parent.parent.parent / "moved")),
        "not a regular file",
    ),
    "an object is short": (rewritten(lambda data: data[:1000]), "does not hash"),
    "an object is flipped": (rewritten(lambda data: b"\1" + data[1:]), "does not hash"),
    "an object's mode is wrong": (lambda store: object_of(store).chmod(0o644), "its mode is 644"),
    "an object is another's": (lambda store: os.chown(object_of(store), 12345, -1), "user 12345"),
    "size_bytes lies": (directory(digest=SIZE), "size_bytes is 3000"),
    "unix_mode is no mode": (directory(unix_mode=1 << 32), "permission bits"),
    "nanos are a second": (directory(mtime={"seconds": 1, "nanos": 10**9}), "nanos"),
}


@pytest.mark.parametrize("kind", PLANTS)
def test_it_is_found(tmp_path: Path, kind: str) -> None:
    plant, message = PLANTS[kind]
    if kind == "an object is another's" and os.geteuid() != 0:
        pytest.skip("needs root")
    with init_store(tmp_path / "store") as store:
        put_checkpoint(store, {"large": LARGE})
        make_thread(store, ID).end()
        assert not fsck.check(store).faults
        plant(store)
    with reopened(store) as other:
        found = [fault.message for fault in fsck.check(other, quarantine=False).faults]
    assert any(message in line for line in found), found
