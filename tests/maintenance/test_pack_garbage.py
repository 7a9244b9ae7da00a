"""gc and purge over packs: dead ranges are freed, wasteful packs rewritten, strays removed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from casfs.backend import tiers
from casfs.backend.protocols import HeadName, Swap
from casfs.digest import Digest
from casfs.errors import Corrupt, Purged
from casfs.maintenance import cold, fsck, gc, purge
from casfs.packs.reader import open_pack
from casfs.store import tombstones
from casfs.store.store import Store
from tests.support.maintenance import OLD, age, sql
from tests.support.packs import (
    COUNT,
    backend,
    check_readable,
    contents,
    damage,
    files,
    freeze,
    packs,
    put_all,
)

KINDS = ("hot", "cold")
HEAD = HeadName("held/1")


def dropped(store: Store, blobs: list[bytes], keep: int) -> list[bytes]:
    """Keeps `keep` of the blobs, evenly spread, and collects the others."""
    kept = [blobs[number * len(blobs) // keep] for number in range(keep)]
    put_all(store, kept, "held/kept")
    store.backend.publish([], [Swap(HEAD, store.heads.get(HEAD), None)])
    age(store)
    planned, done = gc.collect(store, dry_run=True), gc.collect(store)
    assert (planned.freed, planned.kept) == (done.freed, done.kept)
    assert done.freed.blobs == len(blobs) - keep + 1
    assert done.freed.files == 0, "members of packs are no files of their own"
    assert fsck.check(store).faults == []
    check_readable(store, kept)
    return kept


def room(path: Path) -> int:
    return path.stat().st_blocks * 512


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def blobs(disk_store: Store, kind: str) -> list[bytes]:
    found = contents()
    put_all(disk_store, found, HEAD)
    if kind == "cold":
        freeze(disk_store)
    assert len(packs(disk_store, kind)) == 1
    return found


# -- gc ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["hot"], indirect=True)
def test_dead_ranges_of_a_hot_pack_are_freed(disk_store: Store, blobs: list[bytes]) -> None:
    (path,) = packs(disk_store)
    before, size = room(path), path.stat().st_size
    dropped(disk_store, blobs, 3 * COUNT // 4)
    assert packs(disk_store) == [path]
    assert path.stat().st_size == size
    assert room(path) <= before - COUNT // 5 * 8192
    assert path.stat().st_mode & 0o777 == 0o444
    inode = path.stat().st_ctime_ns
    gc.collect(disk_store)
    assert path.stat().st_ctime_ns == inode, "nothing is left to be freed"


@pytest.mark.parametrize("kind", ["hot"], indirect=True)
def test_a_file_system_without_holes(
    disk_store: Store, blobs: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers, "punch_hole", lambda *_: False)
    (path,) = packs(disk_store)
    before = room(path)
    kept = dropped(disk_store, blobs, 3 * COUNT // 4)
    assert room(path) == before
    purge.purge(disk_store, Digest.of(kept[0]).hash)
    (after,) = packs(disk_store)
    assert after != path, "what is purged must go at once"
    assert room(after) < before * 0.8
    check_readable(disk_store, kept[1:])


def test_a_wasteful_pack_is_rewritten(disk_store: Store, kind: str, blobs: list[bytes]) -> None:
    (before,) = packs(disk_store)
    dropped(disk_store, blobs, COUNT // 5)
    (after,) = packs(disk_store, kind)
    assert after != before
    assert not before.exists()
    assert open_pack(after).index.members == COUNT // 5
    assert files(disk_store) == []


@pytest.mark.parametrize("kind", ["cold"], indirect=True)
def test_a_little_garbage_in_a_cold_pack_stays(disk_store: Store, blobs: list[bytes]) -> None:
    before = packs(disk_store)
    dropped(disk_store, blobs, 4 * COUNT // 5)
    assert packs(disk_store) == before


def test_a_pack_without_rows_is_removed(disk_store: Store, kind: str, blobs: list[bytes]) -> None:
    (path,) = packs(disk_store)
    disk_store.backend.publish([], [Swap(HEAD, disk_store.heads.get(HEAD), None)])
    age(disk_store)
    gc.collect(disk_store)
    assert packs(disk_store) == []
    assert not path.exists()
    put_all(disk_store, blobs, HEAD)
    check_readable(disk_store, blobs)


def test_the_same_pack_again_has_no_holes(disk_store: Store) -> None:
    """A batch of the same blobs makes a pack of the same name, while a mount has the old open."""
    found = contents()
    put_all(disk_store, found, HEAD)
    check_readable(disk_store, found)
    dropped(disk_store, found, 3 * COUNT // 4)
    put_all(disk_store, found, HEAD)
    check_readable(disk_store, found)
    assert fsck.check(disk_store).faults == []


def test_old_strays_are_removed(
    disk_store: Store, blobs: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = packs(disk_store)
    sql(disk_store, "DELETE FROM packs")
    sql(disk_store, "DELETE FROM blobs WHERE pack IS NOT NULL")
    sql(disk_store, "DELETE FROM heads WHERE name = ?", HEAD)
    age(disk_store)
    gc.collect(disk_store)
    assert path.exists(), "a pack may be placed and not committed yet"
    assert fsck.check(disk_store).faults == [], "a stray is no fault"
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + OLD)
    gc.collect(disk_store)
    assert not path.exists()


def test_small_packs_become_one(disk_store: Store, kind: str) -> None:
    found: list[bytes] = []
    for number in range(tiers.MAX_SMALL):
        found += (part := contents(64, 1500, seed=number))
        put_all(disk_store, part, f"held/{number}")
        if kind == "cold":
            freeze(disk_store)
    assert len(packs(disk_store, kind)) == (tiers.MAX_SMALL if kind == "hot" else 1)
    gc.collect(disk_store)
    assert len(packs(disk_store, kind)) == 1
    check_readable(disk_store, found)
    assert fsck.check(disk_store).faults == []


def test_a_damaged_pack_does_not_stop_gc(disk_store: Store, kind: str, blobs: list[bytes]) -> None:
    (path,) = packs(disk_store)
    damage(path, path.stat().st_size - 20)
    disk_store.put(b"garbage" * 1000)
    age(disk_store)
    assert gc.collect(disk_store).freed.blobs == 1
    assert path.exists()


def test_a_range_is_kept_while_its_blob_is_stored_elsewhere(disk_store: Store) -> None:
    """An image of a tree may show it from there."""
    found = contents()
    put_all(disk_store, found, HEAD)
    age(disk_store)
    used = found[COUNT // 5 :]
    put_all(disk_store, used, "held/used")
    assert cold.pack(disk_store, older_than=3600).blobs == COUNT // 5
    gc.collect(disk_store)
    whole = packs(disk_store, "hot")[0].read_bytes()
    assert all(data in whole for data in found)
    disk_store.backend.publish([], [Swap(HEAD, disk_store.heads.get(HEAD), None)])
    age(disk_store)
    gc.collect(disk_store)
    whole = packs(disk_store, "hot")[0].read_bytes()
    assert [data in whole for data in found] == [False] * (COUNT // 5) + [True] * len(used)


# -- purge ---------------------------------------------------------------------------------


def test_purge(disk_store: Store, kind: str, blobs: list[bytes]) -> None:
    secret, hash = blobs[COUNT // 2], Digest.of(blobs[COUNT // 2]).hash
    assert purge.purge(disk_store, hash)
    with pytest.raises(Purged):
        disk_store.get(hash)
    (path,) = packs(disk_store)
    assert secret[:3000] not in path.read_bytes()
    assert (Digest.of(secret).hash in members(path)) == (kind == "hot"), "a hot one has a hole"
    assert not disk_store.root or [*(disk_store.root / "packs").iterdir()] == [path]
    check_readable(disk_store, [one for one in blobs if one != secret])
    assert fsck.check(disk_store).faults == []
    disk_store.put(secret)
    with pytest.raises(Purged):
        disk_store.get(hash)
    tombstones.remove(disk_store, hash)
    disk_store.put(secret)
    check_readable(disk_store, blobs)


@pytest.mark.parametrize("kind", ["cold"], indirect=True)
def test_purge_of_what_is_a_file_again(disk_store: Store, blobs: list[bytes]) -> None:
    """A cold pack may have a copy of a blob whose place is another by now."""
    secret = blobs[COUNT // 2]
    hash = Digest.of(secret).hash
    (path,) = packs(disk_store)
    backend(disk_store).tiers.warm([hash])
    assert hash in members(path)
    purge.purge(disk_store, hash)
    assert not any(hash in members(one) for one in packs(disk_store, "cold"))
    assert not path.exists()
    check_readable(disk_store, [one for one in blobs if one != secret])


@pytest.mark.parametrize("kind", ["cold"], indirect=True)
def test_purge_from_a_pack_with_damage(disk_store: Store, blobs: list[bytes]) -> None:
    (path,) = packs(disk_store)
    index = open_pack(path).index
    damage(path, index.frame(0).offset)
    hash = index.member(index.members - 1).hash
    with pytest.raises(Corrupt, match="damaged blobs"):
        purge.purge(disk_store, hash)
    fsck.check(disk_store)
    put_all(disk_store, [one for one in blobs if Digest.of(one).hash != hash], "held/2")
    gc.collect(disk_store)
    assert not any(hash in members(one) for one in packs(disk_store))


def test_purge_while_it_is_packed(disk_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = os.urandom(5000)
    hash = disk_store.put(secret).hash
    other = disk_store.put(secret[1:]).hash
    age(disk_store)
    finish = tiers.PackWriter.finish

    def purge_first(self: tiers.PackWriter) -> str:
        monkeypatch.undo()
        purge.purge(disk_store, hash)
        return finish(self)

    monkeypatch.setattr(tiers.PackWriter, "finish", purge_first)
    assert cold.pack(disk_store, older_than=1).blobs == 0
    assert packs(disk_store) == []
    assert disk_store.root
    assert not any(
        secret in path.read_bytes() for path in disk_store.root.rglob("*") if path.is_file()
    )
    assert cold.pack(disk_store, older_than=1).blobs == 1
    assert disk_store.get(other) == secret[1:]


def test_gc_ends_a_purge_that_was_killed(
    disk_store: Store, kind: str, blobs: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = blobs[COUNT // 2]
    monkeypatch.setattr(backend(disk_store).blobs, "erase", lambda **_: None)
    purge.purge(disk_store, Digest.of(secret).hash)
    gc.collect(disk_store)
    (path,) = packs(disk_store)
    assert secret[:3000] not in path.read_bytes()
    assert (Digest.of(secret).hash in members(path)) == (kind == "hot")


def members(path: Path) -> set[str]:
    index = open_pack(path).index
    return {index.member(number).hash for number in range(index.members)}
