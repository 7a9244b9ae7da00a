"""Helpers of tests of the views: from paths to vnodes and their content."""

from __future__ import annotations

import json
from typing import Any

from casfs.fuse.views.root import root
from casfs.fuse.views.stats import Stats
from casfs.fuse.views.store_reader import StoreReader
from casfs.fuse.views.vnode import Directory, File, Link, Vnode
from casfs.store.store import Store
from tests.support.maintenance import sql


def at(store: Store, path: str, top: Directory | None = None) -> Vnode:
    vnode: Vnode | None = top or root(StoreReader(store), Stats())
    for name in path.split("/") if path else []:
        assert isinstance(vnode, Directory), path
        vnode = vnode.lookup(name.encode())
        assert vnode is not None, f"{name} of {path}"
    assert vnode is not None
    return vnode


def missing(store: Store, path: str) -> bool:
    parent, _, name = path.rpartition("/")
    vnode = at(store, parent)
    assert isinstance(vnode, Directory)
    return vnode.lookup(name.encode()) is None


def content(vnode: Vnode) -> bytes:
    assert isinstance(vnode, File)
    size = vnode.attr().size
    data = vnode.read(0, size + 100)
    assert len(data) == size, "the size in stat is true"
    assert vnode.read(1, 3) == data[1:4]
    assert vnode.read(size, 10) == b""
    return data


def read(store: Store, path: str) -> bytes:
    return content(at(store, path))


def load(store: Store, path: str) -> Any:
    data = read(store, path)
    assert data.endswith(b"\n")
    return json.loads(data)


def names(store: Store, path: str) -> list[str]:
    vnode = at(store, path)
    assert isinstance(vnode, Directory)
    return [name.decode() for name, _ in vnode.entries()]


def target(store: Store, path: str) -> str:
    vnode = at(store, path)
    assert isinstance(vnode, Link)
    assert vnode.attr().size == len(vnode.target)
    return vnode.target.decode()


def walk(vnode: Directory, path: str = "") -> list[tuple[str, Vnode]]:
    found: list[tuple[str, Vnode]] = []
    for name, child in vnode.entries():
        where = f"{path}/{name.decode('utf-8', 'replace')}"
        found.append((where, child))
        same = vnode.lookup(name)
        assert same is not None, where
        assert (same.key, same.attr()) == (child.key, child.attr()), "listing and lookup agree"
        if isinstance(child, Directory):
            found += walk(child, where)
    return found


def resolve(store: Store, path: str) -> Vnode:
    """Where the link at `path` leads, inside the mount."""
    parts = path.split("/")[:-1]
    for step in target(store, path).split("/"):
        if step == "..":
            parts.pop()
        else:
            parts.append(step)
    return at(store, "/".join(parts))


def damage(store: Store, hash: str, data: bytes | None) -> None:
    """Replaces a stored blob's bytes, behind the store's back; None removes it."""
    key = bytes.fromhex(hash)
    if data is None:
        sql(store, "DELETE FROM blobs WHERE hash = ?", key)
    else:
        sql(store, "UPDATE blobs SET data = ?, size = ? WHERE hash = ?", data, len(data), key)
