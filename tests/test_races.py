"""Races, one instant after the other: what a writer, a gc or an fsck finds when another came
between two of its transactions. `test_concurrency` lets processes look for them."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from casfs.backend import disk_gc
from casfs.backend.derived import repairable, start_gc
from casfs.backend.disk import DiskBackend
from casfs.backend.protocols import Head, targets
from casfs.errors import Conflict, Corrupt, NotFound
from casfs.maintenance import fsck, gc
from casfs.store import graph
from casfs.store.store import Store
from tests.support.helpers import ABSENT, LARGE, blobs, private_files

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let a day go by: what was touched so far is old."""
    real, passed = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() + passed[0])

    def tick() -> None:
        passed[0] += 2 * gc.GRACE_S

    return tick


@pytest.fixture
def other(disk_store: Store) -> Iterator[Store]:
    """The same store in another process, as far as the store can tell."""
    with Store.open(disk_store.root) as opened:
        yield opened


def content(store: Store, text: str, *artifacts: str) -> str:
    return store.put_node("content", {"text": text, "artifacts": list(artifacts)}).hash


def hold(store: Store, name: str, hash: str, **record: Any) -> None:
    with store.batch() as batch:
        batch.swap(name, store.heads.get(name), Head(hash, record))


def sound(store: Store) -> bool:
    for _, head in store.heads.list():
        for hash in graph.walk(store, targets(head)):
            store.get(hash)
    return fsck.check(store, quarantine=False).faults == []


def test_a_batch_whose_first_part_was_collected_moves_no_head(
    disk_store: Store, other: Store, later: Callable[[], None]
) -> None:
    batch = disk_store.batch()
    blob = batch.put(b"first")
    batch.commit()
    later()
    gc.collect(other)
    node = batch.put_node("content", {"text": "t", "artifacts": [blob.hash]})
    batch.swap("name", None, Head(node.hash))
    with pytest.raises(NotFound, match="collected meanwhile"):
        batch.commit()
    assert disk_store.heads.get("name") is None
    assert sound(disk_store)


