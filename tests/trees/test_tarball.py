"""A tree as a tar: what GNU tar makes of it, and how little memory it takes."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from casfs.digest import TreeHash
from casfs.errors import Corrupt
from casfs.store.nodes import directory
from casfs.store.nodes.directory import File, Properties, Subdirectory, Symlink
from casfs.store.store import Store
from casfs.trees import tarball
from tests.support.helpers import Link, Program, put_tree, put_unchecked, read_tree

TREE = {
    "plain": b"text\n" * 300,
    "empty": b"",
    "block": bytes(512),
    "run": Program(b"#!/bin/sh\n"),
    b"\xff\xfe": b"not UTF-8",
    "n" * 200: {"m" * 200: b"long names"},
    "to": Link(b"plain"),
    b"to \xff": Link(b"../" * 60 + b"\xff"),
    "none": {},
}


def unpacked(store: Store, root: TreeHash, to: Path) -> Path:
    to.mkdir()
    data = b"".join(tarball.pieces(store, root, "top"))
    subprocess.run(["tar", "-x", "-C", str(to)], input=data, check=True)
    assert os.listdir(to) == ["top"]
    return to / "top"


def test_gnu_tar_unpacks_the_same_tree(store: Store, tmp_path: Path) -> None:
    found = read_tree(unpacked(store, put_tree(store, TREE), tmp_path / "new"))
    assert found == {os.fsencode(name): _bytes(item) for name, item in TREE.items()}


def _bytes(item: object) -> object:
    if isinstance(item, dict):
        return {os.fsencode(name): _bytes(one) for name, one in item.items()}
    return item


def test_preserved_metadata_is_in_it_but_no_setuid_bit(store: Store) -> None:
    kept = Properties(mtime=(1_700_000_000, 5), unix_mode=0o4640)
    with store.batch() as batch:
        inner = batch.put_directory(directory.encode([], Properties(unix_mode=0o700)))
        file = File(b"f", batch.put(b"x"), False, kept)
        old = Symlink(b"l", b"f", Properties(mtime=(-1, 0)))
        root = batch.put_directory(directory.encode([file, Subdirectory(b"d", inner), old])).hash
    with tarfile.open(fileobj=io.BytesIO(b"".join(tarball.pieces(store, root, "t")))) as tar:
        found = {one.name: (oct(one.mode), one.mtime) for one in tar}
    assert found == {
        "t": ("0o755", 0),
        "t/f": ("0o640", 1_700_000_000),
        "t/d": ("0o700", 0),
        "t/l": ("0o777", -1),
    }


def test_a_large_file_comes_in_pieces(disk_store: Store) -> None:
    root = put_tree(disk_store, {"large": bytes(5 << 20)})
    sizes = [len(one) for one in tarball.pieces(disk_store, root, "t")]
    assert max(sizes) == 1 << 20
    assert sum(sizes) % 512 == 0


def test_a_size_that_is_not_the_files_is_damage(store: Store) -> None:
    blob = store.put(b"four")
    entry = {"name": "f", "digest": {"hash": blob.hash, "size_bytes": 5}, "is_executable": False}
    root = put_unchecked(store, "directory", {"files": [entry], "directories": [], "symlinks": []})
    with pytest.raises(Corrupt, match="another size"):
        list(tarball.pieces(store, TreeHash(root), "t"))
