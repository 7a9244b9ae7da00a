"""Blobs in packs: where new ones go, every way of reading, damage, and places that move."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from casfs.backend.disk import DiskBackend
from casfs.backend.frame_mirror import mirror_path
from casfs.backend.hot_packs import MIN_BLOBS
from casfs.backend.protocols import FILE_MIN_BYTES, Staged
from casfs.digest import Digest
from casfs.errors import CorruptBlob, NotFound, Purged
from casfs.maintenance import fsck, gc, purge
from casfs.packs.writer import PackWriter
from casfs.store import tombstones
from casfs.store.store import Store
from casfs.store.tombstones import Tombstone
from tests.support.helpers import private_files, set_head
from tests.support.lazy import make_pack
from tests.support.new_store import init_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with init_store(tmp_path / "store") as made:
        yield made


def disk(store: Store) -> DiskBackend:
    assert isinstance(store.backend, DiskBackend)
    return store.backend


def packs(store: Store) -> list[Path]:
    return sorted((store.root / "packs").iterdir())


def contents(count: int, seed: int = 0) -> list[bytes]:
    chance = random.Random(seed)
    return [chance.randbytes(1025 + 517 * n) for n in range(count)]


def put_all(store: Store, blobs: list[bytes]) -> list[str]:
    with store.batch() as batch:
        return [batch.put(data).hash for data in blobs]


def check(store: Store, hashes: list[str], blobs: list[bytes]) -> None:
    """Every way to read."""
    assert list(store.blobs.get_many(hashes)) == blobs
    for hash, data in zip(hashes, blobs, strict=True):
        assert store.get(hash) == data
        assert disk(store).blobs.get_sized(hash, len(data)) == data
        with store.blobs.open(hash) as source:
            assert source.read() == data
        disk(store).blobs.verify(hash)


def damage(path: Path, data: bytes) -> None:
    """Changes a byte in the middle of a member."""
    whole = path.read_bytes()
    at = whole.index(data) + len(data) // 2
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([whole[at] ^ 1]))
    path.chmod(0o444)


# -- where new blobs go -------------------------------------------------------------------------


def test_many_new_blobs_are_one_pack(store: Store) -> None:
    blobs = contents(MIN_BLOBS)
    hashes = put_all(store, blobs)
    (pack,) = packs(store)
    assert pack.stat().st_mode & 0o777 == 0o444
    assert disk(store).blobs.total().files == 0
    places = disk(store).blobs.places(hashes)
    offsets = [places[hash].offset for hash in hashes]
    assert offsets == sorted(offsets, key=lambda at: at or 0)
    whole = pack.read_bytes()
    for place in places.values():
        assert (f"{place.pack}.pack", place.pack_bytes) == (pack.name, len(whole))
        assert place.offset is not None
        assert place.offset % 4096 == 0
        assert not place.is_node
    for hash, data in zip(hashes, blobs, strict=True):
        at = places[hash].offset
        assert at is not None
        assert places[hash].blob_bytes == len(data)
        assert whole[at : at + len(data)] == data
    check(store, hashes, blobs)
    assert fsck.check(store).faults == []


def test_few_new_blobs_and_large_ones_are_files(store: Store) -> None:
    blobs = [*contents(MIN_BLOBS - 1)[:20], bytes(FILE_MIN_BYTES)]
    hashes = put_all(store, blobs)
    assert packs(store) == []
    assert disk(store).blobs.total().files == len(blobs)
    check(store, hashes[:-1], blobs[:-1])


def test_what_is_stored_already_is_not_packed_again(store: Store) -> None:
    blobs = contents(MIN_BLOBS)
    first = put_all(store, blobs)
    assert put_all(store, blobs) == first
    assert len(packs(store)) == 1
    more = contents(MIN_BLOBS, seed=1)
    with Store.open(store.root or Path()) as other:  # both find none of them stored
        mine, theirs = store.batch(), other.batch()
        hashes = [mine.put(data).hash for data in more]
        assert [theirs.put(data).hash for data in more] == hashes
        theirs.commit()
        mine.commit()
    check(store, hashes, more)
    assert private_files(store.root or Path()) == []


def test_an_abort_leaves_no_pack(store: Store) -> None:
    with pytest.raises(NotFound):
        disk(store).publish([Staged(Digest.of(d), d) for d in contents(MIN_BLOBS)], (), ["0" * 64])
    assert packs(store) == []
    assert private_files(store.root or Path()) == []


def test_packed_bytes_that_become_a_node_are_a_row(store: Store) -> None:
    node = store.put_node("content", {"text": "word " * 500, "artifacts": []})
    data = store.get(node.hash)
    with Store.init((store.root or Path()).with_name("other")) as other:
        hashes = put_all(other, [data, *contents(MIN_BLOBS)])
        assert node.hash in disk(other).blobs.places([node.hash])
        with other.batch() as batch:
            batch.put_encoded(data)
        assert disk(other).blobs.places(hashes).keys() == set(hashes[1:])
        assert other.node(node.hash).payload["text"] == "word " * 500
        assert fsck.check(other).faults == []


def test_a_purged_blob_is_in_no_pack_until_it_is_allowed_again(store: Store) -> None:
    blobs = contents(MIN_BLOBS)
    hashes = put_all(store, blobs)
    tombstones.add(store, [Tombstone(hashes[3], len(blobs[3]), 1)])
    with pytest.raises(Purged):
        store.get(hashes[3])
    check(store, hashes[4:], blobs[4:])
    assert put_all(store, [blobs[3], *contents(2 * MIN_BLOBS)[MIN_BLOBS:]])[0] == hashes[3]
    with pytest.raises(Purged):
        store.get(hashes[3])
    assert not any(blobs[3][:512] in one.read_bytes() for one in packs(store))
    tombstones.remove(store, hashes[3])
    assert store.put(blobs[3]).hash == hashes[3]
    check(store, hashes, blobs)


# -- damage -------------------------------------------------------------------------------------


def test_damage_costs_one_blob_and_names_it(store: Store) -> None:
    blobs = contents(MIN_BLOBS)
    hashes = put_all(store, blobs)
    check(store, hashes, blobs)
    damage(packs(store)[0], blobs[7])
    for read in (store.get, lambda hash: disk(store).blobs.get_sized(hash, len(blobs[7]))):
        with pytest.raises(CorruptBlob, match=f"blob {hashes[7]}.*member 7"):
            read(hashes[7])
    with pytest.raises(CorruptBlob):
        list(store.blobs.get_many(hashes))
    check(store, hashes[:7] + hashes[8:], blobs[:7] + blobs[8:])
    (fault,) = fsck.check(store).faults
    assert (fault.kind, fault.hash) == ("corrupt", hashes[7])
    kept = (store.root or Path()) / "quarantine" / hashes[7]
    assert len(kept.read_bytes()) == len(blobs[7])
    assert store.put(blobs[7]).hash == hashes[7]
    check(store, hashes, blobs)
    assert fsck.check(store).faults == []


@pytest.mark.parametrize("how", ["missing", "trailer", "index", "another"])
def test_a_damaged_pack_is_never_believed(store: Store, how: str) -> None:
    blobs = contents(MIN_BLOBS)
    hashes = put_all(store, blobs)
    (pack,) = packs(store)
    whole = pack.read_bytes()
    pack.unlink()
    if how == "trailer":
        pack.write_bytes(whole[:-1])
    elif how == "index":
        pack.write_bytes(whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:])
    elif how == "another":
        put_all(store, contents(MIN_BLOBS, seed=5))
        packs(store)[0].rename(pack)
    with Store.open(store.root or Path()) as other:
        for hash in hashes[:3]:
            with pytest.raises(NotFound if how == "missing" else CorruptBlob, match=hash):
                other.get(hash)
        assert {fault.hash for fault in fsck.check(other, quarantine=False).faults} >= set(hashes)


# -- moves of a place ---------------------------------------------------------------------------


def write_pack(store: Store, blobs: list[bytes]) -> str:
    """A complete cold pack under a private name."""
    temp = str(disk(store).blobs.staging_directory() / "new")
    with open(temp, "wb") as out:
        writer = PackWriter(out)
        for data in blobs:
            writer.add(Digest.of(data).hash, data)
        name = writer.finish()
    os.rename(temp, f"{temp}.{name}.pack")
    return f"{temp}.{name}.pack"


def test_a_reader_follows_a_place_that_moved(store: Store) -> None:
    blobs = contents(MIN_BLOBS)
    hashes = put_all(store, blobs)
    with Store.open(store.root or Path()) as other:
        check(other, hashes, blobs)
        disk(store).move_to_pack(write_pack(store, blobs), "cold", enumerate(hashes))
        ((old,),) = rows(store, "SELECT id FROM packs WHERE kind = 'hot'")
        assert not disk(store).packs.remove(old + 1)
        assert disk(store).packs.remove(old)
        assert len(packs(store)) == 1
        check(other, hashes, blobs)
    with Store.open(store.root or Path()) as third:
        check(third, hashes, blobs)
        assert fsck.check(third).faults == []


def rows(store: Store, query: str) -> list[tuple[int, ...]]:
    with disk(store)._db.read() as db:
        return db.execute(query).fetchall()


def test_files_that_move_to_a_pack_are_removed(store: Store) -> None:
    blobs = [*contents(10), os.urandom(3 * FILE_MIN_BYTES + 5)]
    hashes = put_all(store, blobs)
    assert disk(store).blobs.total().files == len(blobs)
    disk(store).move_to_pack(write_pack(store, blobs), "cold", enumerate(hashes))
    assert disk(store).blobs.total().files == 0
    assert not [*(store.root or Path()).glob("objects/??/*")]
    check(store, hashes[:-1], blobs[:-1])
    assert list(store.blobs.get_many(hashes[-1:])) == [None]
    assert store.get(hashes[-1]) == blobs[-1]
    assert disk(store).blobs.total().files == 0
    with store.blobs.open(hashes[-1]) as source:  # the large one is a file again
        assert source.read() == blobs[-1]
    assert disk(store).blobs.total().files == 1
    assert fsck.check(store).faults == []


def test_damage_of_a_large_packed_blob_is_found_before_it_is_a_file(store: Store) -> None:
    blobs = [os.urandom(2 * FILE_MIN_BYTES)]
    hashes = put_all(store, blobs)
    disk(store).move_to_pack(write_pack(store, blobs), "cold", enumerate(hashes))
    damage(packs(store)[0], blobs[0])
    for read in (store.get, store.blobs.open, disk(store).blobs.verify):
        with pytest.raises(CorruptBlob, match=hashes[0]):
            read(hashes[0])
    assert disk(store).blobs.total().files == 0
    assert private_files(store.root or Path()) == []


def test_an_adopted_pack_gives_places_to_what_is_not_stored(store: Store) -> None:
    blobs = contents(20)
    hashes = [Digest.of(data).hash for data in blobs]
    assert store.put(blobs[4]).hash == hashes[4]
    temp = Path(write_pack(store, blobs))
    name = temp.name.split(".")[-2]
    size = temp.stat().st_size
    temp.rename((store.root or Path()) / "packs" / f"{name}.pack")
    members = [
        (n, hash, len(data)) for n, (hash, data) in enumerate(zip(hashes, blobs, strict=True))
    ]
    first = disk(store).adopt_pack(name, "cold", size, None, members)
    assert disk(store).adopt_pack(name, "cold", size, None, members) == first
    assert disk(store).blobs.places(hashes).keys() == set(hashes) - {hashes[4]}
    check(store, hashes, blobs)


def test_a_purge_empties_the_mirror_of_a_remote(store: Store, tmp_path: Path) -> None:
    blobs = [b"first" * 5000, os.urandom(70_000), b"last" * 5000]
    hashes = [Digest.of(data).hash for data in blobs]
    pack = make_pack(tmp_path / "remote", blobs)
    settings = f'[remotes.origin]\nurl = "{(tmp_path / "remote").as_uri()}"\n'
    (store.root / "config.toml").write_text(settings)
    members = [(n, hash, len(blobs[n])) for n, hash in enumerate(hashes)]
    disk(store).adopt_pack(pack[0], "remote", pack[1], "origin", members)
    check(store, hashes, blobs)
    mirror = mirror_path(store.root, "origin", pack[0])
    assert blobs[1] in mirror.read_bytes()
    purge.purge(store, hashes[1])
    assert blobs[1][5000:9000] not in mirror.read_bytes()
    with pytest.raises(Purged):
        store.get(hashes[1])
    assert [store.get(hashes[0]), store.get(hashes[2])] == [blobs[0], blobs[2]]


def test_gc_frees_the_rows_of_packed_blobs(store: Store) -> None:
    blobs = contents(MIN_BLOBS)
    hashes = put_all(store, blobs)
    set_head(store, "kept", hashes[2])
    with disk(store)._db.write() as db:
        db.execute("UPDATE blobs SET touched = 0")
    gc.collect(store, grace=0)
    assert store.blobs.info(hashes).keys() == {hashes[2]}
    check(store, hashes[2:3], blobs[2:3])
    again = put_all(store, blobs)  # the same members but one: another pack
    check(store, again, blobs)
