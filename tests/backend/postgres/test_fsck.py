"""fsck of a shared store looks at the servers; what is damaged in a cache is brought again."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from casfs.backend.postgres.backend import PostgresBackend
from casfs.errors import Refused
from casfs.maintenance import cold, fsck, purge, repair
from casfs.store.store import Store
from tests.support.s3_servers import S3Server
from tests.support.shared_stores import join, make_store

PACKED = random.Random(5).randbytes(20_000)


@pytest.fixture
def store(tmp_path: Path, database_url: str, s3: S3Server) -> Iterator[Store]:
    with make_store(tmp_path / "a", database_url, s3) as opened:
        yield opened


def backend(store: Store) -> PostgresBackend:
    assert isinstance(store.backend, PostgresBackend)
    return store.backend


def key(store: Store) -> str:
    ((found, _),) = backend(store)._storage().list("packs/")
    return found


def damage_row(store: Store, hash: str) -> None:
    query = "UPDATE casfs.blobs SET data = 'other' WHERE hash = %b"
    backend(store).pool.run(query, [bytes.fromhex(hash)])


def faults(store: Store, *, quarantine: bool = False) -> list[tuple[str, str | None]]:
    return [(one.kind, one.hash) for one in fsck.check(store, quarantine=quarantine).faults]


def test_a_sound_store(store: Store) -> None:
    node = store.put_node(
        "content", {"text": "t", "artifacts": [store.put(PACKED).hash, store.put(b"row").hash]}
    )
    found = fsck.check(store)
    assert not found.faults
    assert found.remote == 0
    assert found.blobs == len(list(store.blobs.iterate()))
    assert node.hash


def test_a_damaged_row_is_found_though_the_cache_is_sound(store: Store) -> None:
    hash = store.put(b"row").hash
    assert store.get(hash)
    damage_row(store, hash)
    assert faults(store) == [("corrupt", hash)]
    assert faults(store, quarantine=True) == [("corrupt", hash)]
    assert not store.blobs.info([hash])
    assert backend(store).pool.run("SELECT data FROM casfs.quarantine") == [(b"other",)]
    store.put(b"row")
    assert faults(store) == []


def test_a_damaged_pack_is_found_though_the_mirror_is_sound(store: Store, tmp_path: Path) -> None:
    hash = store.put(PACKED).hash
    assert store.get(hash)
    storage, name = backend(store)._storage(), key(store)
    whole = bytearray(storage.get(name))
    whole[1000] ^= 255
    storage.put(name, bytes(whole))
    assert faults(store) == [("corrupt", hash)]
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "file").write_bytes(PACKED)
    report = fsck.check(store)
    report, restored = repair.repair_all(store, report, tmp_path / "old", lambda: fsck.check(store))
    assert restored == [hash]
    with join(tmp_path / "b", backend(store).settings.url) as other:
        assert other.get(hash) == PACKED


def test_a_lost_pack(store: Store) -> None:
    """It is missing where others are there; where none is, the place may be wrong."""
    hash = store.put(PACKED).hash
    backend(store)._storage().delete(key(store))
    assert faults(store, quarantine=True) == [("unreadable", hash)]
    assert store.blobs.info([hash])
    store.put(b"another" * 4000)
    assert faults(store, quarantine=True) == [("missing", hash)]
    assert not store.blobs.info([hash])


def test_objects_without_a_row(store: Store) -> None:
    store.put(PACKED)
    storage = backend(store)._storage()
    storage.put("packs/foreign", b"f")
    storage.put(f"packs/{'ab' * 32}.pack", b"stray")
    found = fsck.check(store, quarantine=False).faults
    assert sorted(one.message for one in found) == [
        f"{storage.url}/packs/{name}: no row has it; a foreign object, or damage"
        for name in sorted([f"{'ab' * 32}.pack", "foreign"])
    ]


# -- the cache ---------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"row", PACKED], ids=["row", "packed"])
def test_damage_in_the_cache_heals(store: Store, data: bytes) -> None:
    hash = store.put(data).hash
    assert store.get(hash) == data
    with sqlite3.connect(Path(str(store.root)) / "store.db") as db:
        changed = db.execute(
            "UPDATE blobs SET data = x'00', pack = NULL WHERE hash = ?", (bytes.fromhex(hash),)
        )
        assert changed.rowcount == 1
    assert store.get(hash) == data
    assert list(store.blobs.get_many([hash])) == [data]
    assert store.blobs.open(hash).read() == data


def test_a_place_that_gc_has_deleted_is_looked_up_again(store: Store, tmp_path: Path) -> None:
    """The blob was put again meanwhile, into another pack."""
    hash = store.put(PACKED).hash
    with join(tmp_path / "b", backend(store).settings.url) as other:
        other.blobs.info([hash])
        assert isinstance(other.backend, PostgresBackend)
        other.backend.blobs.bring([hash])  # the place, not yet the bytes
        old = key(store)
        pool = backend(store).pool
        pool.run("DELETE FROM casfs.blobs WHERE hash = %b", [bytes.fromhex(hash)])
        backend(store)._storage().delete(old)
        store.put(PACKED)
        assert key(store) != old
        assert other.get(hash) == PACKED


# -- what a shared store refuses ---------------------------------------------------------------


def test_purge_and_pack_are_refused(store: Store) -> None:
    hash = store.put(b"secret").hash
    with pytest.raises(Refused, match="cannot purge"):
        purge.check(store, hash)
    with pytest.raises(Refused, match="packs by itself"):
        cold.pack(store, older_than=0)
