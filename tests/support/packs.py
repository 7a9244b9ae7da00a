"""What the tests of packs need: many blobs at once, stores whose blobs are cold, and damage."""

from __future__ import annotations

import random
from pathlib import Path

from casfs.backend.disk import DiskBackend
from casfs.digest import Digest
from casfs.maintenance import cold
from casfs.store.store import Store
from tests.support.maintenance import age, sql

COUNT = 100  # of blobs, enough for a hot pack


def contents(count: int = COUNT, size: int = 6000, seed: int = 0) -> list[bytes]:
    """Half of each compresses."""
    chance = random.Random(seed)
    return [chance.randbytes(size // 2) + b"text " * (size // 10) for _ in range(count)]


def put_all(store: Store, blobs: list[bytes], head: str = "held/1") -> list[str]:
    """Puts blobs in one batch, with a head that keeps them."""
    from tests.support.helpers import set_head

    with store.batch() as batch:
        hashes = [batch.put(data).hash for data in blobs]
        node = batch.put_node("content", {"text": head, "artifacts": hashes})
    set_head(store, head, node.hash)
    return hashes


def backend(store: Store) -> DiskBackend:
    assert isinstance(store.backend, DiskBackend)
    return store.backend


def freeze(store: Store) -> None:
    """Moves all that may be to the cold tier."""
    age(store)
    cold.pack(store, older_than=1)


def packs(store: Store, kind: str = "%") -> list[Path]:
    """The files of the packs that have a row."""
    rows = sql(store, "SELECT hex(name) FROM packs WHERE kind LIKE ? ORDER BY id", kind)
    return [backend(store).packs.path(name.lower()) for (name,) in rows]


def files(store: Store) -> list[Path]:
    return sorted((store.root / "objects").glob("??/*"))


def damage(path: Path, offset: int, data: bytes = b"\xff\x00\xff") -> None:
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)
    path.chmod(0o444)


def check_readable(store: Store, blobs: list[bytes]) -> None:
    """Each way of reading gives the right bytes."""
    hashes = [Digest.of(data).hash for data in blobs]
    assert [store.blobs.get(hash).data for hash in hashes] == blobs
    for hash, data, many in zip(hashes, blobs, store.blobs.get_many(hashes), strict=True):
        assert many in (data, None)
        assert backend(store).blobs.get_sized(hash, len(data)) == data
        with store.blobs.open(hash) as source:
            assert source.read() == data
