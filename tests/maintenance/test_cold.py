"""`casfs pack`: what nothing uses goes into cold packs, and stays readable in every way."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from casfs.backend import tiers
from casfs.backend.derived import note_use, open_stream, start_gc, total_stored
from casfs.backend.protocols import FILE_MIN_BYTES, HeadName
from casfs.digest import CHUNK, Digest
from casfs.errors import Conflict, CorruptBlob, NotFound
from casfs.maintenance import cold, fsck, gc
from casfs.store.store import Store
from casfs.trees import tarball
from tests.support.helpers import LARGE, put_tree, set_head
from tests.support.maintenance import age, export, reopened, sql
from tests.support.native import ensure_image
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
from tests.support.restores import restore_tree

FEW = contents(3, seed=1)
BIG = [os.urandom(10) * 300_000]  # 3 MB


@pytest.fixture
def blobs(disk_store: Store) -> list[bytes]:
    """Of a hot pack, of files, and a large one."""
    found = contents()
    put_all(disk_store, found)
    for data in FEW + BIG:
        disk_store.put(data)
    assert len(packs(disk_store, "hot")) == 1
    assert len(files(disk_store)) == 4
    return found + FEW + BIG


def is_cold(store: Store, data: bytes) -> bool:
    rows = sql(
        store,
        "SELECT p.kind FROM blobs b LEFT JOIN packs p ON p.id = b.pack WHERE b.hash = ?",
        bytes.fromhex(Digest.of(data).hash),
    )
    return bool(rows == [("cold",)])


def test_all_ways_of_reading_give_the_same_bytes(disk_store: Store, blobs: list[bytes]) -> None:
    before = total_stored(disk_store.blobs)
    age(disk_store)
    done = cold.pack(disk_store, older_than=1)
    assert (done.blobs, done.files) == (COUNT + 4, 1)
    assert done.bytes == sum(map(len, blobs))
    assert all(is_cold(disk_store, data) for data in blobs)
    assert files(disk_store) == []
    assert len(packs(disk_store)) == 1, "the hot pack has nothing left, and is removed"
    assert packs(disk_store)[0].stat().st_size < 0.8 * done.bytes
    total = total_stored(disk_store.blobs)
    assert (total.blobs, total.bytes, total.files) == (before.blobs, before.bytes, 0)
    assert fsck.check(disk_store).faults == []
    with reopened(disk_store) as other:
        check_readable(other, blobs)
    assert not is_cold(disk_store, BIG[0]), "a large one is a file again once it was opened"
    assert cold.pack(disk_store, older_than=1).blobs == 1, "and goes again"
    assert fsck.check(disk_store).faults == []


def test_equal_exports(disk_store: Store, blobs: list[bytes], tmp_path: Path) -> None:
    export(disk_store, tmp_path / "hot", next(disk_store.heads.list())[1].hash)
    freeze(disk_store)
    export(disk_store, tmp_path / "cold", next(disk_store.heads.list())[1].hash)
    assert (tmp_path / "hot").read_bytes() == (tmp_path / "cold").read_bytes()


def test_a_restore_leaves_large_files_in_their_pack(disk_store: Store, tmp_path: Path) -> None:
    large = bytes(2 << 20) + os.urandom(5000) * 300 + bytes(CHUNK)
    root = put_tree(disk_store, {"large": large, "small": b"s" * 5000})
    set_head(disk_store, "held/1", root)
    freeze(disk_store)
    target = tmp_path / "restored"
    restore_tree(disk_store, root, target)
    assert (target / "large").read_bytes() == large
    assert (target / "large").stat().st_blocks * 512 < len(large) - (2 << 20), "zeros are a hole"
    assert len(b"".join(tarball.pieces(disk_store, root, "top"))) > len(large)
    export(disk_store, tmp_path / "exported", root)
    assert is_cold(disk_store, large)
    damage(packs(disk_store)[0], 3000)
    with pytest.raises(CorruptBlob):
        open_stream(disk_store.blobs, Digest.of(large).hash)


def test_a_dry_run_moves_nothing(disk_store: Store, blobs: list[bytes]) -> None:
    age(disk_store)
    found = cold.pack(disk_store, older_than=1, dry_run=True)
    assert (found.blobs, found.bytes) == (COUNT + 4, sum(map(len, blobs)))
    assert len(files(disk_store)) == 4
    assert packs(disk_store, "cold") == []


def test_what_is_used_stays(disk_store: Store) -> None:
    store = disk_store
    image, workspace, used, unused = (LARGE + name for name in (b"i", b"w", b"u", b"n"))
    ensure_image(store, put_tree(store, {"f": image}))
    set_head(store, "workspaces/7", put_tree(store, {"f": workspace}))
    set_head(store, "actions/a", put_tree(store, {"f": used}))
    put_tree(store, {"f": unused})
    age(store)
    young = store.put(LARGE + b"y")
    note_use(store.heads, [HeadName("actions/a")])
    assert cold.pack(store, older_than=3600).blobs == 1
    assert [is_cold(store, one) for one in (image, workspace, used, unused)] == [False] * 3 + [True]
    assert young.hash in {path.parent.name + path.name for path in files(store)}


def test_the_tree_of_an_image_made_meanwhile_stays(
    disk_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = disk_store
    monkeypatch.setattr(tiers, "PACK_BYTES", 1000)
    monkeypatch.setattr(tiers, "THREADS", 1)
    for number in range(5):
        store.put(LARGE + b"%d" % number)
    root = put_tree(store, {"f": LARGE + b"image"})
    age(store)
    made: list[Path] = []

    def progress(blobs: int, bytes: int) -> None:
        if not made:
            made.append(ensure_image(store, root))

    assert cold.pack(store, older_than=1, progress=progress).blobs == 5
    assert not is_cold(store, LARGE + b"image")


def test_what_is_touched_meanwhile_stays(
    disk_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (disk_store.put(LARGE + name) for name in (b"1", b"2"))
    age(disk_store)
    write = tiers.PackWriter.finish

    def finish(self: tiers.PackWriter) -> str:
        disk_store.put(LARGE + b"2")
        return write(self)

    monkeypatch.setattr(tiers.PackWriter, "finish", finish)
    assert cold.pack(disk_store, older_than=3600).blobs == 1
    assert (is_cold(disk_store, LARGE + b"1"), is_cold(disk_store, LARGE + b"2")) == (True, False)
    assert disk_store.get(first.hash) + disk_store.get(second.hash) == LARGE + b"1" + LARGE + b"2"


def test_what_was_deleted_meanwhile_stays_deleted(
    disk_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    hash = disk_store.put(LARGE).hash
    age(disk_store)
    write = tiers.PackWriter.finish

    def finish(self: tiers.PackWriter) -> str:
        sql(disk_store, "DELETE FROM blobs WHERE hash = ?", bytes.fromhex(hash))
        return write(self)

    monkeypatch.setattr(tiers.PackWriter, "finish", finish)
    assert cold.pack(disk_store, older_than=1).blobs == 0
    with pytest.raises(NotFound):
        disk_store.get(hash)
    assert packs(disk_store) == []
    assert disk_store.root
    assert [*(disk_store.root / "packs").iterdir()] == []


def test_an_interrupted_run_goes_on(
    disk_store: Store, blobs: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers, "PACK_BYTES", 50_000)
    age(disk_store)

    def interrupt(done: int, size: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cold.pack(disk_store, older_than=1, progress=interrupt)
    begun = sum(is_cold(disk_store, data) for data in blobs)
    assert 0 < begun < len(blobs)
    check_readable(disk_store, blobs[:-1])
    rest = cold.pack(disk_store, older_than=1)
    assert rest.blobs == len(blobs) - begun
    assert rest.files > 5
    assert fsck.check(disk_store).faults == []


def test_a_damaged_blob_stays_where_it_is(disk_store: Store) -> None:
    hashes = put_all(disk_store, FEW)
    path = files(disk_store)[0]
    path.chmod(0o600)
    path.write_bytes(b"damage")
    path.chmod(0o444)
    age(disk_store)
    assert cold.pack(disk_store, older_than=1).blobs == 2
    assert files(disk_store) == [path]
    faults = fsck.check(disk_store).faults
    assert [(one.kind, one.hash) for one in faults] == [("corrupt", path.parent.name + path.name)]
    assert path.parent.name + path.name in hashes


def test_warming(disk_store: Store, blobs: list[bytes]) -> None:
    freeze(disk_store)
    hashes = [Digest.of(data).hash for data in blobs]
    seen: list[int] = []
    done = backend(disk_store).tiers.warm(hashes, lambda blobs, bytes: seen.append(bytes))
    assert (done.blobs, done.bytes) == (len(blobs), sum(map(len, blobs)))
    assert seen[-1] == done.bytes
    assert [Digest.of(path.read_bytes()).hash for path in files(disk_store)] == [hashes[-1]]
    assert sorted(one.kind for one in fsck.check(disk_store).faults) == []
    check_readable(disk_store, blobs)
    assert backend(disk_store).tiers.warm(hashes).blobs == 0
    gc.collect(disk_store)
    assert len(packs(disk_store, "hot")) == 1
    assert packs(disk_store, "cold") == []


def test_one_at_a_time(disk_store: Store) -> None:
    with start_gc(disk_store.backend), pytest.raises(Conflict, match="casfs pack"):
        cold.pack(disk_store, older_than=1)


def opened_content(store: Store, hash: str) -> bytes:
    with store.blobs.open(hash) as source:
        return source.read()


READS: dict[str, Callable[[Store, str], bytes | None]] = {
    "get": lambda store, hash: store.blobs.get(hash).data,
    "open": opened_content,
    "sized": lambda store, hash: backend(store).blobs.get_sized(hash, len(LARGE)),
    "many": lambda store, hash: next(store.blobs.get_many([hash])),
    "verify": lambda store, hash: backend(store).blobs.verify(hash),
}


@pytest.mark.parametrize("way", READS)
@pytest.mark.parametrize("data", [LARGE, LARGE * (FILE_MIN_BYTES // len(LARGE) + 1)])
def test_a_read_that_meets_the_move_of_its_file(
    disk_store: Store, monkeypatch: pytest.MonkeyPatch, way: str, data: bytes
) -> None:
    hash = disk_store.put(data).hash
    age(disk_store)
    objects = backend(disk_store).blobs._objects
    opened = objects._open

    def pack_first(hash: str) -> int:
        monkeypatch.undo()
        cold.pack(disk_store, older_than=1)
        return opened(hash)

    with reopened(disk_store) as other:
        monkeypatch.setattr(backend(other).blobs._objects, "_open", pack_first)
        assert READS[way](other, hash) in (data, None)
    assert fsck.check(disk_store).faults == []