@pytest.mark.parametrize(("data", "brought"), [(b"small", [2]), (LARGE, [0, 2])])
def test_a_dedup_hit_that_is_collected_the_next_moment_is_stored_anew(
    data: bytes,
    brought: list[int],
    disk_store: Store,
    other: Store,
    later: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hash = disk_store.put(data).hash
    node = content(disk_store, "t", hash)
    later()
    publish = disk_store.backend.publish
    calls = []

    def collect_first(*arguments: Any) -> set[str]:
        if not calls:
            gc.collect(other)
        calls.append(arguments)
        return publish(*arguments)

    monkeypatch.setattr(disk_store.backend, "publish", collect_first)
    with disk_store.batch() as batch:
        batch.put(data)
        assert batch.put_node("content", {"text": "t", "artifacts": [hash]}).hash == node
        batch.swap("name", None, Head(node))
    assert [len(staged) for staged, *_ in calls] == brought
    assert disk_store.get(hash) == data
    assert sound(disk_store)
    assert private_files(disk_store.root) == []


def test_a_dedup_hit_keeps_what_it_met(
    disk_store: Store, other: Store, later: Callable[[], None]
) -> None:
    hash = disk_store.put(LARGE).hash
    later()
    disk_store.put(LARGE)
    assert gc.collect(other).freed.blobs == 0
    assert disk_store.get(hash) == LARGE


def test_a_head_cannot_move_to_what_was_collected(
    disk_store: Store, other: Store, later: Callable[[], None]
) -> None:
    node = content(disk_store, "garbage", disk_store.put(LARGE).hash)
    later()
    gc.collect(other)
    with pytest.raises(NotFound):
        hold(disk_store, "name", node)
    with pytest.raises(NotFound, match="collected meanwhile"):
        content(disk_store, "over it", node)


def test_a_head_that_moves_to_garbage_during_a_gc_keeps_all_of_it(
    disk_store: Store, other: Store, later: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever instant of the run it is, between any two deletions: then the head cannot
    move, or everything below it stays."""
    moved = 0
    for instant in range(8):
        node = content(disk_store, f"{instant}")
        for level in range(3):
            node = content(disk_store, f"{level}", node, disk_store.put(b"%d" % level).hash)
        later()
        monkeypatch.setattr(disk_gc, "BATCH_ROWS", 1)
        for number, _ in enumerate(sweeping(other)):
            if number == instant:
                try:
                    hold(disk_store, f"name-{instant}", node)
                    moved += 1
                except NotFound:
                    assert disk_store.heads.get(f"name-{instant}") is None
        assert sound(disk_store)
    assert 0 < moved < 8


def sweeping(store: Store) -> Iterator[None]:
    """The run of a gc, and a pause before and after each of its transactions."""
    with start_gc(store.backend) as collection:

        def follow(hashes: list[str]) -> None:
            nodes = collection.mark(hashes)
            while nodes:
                nodes = collection.mark([ref for hash in nodes for ref in graph.refs(store, hash)])

        for _, head in store.heads.list():
            follow(targets(head))
        yield
        for _ in collection.sweep(int(time.time()) - gc.GRACE_S, follow, dry_run=False):
            yield


@pytest.mark.parametrize("put_back", [False, True])
def test_a_gc_that_breaks_off_leaves_no_node_without_its_refs(
    put_back: bool,
    disk_store: Store,
    other: Store,
    later: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`put_back`: plain bytes that become a node, after what they refer to."""
    if put_back:
        disk_store.put(b"{}")
        payload = {"text": "top", "artifacts": [LEAF]}
        with Store.memory() as elsewhere:
            elsewhere.put(b"leaf")
            disk_store.put(elsewhere.get(elsewhere.put_node("content", payload).hash))
    leaf = disk_store.put(b"leaf").hash
    top = content(disk_store, "over", content(disk_store, "top", leaf))
    later()
    monkeypatch.setattr(disk_gc, "BATCH_ROWS", 1)
    left = len(blobs(disk_store))
    while top in blobs(disk_store) or leaf in blobs(disk_store):
        run = sweeping(other)
        next(run)
        next(run)
        run.close()  # as a kill would
        assert sound(disk_store)
        assert len(blobs(disk_store)) == left - 1
        left -= 1


with Store.memory() as _leaf:
    LEAF = _leaf.put(b"leaf").hash


def test_what_a_head_s_record_begins_to_mention_during_a_gc_stays(
    disk_store: Store, other: Store, later: Callable[[], None]
) -> None:
    kept, mentioned = disk_store.put(b"kept").hash, content(disk_store, "why it failed")
    hold(disk_store, "name", kept)
    later()
    run = sweeping(other)
    next(run)  # the heads have been read
    hold(disk_store, "name", kept, attempts=[mentioned])
    for _ in run:
        pass
    assert disk_store.get(mentioned)
    assert sound(disk_store)


def test_a_record_cannot_begin_to_mention_what_is_not_there(disk_store: Store) -> None:
    kept = disk_store.put(b"kept").hash
    with pytest.raises(NotFound):
        hold(disk_store, "name", kept, attempts=[ABSENT])
    hold(disk_store, "name", kept, message=ABSENT)  # somebody's words, whatever they look like
    assert sound(disk_store)


def test_a_file_that_a_crash_left_is_replaced_by_the_content(disk_store: Store) -> None:
    hash = disk_store.put(LARGE).hash
    repairable(disk_store.blobs).quarantine(hash)
    path = disk_store.root / "objects" / hash[:2] / hash[2:]
    path.write_bytes(b"torn")
    with pytest.raises(NotFound):
        disk_store.get(hash)
    disk_store.put(LARGE)
    assert disk_store.get(hash) == LARGE
    assert path.stat().st_mode & 0o777 == 0o444


def test_a_blob_put_back_between_the_row_and_the_file_keeps_its_file(
    disk_store: Store, other: Store, later: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    hash = disk_store.put(LARGE).hash
    later()
    remove = disk_gc.remove_files

    def put_first(*arguments: Any) -> None:
        monkeypatch.setattr(disk_gc, "remove_files", remove)
        disk_store.put(LARGE)
        remove(*arguments)

    monkeypatch.setattr(disk_gc, "remove_files", put_first)
    gc.collect(other)
    assert disk_gc.remove_files is remove
    assert disk_store.get(hash) == LARGE


def test_a_position_is_given_once(
    disk_store: Store, other: Store, later: Callable[[], None]
) -> None:
    """What follows the arrivals misses nothing, though gc took the newest."""
    disk_store.put(b"garbage")
    last = [position for position, _, _ in disk_store.blobs.iterate()][-1]
    later()
    gc.collect(other)
    hash = disk_store.put(b"new").hash
    assert [found for _, found, _ in disk_store.blobs.iterate(last)] == [hash]


def test_bytes_that_become_a_node_arrive_anew(disk_store: Store) -> None:
    with Store.memory() as elsewhere:
        data = elsewhere.get(content(elsewhere, "text"))
    disk_store.put(data)
    last = [position for position, _, _ in disk_store.blobs.iterate()][-1]
    hash = content(disk_store, "text")
    assert [found for _, found, _ in disk_store.blobs.iterate(last)] == [hash]
    assert disk_store.get(hash) == data


def test_fsck_does_not_take_away_what_was_put_back_meanwhile(
    disk_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    hash = disk_store.put(LARGE).hash
    path = disk_store.root / "objects" / hash[:2] / hash[2:]
    path.chmod(0o600)
    path.write_bytes(b"damage")
    tell = fsck._fill_affected_heads

    def heal(store: Store, report: fsck.Report) -> None:
        tell(store, report)
        repairable(store.blobs).quarantine(hash)  # by another fsck
        store.put(LARGE)

    monkeypatch.setattr(fsck, "_fill_affected_heads", heal)
    assert fsck.check(disk_store).quarantined == []
    assert disk_store.get(hash) == LARGE


def test_fsck_finds_no_fault_in_what_gc_takes_meanwhile(
    disk_store: Store, other: Store, later: Callable[[], None]
) -> None:
    for n in range(5):
        content(disk_store, f"{n}", disk_store.put(LARGE + b"%d" % n).hash)
    later()

    def collect_once(blobs_done: int, bytes_done: int) -> None:
        if blobs_done == 1:
            gc.collect(other)

    assert fsck.check(disk_store, progress=collect_once).faults == []


def test_two_gcs_do_not_run_at_once(disk_store: Store, other: Store) -> None:
    with start_gc(disk_store.backend), pytest.raises(Conflict, match="another gc"):
        gc.collect(other)
    gc.collect(other)


def test_a_gc_that_was_killed_is_not_in_the_way(disk_store: Store, other: Store) -> None:
    process = FORK.Process(target=die_in_gc, args=(disk_store.root,))
    process.start()
    process.join()
    hash = disk_store.put(b"noted for a gc that is no more").hash
    hold(disk_store, "name", hash)
    gc.collect(other, grace=0)
    assert sound(disk_store)


def die_in_gc(root: Path) -> None:
    with start_gc(DiskBackend(root)):
        os.kill(os.getpid(), 9)


def test_damage_below_a_root_stops_a_gc(disk_store: Store, later: Callable[[], None]) -> None:
    top = content(disk_store, "top", content(disk_store, "below", disk_store.put(b"leaf").hash))
    garbage = disk_store.put(b"garbage").hash
    hold(disk_store, "name", top)
    repairable(disk_store.blobs).quarantine(disk_store.refs(disk_store.node(top))[0].hash)
    later()
    with pytest.raises(Corrupt, match="nothing was collected"):
        gc.collect(disk_store)
    assert garbage in blobs(disk_store)
