"""Files that are blobs, as plain vnodes."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from casfs.backend.block_maps import BLOCK_BYTES
from casfs.digest import Digest
from casfs.errors import Corrupt
from casfs.fuse.views.root import root
from casfs.fuse.views.stats import Stats
from casfs.fuse.views.store_reader import StoreReader
from casfs.fuse.views.vnode import Y2000_NS, Directory, File
from casfs.store.store import Store
from tests.support.block_maps import FIRST, changed, put_change
from tests.support.fuse import (
    at,
    content,
    missing,
    names,
    read,
)


def test_blobs(store: Store) -> None:
    digest = store.put(b"some bytes")
    vnode = at(store, f"blobs/{digest}")
    assert vnode.attr() == (stat.S_IFREG | 0o444, 10, Y2000_NS, 1)
    assert vnode.digest == digest.hash
    assert content(vnode) == b"some bytes"
    assert read(store, f"blobs/{store.put(b'')}") == b""
    assert names(store, "blobs") == []
    assert missing(store, "blobs/" + "00" * 32)
    assert missing(store, "blobs/README")


def test_a_blob_put_later_is_found(store: Store) -> None:
    blobs = at(store, "blobs")
    assert isinstance(blobs, Directory)
    hash = Digest.of(b"later").hash
    assert blobs.lookup(hash.encode()) is None
    store.put(b"later")
    assert blobs.lookup(hash.encode()) is not None


def test_a_mapped_blob_is_read_from_its_sources(disk_store: Store) -> None:
    first = disk_store.put(FIRST).hash
    data = changed(FIRST, 2) + b"tail"
    file = at(disk_store, f"blobs/{put_change(disk_store, data, first)}")
    assert isinstance(file, File)
    assert not file.ready
    file.prepare()
    assert file.ready
    for offset in (0, 2 * BLOCK_BYTES - 10, 2 * BLOCK_BYTES, len(data) - 9):
        assert file.read(offset, 100_000) == data[offset : offset + 100_000]
    # Where they are in a row, the kernel copies them.
    extent = file.extent(5 * BLOCK_BYTES + 1, 100_000)
    assert extent is not None
    assert os.pread(extent.fd, extent.size, extent.offset) == data[5 * BLOCK_BYTES + 1 :][:100_000]
    assert file.extent(2 * BLOCK_BYTES - 10, 100) is None
    assert file.seek(7, os.SEEK_HOLE, len(data)) == len(data)
    path = disk_store.root / "objects" / first[:2] / first[2:]
    path.chmod(0o644)
    with path.open("r+b") as damaged:
        damaged.seek(9 * BLOCK_BYTES)
        damaged.write(b"damage")
    with pytest.raises(Corrupt):
        file.read(0, 10)
    with pytest.raises(Corrupt):
        file.extent(0, 10)


def test_large_blobs_are_verified_once_and_again_when_they_changed(disk_store: Store) -> None:
    data = bytes(range(256)) * 8192  # 2 MiB
    digest = disk_store.put(data)
    file = at(disk_store, f"blobs/{digest}")
    assert isinstance(file, File)
    assert not file.ready
    file.prepare()
    assert file.ready
    assert file.read(1000, 5000) == data[1000:6000]
    assert file.read(len(data) - 5, 100) == data[-5:]
    path = Path(disk_store.root) / "objects" / digest.hash[:2] / digest.hash[2:]
    path.chmod(0o644)
    with path.open("r+b") as damaged:
        damaged.seek(1_000_000)
        damaged.write(b"\xff\x00\xff")
    with pytest.raises(Corrupt):
        file.read(0, 10)
    path.write_bytes(data)
    assert file.read(0, 10) == data[:10]
    path.unlink()
    path.write_bytes(data[:-1])
    assert at(disk_store, f"blobs/{digest}").attr().size == len(data)


def test_more_large_blobs_than_descriptors(disk_store: Store) -> None:
    with disk_store.batch() as batch:
        digests = [batch.put(b"%d" % n * 100_000) for n in range(100, 300)]
    top = root(StoreReader(disk_store), Stats())
    files = [at(disk_store, f"blobs/{digest}", top) for digest in digests]
    for _ in range(2):
        for n, file in enumerate(files, start=100):
            assert isinstance(file, File)
            assert file.read(3, 6) == (b"%d" % n) * 2
