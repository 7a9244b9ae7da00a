"""Plugins in the mount's model: `trees/plugins/<name>/<version>`."""

from __future__ import annotations

import os
from pathlib import Path

from casfs.fuse.inodes import inode_number
from casfs.fuse.views.root import root
from casfs.fuse.views.stats import Stats
from casfs.fuse.views.store_reader import StoreReader
from casfs.fuse.views.vnode import Directory, File, Vnode
from casfs.plugins import transfer
from casfs.store.store import Store
from tests.support.helpers import Program, put_tree, write_tree

ENV = {"PATH": os.defpath}


def at(top: Directory, path: str) -> Vnode | None:
    vnode: Vnode | None = top
    for name in path.split("/"):
        assert isinstance(vnode, Directory), path
        vnode = vnode.lookup(os.fsencode(name))
        if vnode is None:
            return None
    return vnode


def there(top: Directory, path: str) -> Directory:
    vnode = at(top, path)
    assert isinstance(vnode, Directory), path
    return vnode


def names(top: Directory, path: str) -> list[bytes]:
    return [name for name, _ in there(top, path).entries()]


def sync(store: Store, folder: Path, name: str, version: str, **more: bool) -> None:
    transfer.sync(store, name, version, str(folder), ENV, **more)


def test_plugins_are_plain_directories(store: Store, tmp_path: Path) -> None:
    reader = StoreReader(store)
    top = root(reader, Stats())
    assert names(top, "trees") == []
    assert at(top, "trees/plugins") is None
    folder = write_tree(tmp_path / "p", {"bin": {"run": Program(b"#!/bin/sh\n")}, "f": b"f\n"})
    sync(store, folder, "linter", "1.0")
    sync(store, folder, "linter", "1.1")
    sync(store, folder, "other", "1.0")

    assert names(top, "trees") == [b"plugins"]
    assert names(top, "trees/plugins") == [b"linter", b"other"]
    assert names(top, "trees/plugins/linter") == [b"1.0", b"1.1"]
    assert names(top, "trees/plugins/linter/1.0") == [b"bin", b"f"]
    for path in ("none", "linter/2.0", "linter/1.0/none", "linter/\udcff", "lint", "\udcff"):
        assert at(top, f"trees/plugins/{path}") is None
    found = at(top, "trees/plugins/linter/1.0/f")
    assert isinstance(found, File)
    assert found.read(0, 10) == b"f\n"
    run = at(top, "trees/plugins/linter/1.0/bin/run")
    assert run is not None
    assert run.attr().mode & 0o777 == 0o755


def test_a_listing_and_a_lookup_agree(store: Store, tmp_path: Path) -> None:
    sync(store, write_tree(tmp_path / "p", {"d": {"f": b"f"}}), "linter", "1.0")
    top = root(StoreReader(store), Stats())
    for path in ("trees", "trees/plugins", "trees/plugins/linter", "trees/plugins/linter/1.0"):
        directory = there(top, path)
        for name, child in directory.entries():
            same = directory.lookup(name)
            assert same is not None
            assert (same.key, same.attr()) == (child.key, child.attr()), path


def test_a_version_that_was_refreshed_is_another_directory(store: Store, tmp_path: Path) -> None:
    folder = write_tree(tmp_path / "p", {"same": b"same", "f": b"old", "d": {"x": b""}})
    sync(store, folder, "linter", "1.0")
    top = root(StoreReader(store), Stats())
    versions = there(top, "trees/plugins/linter")
    assert versions.live
    assert not versions.binds(b"1.0"), "the kernel must ask again"
    paths = ("", "/same", "/f", "/d")
    before = {path: at(top, f"trees/plugins/linter/1.0{path}") for path in paths}
    (folder / "f").write_text("new")
    sync(store, folder, "linter", "1.0", refresh=True)
    after = {path: at(top, f"trees/plugins/linter/1.0{path}") for path in paths}
    same = {path: before[path].key == after[path].key for path in before}
    assert same == {"": False, "/same": True, "/f": False, "/d": False}


def test_no_two_directories_share_an_inode(store: Store, tmp_path: Path) -> None:
    folder = write_tree(tmp_path / "p", {"d": {"f": b"f"}})
    for name, version in (("a", "1"), ("a", "2"), ("b", "1")):
        sync(store, folder, name, version)
    top = root(StoreReader(store), Stats())
    found = [
        there(top, f"trees/{path}{inner}")
        for path in ("plugins/a/1", "plugins/a/2", "plugins/b/1", put_tree(store, {"d": {}}))
        for inner in ("", "/d")
    ]
    assert len({inode_number(vnode.key) for vnode in found}) == len(found)


def test_a_lookup_is_a_use_and_a_listing_is_none(store: Store, tmp_path: Path) -> None:
    sync(store, write_tree(tmp_path / "p", {"f": b"f"}), "linter", "1.0")
    reader = StoreReader(store)
    top = root(reader, Stats())
    assert names(top, "trees/plugins/linter") == [b"1.0"]
    assert reader.uses == set()
    at(top, "trees/plugins/linter/1.0/f")
    assert reader.uses == {"plugins/linter/1.0"}
