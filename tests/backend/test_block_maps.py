"""Large blobs that changed a little: stored as blocks of others, read, kept, purged."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from casfs.backend.block_changes import MAX_RUNS
from casfs.backend.block_maps import MIN_BYTES, BlockMap, Run
from casfs.backend.derived import total_stored
from casfs.backend.disk import DiskBackend
from casfs.backend.protocols import HeadName, discard
from casfs.backend.sqlite_statements import key_of
from casfs.backend.tiers import Tiers
from casfs.digest import Digest
from casfs.errors import CorruptBlob, NotFound, Purged
from casfs.maintenance import fsck, gc
from casfs.packs.layout import BLOCK_BYTES
from casfs.packs.reader import open_pack
from casfs.store import tombstones
from casfs.store.store import Store
from casfs.store.tombstones import Tombstone
from tests.support.block_maps import FIRST, changed, is_mapped, put_change, stage_change
from tests.support.helpers import private_files, set_head
from tests.support.maintenance import age, sql
from tests.support.new_store import init_store
from tests.support.packs import backend, files, freeze, packs


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with init_store(tmp_path / "store") as made:
        yield made


def hold(store: Store, name: str, *hashes: str) -> None:
    """Has a head keep blobs."""
    node = store.put_node("content", {"text": name, "artifacts": list(hashes)})
    set_head(store, f"held/{name}", node.hash)


def release(store: Store, name: str) -> None:
    head = HeadName(f"held/{name}")
    with store.batch() as batch:
        batch.swap(head, batch.head(head), None)


def two_versions(store: Store) -> tuple[str, str, bytes]:
    """Returns the hashes of a file and of its next version, which is mapped, and the latter."""
    first = store.put(FIRST).hash
    data = changed(FIRST, 1)
    return first, put_change(store, data, first), data


def check(store: Store, hash: str, data: bytes) -> None:
    """Every way to read, in this process and in a new one."""
    for opened in (backend(store), DiskBackend(store.root)):
        blobs = opened.blobs
        assert blobs.get(hash).data == data
        assert blobs.get_sized(hash, len(data)) == data
        assert blobs.info([hash])[hash].size == len(data)
        assert list(blobs.get_many([hash])) == [None]
        for stream in (blobs.open(hash), blobs.stream(hash)):
            with stream as source:
                assert source.read() == data
                assert source.seek(BLOCK_BYTES - 3) == BLOCK_BYTES - 3
                assert source.read(7) == data[BLOCK_BYTES - 3 : BLOCK_BYTES + 4]
                assert source.seek(-5, os.SEEK_END) == len(data) - 5
                assert source.read(99) == data[-5:]
        blobs.verify(hash)
        if opened is not store.backend:
            opened.close()


def sources(store: Store, hash: str) -> list[str]:
    return backend(store).blobs.block_maps([hash])[hash].sources


def is_on_disk(store: Store, data: bytes) -> bool:
    return any(data in path.read_bytes() for path in store.root.rglob("*") if path.is_file())


# -- what is stored -----------------------------------------------------------------------------


def test_ten_versions_cost_their_differences(store: Store) -> None:
    versions = [FIRST]
    hashes = [store.put(FIRST).hash]
    for number in range(10):
        versions.append(changed(versions[-1], 3 * number, 50 + number, seed=number))
        hashes.append(put_change(store, versions[-1], hashes[-1]))
    for hash, data in zip(hashes, versions, strict=True):
        if hash != hashes[0]:
            check(store, hash, data)
    assert total_stored(store.blobs).bytes < len(FIRST) + 21 * (BLOCK_BYTES + 1000)
    assert len(sources(store, hashes[-1])) == 11
    assert private_files(store.root) == []
    assert fsck.check(store).faults == []


def test_bytes_can_be_added_and_cut_off(store: Store) -> None:
    first = store.put(FIRST).hash
    for size in (len(FIRST) - 3 * BLOCK_BYTES, len(FIRST) - 1, MIN_BYTES):
        check(store, put_change(store, FIRST[:size], first), FIRST[:size])
    longer = FIRST + b"more"
    second = put_change(store, longer, first)
    check(store, second, longer)
    check(store, put_change(store, longer + b"still more", second), longer + b"still more")
    # A partial last block is always in the patch; a prefix of whole blocks needs no patch.
    assert backend(store).blobs.block_maps([Digest.of(FIRST[:MIN_BYTES]).hash]).popitem()[1] == (
        BlockMap([first], [Run(0, 0, MIN_BYTES // BLOCK_BYTES)])
    )


def test_what_differs_too_much_or_is_short_is_kept_whole(store: Store) -> None:
    first = store.put(FIRST).hash
    half = changed(FIRST, *range(len(FIRST) // BLOCK_BYTES // 2 + 1))
    assert stage_change(store, half, first) is None
    assert stage_change(store, FIRST[: MIN_BYTES - 1], first) is None
    assert stage_change(store, FIRST, store.put(b"short").hash) is None
    assert stage_change(store, FIRST, Digest.of(b"absent").hash) is None
    assert private_files(store.root) == []


def test_what_grows_while_it_is_read_is_what_was_read(store: Store) -> None:
    class Growing(io.BytesIO):
        """More is there after its end was seen."""

        def read(self, size: int | None = -1) -> bytes:
            data = super().read(size)
            if not data:
                position = self.tell()
                self.write(b"more" * 5000)
                self.seek(position)
            return data

    first = store.put(FIRST).hash
    data = FIRST + b"tail" * 15000
    staged = backend(store).blobs.stage_change(Growing(data), len(data), first)
    assert staged is not None
    assert staged.digest == Digest.of(data)
    backend(store).publish([staged])
    check(store, staged.digest.hash, data)


def test_any_part_of_a_map_can_be_cut() -> None:
    count = 2 * MAX_RUNS
    runs = [Run(number % 2, number, 1) for number in range(count)]
    block_map = BlockMap(["ab" * 32, "cd" * 32], runs)
    starts = block_map.starts()
    cut = [piece for first in range(0, count, 5) for piece in block_map.cut(starts, first, 5)]
    assert cut == [(block_map.sources[run.source], run.first, run.blocks) for run in runs]


def test_a_map_of_too_many_sources_is_not_made(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("casfs.backend.block_changes.MAX_SOURCES", 2)
    _, second, data = two_versions(store)
    assert stage_change(store, changed(data, 2), second) is None
    check(store, put_change(store, changed(data, 1, seed=3), second), changed(data, 1, seed=3))


@settings(max_examples=12, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, len(FIRST) - 1), st.binary(min_size=1, max_size=300)), max_size=8
    ),
    st.integers(MIN_BYTES, len(FIRST) + 3 * BLOCK_BYTES),
    st.lists(st.tuples(st.integers(0, len(FIRST)), st.integers(0, 200_000)), max_size=8),
)
def test_any_change_is_read_back(
    tmp_path_factory: pytest.TempPathFactory,
    edits: list[tuple[int, bytes]],
    size: int,
    reads: list[tuple[int, int]],
) -> None:
    with init_store(tmp_path_factory.mktemp("store") / "s") as store:
        base = store.put(FIRST).hash
        versions = [FIRST]
        for part in (edits[::2], edits[1::2]):
            data = bytearray(versions[-1][:size].ljust(size, b"+"))
            for at, piece in part:
                data[at : at + len(piece)] = piece
            versions.append(bytes(data))
            staged = stage_change(store, versions[-1], base)
            assert staged is not None
            backend(store).publish([staged])
            base = staged.digest.hash
        with store.blobs.open(base) as source:
            for at, count in reads:
                source.seek(at)
                assert source.read(count) == versions[-1][at : at + count]
        assert store.get(base) == versions[-1]


def test_a_damaged_map_is_refused() -> None:
    block_map = BlockMap(["ab" * 32, "cd" * 32], [Run(0, 0, 127), Run(1, 0, 1)])
    hash = "ef" * 32
    encoded = block_map.encode(hash)
    assert BlockMap.decode(hash, MIN_BYTES, encoded) == block_map
    for bad in (
        encoded[:-1],
        encoded[:17],
        encoded[:20] + b"\1" + encoded[21:],
        b"",
        encoded + b"\0",
    ):
        with pytest.raises(CorruptBlob):
            BlockMap.decode(hash, MIN_BYTES, bad)
    with pytest.raises(CorruptBlob):  # of another blob
        BlockMap.decode("ee" * 32, MIN_BYTES, encoded)
    with pytest.raises(CorruptBlob):
        BlockMap.decode(hash, MIN_BYTES + 1, encoded)


# -- a life -------------------------------------------------------------------------------------


def test_sources_stay_as_long_as_a_blob_has_blocks_of_them(store: Store) -> None:
    first = store.put(FIRST).hash
    second = put_change(store, changed(FIRST, 1, 2), first)
    third_data = changed(changed(FIRST, 1, 2), 2, seed=9)
    third = put_change(store, third_data, second)
    hold(store, "third", third)
    age(store)
    gc.collect(store)
    assert store.blobs.info([first, second]).keys() == {first}
    check(store, third, third_data)
    release(store, "third")
    age(store)
    gc.collect(store)
    assert files(store) == []
    assert total_stored(store.blobs).files == 0


def test_what_is_staged_needs_its_base_still(store: Store) -> None:
    first = store.put(FIRST).hash
    staged = stage_change(store, changed(FIRST, 1), first)
    assert staged is not None
    age(store)
    gc.collect(store)
    with pytest.raises(NotFound):
        backend(store).publish([staged])
    discard([staged])
    assert private_files(store.root) == []


def test_what_only_was_a_base_is_kept_by_a_publication_during_gc(store: Store) -> None:
    first = store.put(FIRST).hash
    staged = stage_change(store, changed(FIRST, 1), first)
    assert staged is not None
    age(store)
    with backend(store).collection() as run:
        backend(store).publish([staged])
        swept = run.sweep(1 << 60, lambda hashes: [*map(run.mark, [hashes])], dry_run=False)
        assert first not in [hash for hash, _ in swept]
    check(store, staged.digest.hash, changed(FIRST, 1))


def test_a_patch_is_hidden(store: Store) -> None:
    first = store.put(FIRST).hash
    second = put_change(store, changed(FIRST, 1), first)
    patch = sources(store, second)[-1]
    shown = store.shown()
    assert shown.blobs.info([first, second, patch]).keys() == {first, second}
    assert shown.get(second) == changed(FIRST, 1)


def test_a_private_base_stays_private(store: Store) -> None:
    staged = backend(store).blobs.stage(io.BytesIO(FIRST))
    first = staged.digest.hash
    backend(store).publish([staged], local=[first])
    second = put_change(store, changed(FIRST, 1), first)
    shown = store.shown()
    assert shown.blobs.info([first, second]).keys() == {second}
    assert shown.get(second) == changed(FIRST, 1)


def test_cold_sources_are_read(store: Store) -> None:
    first, second, data = two_versions(store)
    hold(store, "both", first, second)
    freeze(store)
    assert files(store) == []
    check(store, second, data)
    assert store.get(first) == FIRST
    freeze(store)
    # Nothing is brought back for a comparison.
    assert stage_change(store, changed(data, 2), second) is None
    assert files(store) == []


# -- purges -------------------------------------------------------------------------------------


def purge(store: Store, hash: str, size: int) -> None:
    tombstones.add(store, [Tombstone(hash, size, 1)])


def test_a_purged_base_takes_no_other_blob_with_it(store: Store) -> None:
    first, second, data = two_versions(store)
    purge(store, first, len(FIRST))
    with pytest.raises(Purged):
        store.get(first)
    assert backend(store).blobs.block_maps([second]) == {}
    assert store.get(second) == data
    only_first = FIRST[BLOCK_BYTES : 2 * BLOCK_BYTES]
    assert not is_on_disk(store, only_first)
    assert fsck.check(store).faults == []


def test_of_a_purged_change_nothing_is_left(store: Store) -> None:
    first = store.put(FIRST).hash
    data = changed(FIRST, 1, 5)
    second = put_change(store, data, first)
    later = changed(data, 5, seed=7)
    third = put_change(store, later, second)
    patch = sources(store, second)[-1]
    assert patch in sources(store, third)
    purge(store, second, len(data))
    assert store.get(first) == FIRST
    assert store.get(third) == later
    assert store.blobs.info([patch]) == {}
    assert not is_on_disk(store, data[5 * BLOCK_BYTES : 6 * BLOCK_BYTES])
    assert fsck.check(store).faults == []


def test_purged_bytes_that_come_as_a_change_are_not_stored(store: Store) -> None:
    first = store.put(FIRST).hash
    data = changed(FIRST, 1)
    purge_hash = Digest.of(data).hash
    purge(store, purge_hash, len(data))
    staged = stage_change(store, data, first)
    assert staged is not None
    backend(store).publish([staged])
    discard([staged])
    with pytest.raises(Purged):
        store.get(purge_hash)
    assert not is_on_disk(store, data[BLOCK_BYTES : 2 * BLOCK_BYTES])


def test_a_change_of_what_was_purged_meanwhile_is_refused(store: Store) -> None:
    first = store.put(FIRST).hash
    staged = stage_change(store, changed(FIRST, 1), first)
    assert staged is not None
    purge(store, first, len(FIRST))
    with pytest.raises(NotFound, match="try again"):
        backend(store).publish([staged])
    discard([staged])


def test_of_a_purged_change_nothing_is_left_after_its_base_was_purged(store: Store) -> None:
    first, second, data = two_versions(store)
    purge(store, first, len(FIRST))
    assert store.get(second) == data
    purge(store, second, len(data))
    assert not is_on_disk(store, data[BLOCK_BYTES : 2 * BLOCK_BYTES])
    assert sql(store, "SELECT * FROM patches WHERE NOT purged") == []


def test_of_a_change_that_is_gone_nothing_is_left_after_its_purge(store: Store) -> None:
    first = store.put(FIRST).hash
    data = changed(FIRST, 1, 5)
    second = put_change(store, data, first)
    later = changed(data, 5, seed=7)
    third = put_change(store, later, second)
    hold(store, "third", third)
    age(store)
    gc.collect(store)
    assert second not in store.blobs.info([second])
    purge(store, second, len(data))
    assert store.get(third) == later
    assert not is_on_disk(store, data[5 * BLOCK_BYTES : 6 * BLOCK_BYTES])
    assert fsck.check(store).faults == []


def test_a_blob_and_its_patch_are_purged_together(store: Store) -> None:
    _, second, data = two_versions(store)
    patch = sources(store, second)[-1]
    size = store.blobs.info([patch])[patch].size
    tombstones.add(store, [Tombstone(second, len(data), 1), Tombstone(patch, size, 1)])
    assert not is_on_disk(store, data[BLOCK_BYTES : 2 * BLOCK_BYTES])
    assert fsck.check(store).faults == []


def test_a_killed_purge_is_ended_by_gc(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, data = two_versions(store)
    patch = sources(store, second)[-1]
    hold(store, "both", first, second)
    freeze(store)
    assert packed_hashes(store) >= {first, patch}
    with monkeypatch.context() as killed:
        killed.setattr(backend(store).blobs, "erase", lambda **_: None)
        purge(store, second, len(data))
    assert packed_hashes(store) >= {first, patch}
    gc.collect(store)
    assert store.blobs.info([second])[second].purged
    assert patch not in packed_hashes(store)
    assert store.get(first) == FIRST
    assert sql(store, "SELECT * FROM patches WHERE NOT purged") == []


def test_a_purge_and_a_packing_at_once_leave_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, data = two_versions(store)
    patch = sources(store, second)[-1]
    sizes = {hash: info.size for hash, info in store.blobs.info([first, patch]).items()}
    original = Tiers._write

    def purging(self: Tiers, *args: Any) -> Any:
        written = original(self, *args)
        purge(store, second, len(data))
        return written

    with monkeypatch.context() as race:
        race.setattr(Tiers, "_write", purging)
        backend(store).tiers.move([(patch, sizes[patch]), (first, sizes[first])], "cold")
    assert patch not in packed_hashes(store)
    assert store.get(first) == FIRST


def test_a_quarantined_patch_goes_with_its_blob(store: Store) -> None:
    first = store.put(FIRST).hash
    hold(store, "first", first)
    data = changed(FIRST, 1)
    second = put_change(store, data, first)
    damage(store, sources(store, second)[-1], 0)
    fsck.check(store)
    age(store)
    gc.collect(store)
    assert store.put(data).hash == second
    purge(store, second, len(data))
    secret = data[BLOCK_BYTES + 1000 : 2 * BLOCK_BYTES]
    assert not is_on_disk(store, secret)


def test_a_tombstone_from_elsewhere_takes_a_patch_along(store: Store) -> None:
    first = store.put(FIRST).hash
    data = changed(FIRST, 1, 5)
    second = put_change(store, data, first)
    third = put_change(store, changed(data, 5, seed=7), second)
    hold(store, "third", third)
    age(store)
    gc.collect(store)
    tombstones.take(store.backend, [Tombstone(second, len(data), 1)])
    assert not is_on_disk(store, data[5 * BLOCK_BYTES : 6 * BLOCK_BYTES])
    assert store.get(third) == changed(data, 5, seed=7)


def packed_hashes(store: Store) -> set[str]:
    """The members of all packs, whether they have a row or not."""
    members: set[str] = set()
    for path in packs(store):
        index = open_pack(path).index
        members.update(index.member(number).hash for number in range(index.members))
    return members


def test_a_purge_goes_on_beside_a_damaged_user(store: Store) -> None:
    first = store.put(FIRST).hash
    second = put_change(store, changed(FIRST, 1), first)
    damage(store, first, 9)
    purge(store, first, len(FIRST))
    assert store.blobs.info([first, second]).keys() == {first}
    with pytest.raises(Purged):
        store.get(first)


def test_a_change_of_what_was_purged_and_allowed_again_is_refused(store: Store) -> None:
    first = store.put(FIRST).hash
    staged = stage_change(store, changed(FIRST, 1), first)
    assert staged is not None
    purge(store, first, len(FIRST))
    tombstones.remove(store, first)
    with pytest.raises(NotFound, match="try again"):
        backend(store).publish([staged])
    discard([staged])


def test_a_change_of_what_became_a_change_is_refused(store: Store) -> None:
    base = store.put(FIRST).hash
    hold(store, "base", base)
    data = changed(FIRST, 1)
    second = store.put(data).hash
    staged = stage_change(store, changed(data, 2), second)
    assert staged is not None
    age(store)
    gc.collect(store)
    assert put_change(store, data, base) == second
    with pytest.raises(NotFound, match="try again"):
        backend(store).publish([staged])
    discard([staged])


def test_a_change_that_is_stored_already_brings_no_patch(store: Store) -> None:
    first = store.put(FIRST).hash
    data = changed(FIRST, 1)
    staged = [stage_change(store, data, first) for _ in range(2)]
    hash = store.put(data).hash
    for change in staged:
        assert change is not None
        backend(store).publish([change])
        discard([change])
    assert len(files(store)) == 2
    assert not is_mapped(store, hash)


# -- damage -------------------------------------------------------------------------------------


def damage(store: Store, hash: str, block: int) -> None:
    path = store.root / "objects" / hash[:2] / hash[2:]
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(block * BLOCK_BYTES)
        file.write(b"damage")
    path.chmod(0o444)


def test_a_damaged_source_is_never_served(store: Store) -> None:
    first, second, data = two_versions(store)
    check(store, second, data)
    damage(store, first, 9)
    with pytest.raises(CorruptBlob):
        store.get(second)
    # The next version is kept whole.
    assert stage_change(store, changed(data, 3), second) is None
    report = fsck.check(store)
    assert {fault.hash for fault in report.faults} == {first, second}
    store.put(data)
    store.put(FIRST)
    assert (store.get(first), store.get(second)) == (FIRST, data)
    assert fsck.check(store).faults == []


def test_damage_in_another_block_costs_no_other_version(store: Store) -> None:
    first, second, data = two_versions(store)
    damage(store, first, 1)
    assert store.get(second) == data
    with store.blobs.open(second) as source:
        assert source.read() == data
    report = fsck.check(store)
    assert {fault.hash for fault in report.faults} == {first}
    assert not is_mapped(store, second)
    assert store.get(second) == data
    assert fsck.check(store).faults == []


def test_a_damaged_patch_can_be_put_again(store: Store) -> None:
    first, second, data = two_versions(store)
    damage(store, sources(store, second)[-1], 0)
    assert {fault.hash for fault in fsck.check(store).faults} >= {second}
    assert put_change(store, data, first) == second
    check(store, second, data)
    assert fsck.check(store).faults == []


def test_a_base_that_cannot_be_read_is_none(store: Store) -> None:
    first = store.put(FIRST).hash
    path = store.root / "objects" / first[:2] / first[2:]
    path.unlink()
    path.mkdir()
    assert stage_change(store, changed(FIRST, 1), first) is None
    path.rmdir()
    path.symlink_to("/dev/null")
    assert stage_change(store, changed(FIRST, 1), first) is None


@pytest.mark.parametrize("length", [17, 20, 50])
def test_a_damaged_row_is_refused(store: Store, length: int) -> None:
    first = store.put(FIRST).hash
    second = put_change(store, changed(FIRST, 1), first)
    sql(store, "UPDATE blobs SET data = substr(data, 1, ?) WHERE hash = ?", length, key_of(second))
    with pytest.raises(CorruptBlob):
        store.get(second)
    assert {fault.hash for fault in fsck.check(store).faults} == {second}
    age(store)
    gc.collect(store)
    assert files(store) == []
