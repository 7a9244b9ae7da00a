"""Garbage collection: what is needed survives, what is not goes, and only when it may."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import pytest

from casfs.backend.derived import repairable, start_gc, total_stored
from casfs.backend.protocols import Swap, targets
from casfs.errors import Conflict, Corrupt, Invalid
from casfs.maintenance import gc
from casfs.maintenance.gc import GRACE_S, Limits, collect, why
from casfs.store import graph
from casfs.store.store import Store
from casfs.threads import threads
from tests.support.helpers import ABSENT, LARGE, blobs, put_tree, set_head
from tests.support.maintenance import (
    NOTE,
    OLD,
    SECOND,
    age,
    content,
    ended,
    fork,
    put_checkpoint,
    reopened,
    sql,
)
from tests.support.thread_example import make_thread

LONG_BYTES = 3000  # bytes


def reachable(store: Store) -> set[str]:
    return set(
        graph.walk(store, [hash for _, head in store.heads.list() for hash in targets(head)])
    )


def cached(store: Store, name: str, data: bytes, used_at: int, **record: object) -> str:
    """A cache head on a blob of its own; returns the blob."""
    hash = store.put(data).hash
    set_head(store, name, hash, createdAt=used_at, **record)
    return hash


# -- what is kept -------------------------------------------------------------------------


def test_everything_that_a_root_reaches_survives(disk_store: Store) -> None:
    store = disk_store
    thread = ended(store, "one", "two")
    failed = content(store, "a try that failed", store.put(LARGE + b"attempt").hash)
    fork(thread, SECOND, thread.steps[0], status="running", attempts=[failed])
    put_checkpoint(store, {"file": LARGE, "dir": {"inner": b"small"}})
    with store.batch() as batch:
        batch.put_schema(NOTE)
    set_head(store, "workspaces/7", put_tree(store, {"open": b"workspace"}))
    set_head(store, "actions/a", store.put(b"cached").hash, createdAt=1, output={"x": [ABSENT[:9]]})
    needed = reachable(store)
    assert failed in needed
    garbage = {content(store, "garbage", store.put(LARGE + b"!").hash)} | (blobs(store) - needed)
    assert len(garbage) == 2
    age(store)
    result = collect(store)
    assert blobs(store) == needed
    assert (result.freed.blobs, result.kept.blobs) == (2, len(needed))
    assert result.evicted == []
    for _ in graph.walk(store, needed):
        pass
    found = threads.steps(store, threads.get(store, thread.id))
    assert [step.hash for step in found] == thread.steps


def test_files_of_garbage_go_with_their_rows(disk_store: Store) -> None:
    kept = cached(disk_store, "actions/a", LARGE, 1)
    gone = disk_store.put(LARGE + b"!").hash
    age(disk_store)
    result = collect(disk_store)
    files = [path for path in (disk_store.root / "objects").rglob("*") if path.is_file()]
    assert [path.parent.name + path.name for path in files] == [kept]
    assert gone not in blobs(disk_store)
    assert (result.freed.files, result.kept.files) == (1, 1)
    assert result.freed.bytes == len(LARGE) + 1


def test_garbage_goes_after_the_grace_period_and_not_before(disk_store: Store) -> None:
    hash = disk_store.put(b"garbage").hash
    collect(disk_store)
    age(disk_store, GRACE_S - 10)
    collect(disk_store)
    assert hash in blobs(disk_store)
    age(disk_store, 20)
    collect(disk_store)
    assert hash not in blobs(disk_store)


def test_the_grace_period_is_the_callers(disk_store: Store) -> None:
    hash = disk_store.put(b"garbage").hash
    age(disk_store, 100)
    collect(disk_store, grace=110)
    assert hash in blobs(disk_store)
    collect(disk_store, grace=90)
    assert hash not in blobs(disk_store)


def test_a_negative_grace_period_is_refused(disk_store: Store) -> None:
    hash = disk_store.put(b"just put").hash
    with pytest.raises(Invalid):
        collect(disk_store, grace=-100)
    with pytest.raises(Invalid):
        collect(disk_store, keep=-1)
    assert hash in blobs(disk_store)


def test_what_a_young_blob_refers_to_is_young(disk_store: Store) -> None:
    blob = disk_store.put(LARGE).hash
    inner = content(disk_store, "inner", blob)
    middle = content(disk_store, "middle", inner)
    top = content(disk_store, "top", middle)
    age(disk_store)
    touch = "UPDATE blobs SET touched = ? WHERE hash = ?"
    sql(disk_store, touch, int(time.time()), bytes.fromhex(top))
    collect(disk_store)
    assert {blob, inner, middle, top} <= blobs(disk_store)
    age(disk_store)
    collect(disk_store)
    assert not {blob, inner, middle, top} & blobs(disk_store)


def test_putting_a_blob_again_renews_it(disk_store: Store) -> None:
    again, small = disk_store.put(LARGE).hash, disk_store.put(b"small").hash
    node, other = content(disk_store, "node"), disk_store.put(b"other").hash
    age(disk_store)
    disk_store.put(LARGE)
    disk_store.put(b"small")
    content(disk_store, "node")
    collect(disk_store)
    assert {again, small, node} <= blobs(disk_store)
    assert other not in blobs(disk_store)


def test_a_new_node_renews_what_it_refers_to(disk_store: Store) -> None:
    blob = disk_store.put(LARGE).hash
    age(disk_store)
    content(disk_store, "new", blob)
    collect(disk_store)
    assert blob in blobs(disk_store)


def test_a_dropped_thread_is_garbage(disk_store: Store) -> None:
    thread = ended(disk_store, "one", "two")
    disk_store.backend.publish([], [Swap(thread.name, thread.head, None)])
    age(disk_store)
    collect(disk_store)
    assert not {thread.start, *thread.steps} & blobs(disk_store)
    assert thread.workflow in blobs(disk_store)


def test_a_closed_thread_survives_two_runs(disk_store: Store) -> None:
    ended(disk_store, "one")
    age(disk_store)
    collect(disk_store)
    before = blobs(disk_store)
    assert collect(disk_store).freed.blobs == 0
    assert blobs(disk_store) == before


# -- dry run ------------------------------------------------------------------------------


def test_a_dry_run_changes_nothing_and_says_what_the_real_one_does(disk_store: Store) -> None:
    make_thread(disk_store)
    for number in range(5):
        cached(disk_store, f"actions/{number}", bytes([number]) * LONG_BYTES, number)
    disk_store.put(b"garbage")
    content(disk_store, "more", disk_store.put(LARGE).hash)
    age(disk_store)
    before, heads = blobs(disk_store), list(disk_store.heads.list())
    limits = Limits(max_bytes=total_stored(disk_store.blobs).bytes - 2 * LONG_BYTES - len(LARGE))
    dry = collect(disk_store, limits=limits, dry_run=True)
    assert (blobs(disk_store), list(disk_store.heads.list())) == (before, heads)
    real = collect(disk_store, limits=limits)
    assert dry == real
    assert real.evicted
    gone = before - blobs(disk_store)
    assert (len(gone), len(before) - len(gone)) == (real.freed.blobs, real.kept.blobs)
    assert total_stored(disk_store.blobs) == real.kept


# -- why ----------------------------------------------------------------------------------


def test_why_gives_the_path_from_a_root(disk_store: Store) -> None:
    blob = disk_store.put(LARGE).hash
    thread = make_thread(disk_store)
    thread.step("planner", "one")
    step = thread.step("planner", "with an artifact", artifacts=[blob])
    thread.end()
    path = why(disk_store, blob)
    assert path is not None
    said = disk_store.node(step).payload["content"]
    assert path == [thread.name, thread.head.hash, step, said, blob]
    for above, below in pairwise(path[1:]):
        assert below in graph.refs(disk_store, above)


def test_why_of_a_root_itself_and_of_a_hash_in_a_record(disk_store: Store) -> None:
    blob = disk_store.put(b"an attempt").hash
    set_head(disk_store, "threads/T", disk_store.put(b"head").hash, attempts=[{"deep": [blob]}])
    assert why(disk_store, blob) == ["threads/T", blob]


def test_why_of_garbage_is_none(disk_store: Store) -> None:
    make_thread(disk_store)
    assert why(disk_store, disk_store.put(b"garbage").hash) is None
    assert why(disk_store, ABSENT) is None


# -- cache --------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", gc.CACHE_PREFIXES)
def test_cache_is_kept_while_no_limit_asks_for_it(disk_store: Store, prefix: str) -> None:
    hash = cached(disk_store, f"{prefix}one", LARGE, 1)
    age(disk_store)
    assert collect(disk_store).evicted == []
    assert hash in blobs(disk_store)


def test_the_least_recently_used_goes_first(disk_store: Store) -> None:
    used = {"actions/a": 30, "plugins/b/1": 10, "plugins/c": 40, "actions/d": 20, "plugins/e": 50}
    made = {name: cached(disk_store, name, name.encode() * 300, at) for name, at in used.items()}
    age(disk_store)
    total = total_stored(disk_store.blobs).bytes
    sizes = {name: len(name) * 300 for name in used}
    result = collect(disk_store, limits=Limits(total - sizes["plugins/b/1"] - 1))
    assert sorted(result.evicted) == ["actions/d", "plugins/b/1"]
    assert {name for name in used if disk_store.heads.get(name) is None} == set(result.evicted)
    assert {name for name in used if made[name] not in blobs(disk_store)} == set(result.evicted)
    assert result.kept.bytes <= total - sizes["plugins/b/1"] - 1


def test_a_limit_that_is_met_evicts_nothing(disk_store: Store) -> None:
    for number in range(3):
        cached(disk_store, f"actions/{number}", bytes([number]) * LONG_BYTES, number)
    age(disk_store)
    total = total_stored(disk_store.blobs)
    assert collect(disk_store, limits=Limits(total.bytes, total.files)).evicted == []


def test_a_limit_never_takes_more_than_cache(disk_store: Store) -> None:
    thread = ended(disk_store, "one")
    put_checkpoint(disk_store, {"file": LARGE})
    before = reachable(disk_store)
    cached(disk_store, "actions/a", LARGE + b"!", 1)
    age(disk_store)
    result = collect(disk_store, limits=Limits(0, 0))
    assert result.evicted == ["actions/a"]
    assert blobs(disk_store) == before
    assert disk_store.heads.get(thread.name) == thread.head


def test_a_limit_on_files(disk_store: Store) -> None:
    for number in range(6):
        cached(disk_store, f"actions/{number}", bytes([number]) * LONG_BYTES, number)
        cached(disk_store, f"plugins/{number}", b"no file %d" % number, 100)
    age(disk_store)
    result = collect(disk_store, limits=Limits(max_files=2))
    assert sorted(result.evicted) == [f"actions/{number}" for number in range(4)]
    assert total_stored(disk_store.blobs).files == 2
    assert (result.kept.files, result.freed.files) == (2, 4)


def test_what_a_kept_head_shares_survives(disk_store: Store) -> None:
    shared = disk_store.put(LARGE).hash
    old, new = content(disk_store, "old", shared), content(disk_store, "new", shared)
    set_head(disk_store, "actions/old", old, createdAt=1)
    set_head(disk_store, "actions/new", new, createdAt=2)
    age(disk_store)
    kept = total_stored(disk_store.blobs).bytes - 10
    assert collect(disk_store, limits=Limits(kept)).evicted == ["actions/old"]
    assert {shared, new} <= blobs(disk_store)
    assert old not in blobs(disk_store)


def test_young_cache_loses_its_name_but_not_its_bytes(disk_store: Store) -> None:
    hash = cached(disk_store, "actions/a", LARGE, 1)
    assert collect(disk_store, limits=Limits(0)).evicted == ["actions/a"]
    assert hash in blobs(disk_store)
    age(disk_store)
    collect(disk_store)
    assert hash not in blobs(disk_store)


def test_a_cache_head_that_is_used_meanwhile_stays_whole(disk_store: Store) -> None:
    """Somebody has a hit on it after gc chose it and before gc drops it."""
    output = content(disk_store, "output", disk_store.put(LARGE).hash)
    hash = cached(disk_store, "actions/a", b"result", 1, output=output)
    age(disk_store)

    def use(blobs_done: int, bytes_done: int) -> None:
        set_head(disk_store, "actions/a", hash, createdAt=2, output=output)

    result = collect(disk_store, limits=Limits(0), progress=use)
    assert result.evicted == []
    assert {hash, output, *graph.walk(disk_store, [output])} <= blobs(disk_store)
    assert result.kept.blobs == len(blobs(disk_store))


def test_old_checkpoints_are_cache_only_when_a_limit_is_exceeded(disk_store: Store) -> None:
    heads = [put_checkpoint(disk_store, {"f": bytes([n]) * LONG_BYTES}, at=n) for n in range(4)]
    other = put_checkpoint(disk_store, {"f": b"other" * 999}, "another", at=1)
    age(disk_store)
    total = total_stored(disk_store.blobs).bytes
    assert collect(disk_store, keep=2).evicted == []
    assert collect(disk_store, keep=2, limits=Limits(total)).evicted == []
    assert collect(disk_store, limits=Limits(0)).evicted == []
    assert collect(disk_store, keep=2, limits=Limits(total - 1)).evicted == heads[:1]
    assert collect(disk_store, keep=2, limits=Limits(0)).evicted == [heads[1]]
    assert [name for name, _ in disk_store.heads.list("checkpoints/")] == [other, *heads[2:]]


# -- damage and company -------------------------------------------------------------------


def planted(store: Store) -> tuple[str, str]:
    """A thread with an old step that gc has to read, and garbage; (the step, the garbage)."""
    thread = ended(store, "one", "two", "three")
    garbage = store.put(b"garbage").hash
    age(store)
    return thread.steps[1], garbage


def test_a_broken_node_stops_a_run_before_anything_is_deleted(disk_store: Store) -> None:
    step, garbage = planted(disk_store)
    sql(disk_store, "UPDATE blobs SET data = x'00' WHERE hash = ?", bytes.fromhex(step))
    cached(disk_store, "actions/a", b"x", 1)
    with reopened(disk_store) as store:
        with pytest.raises(Corrupt, match="fsck"):
            collect(store, limits=Limits(0))
        assert garbage in blobs(store)
        assert store.heads.get("actions/a") is not None


def test_a_missing_node_stops_a_run_before_anything_is_deleted(disk_store: Store) -> None:
    """Else all that only it refers to would be lost, though the node itself may come back."""
    step, garbage = planted(disk_store)
    repairable(disk_store.blobs).quarantine(step)
    before = blobs(disk_store)
    with pytest.raises(Corrupt, match=step):
        collect(disk_store)
    assert blobs(disk_store) == before
    assert garbage in before


def test_a_head_to_nothing_stops_a_run(disk_store: Store) -> None:
    thread = ended(disk_store, "one")
    age(disk_store)
    repairable(disk_store.blobs).quarantine(thread.head.hash)
    with pytest.raises(Corrupt, match=thread.head.hash):
        collect(disk_store)
    assert set(thread.steps) <= blobs(disk_store)


def test_a_message_that_looks_like_a_hash_is_no_root(disk_store: Store) -> None:
    put_checkpoint(disk_store, {"f": b"x"}, message=ABSENT)
    age(disk_store)
    assert collect(disk_store).freed.blobs == 0


def test_after_a_failed_run_the_next_one_works(disk_store: Store) -> None:
    step, garbage = planted(disk_store)
    blob = disk_store.blobs.get(step)
    repairable(disk_store.blobs).quarantine(step)
    with pytest.raises(Corrupt):
        collect(disk_store)
    with disk_store.batch() as batch:
        batch.put_encoded(blob.data)
    collect(disk_store)
    assert garbage not in blobs(disk_store)
    assert step in blobs(disk_store)


def test_two_runs_at_once_conflict(disk_store: Store) -> None:
    with start_gc(disk_store.backend), pytest.raises(Conflict, match="another gc"):
        collect(disk_store)
    collect(disk_store)


def test_two_runs_of_two_openings_conflict(disk_store: Store) -> None:
    with (
        reopened(disk_store) as other,
        start_gc(disk_store.backend),
        pytest.raises(Conflict, match="another gc"),
    ):
        collect(other)


def test_what_is_put_while_a_run_marks_survives(disk_store: Store) -> None:
    """A dedup hit, and a new node, on what gc has already decided against."""
    old, other = disk_store.put(LARGE).hash, disk_store.put(b"other").hash
    doomed = disk_store.put(b"doomed").hash
    age(disk_store)
    made: list[str] = []

    def meanwhile(blobs_done: int, bytes_done: int) -> None:
        if not made:
            made.append(content(disk_store, "new", old))
            disk_store.put(b"other")

    collect(disk_store, progress=meanwhile)
    assert {old, other, *made} <= blobs(disk_store)
    assert doomed not in blobs(disk_store)


def test_progress_is_told_and_grows(disk_store: Store) -> None:
    counts: list[int] = []
    age(disk_store, OLD)
    collect(disk_store, progress=lambda blobs, bytes: counts.append(blobs))
    assert counts == sorted(counts)
    assert counts[-1] == total_stored(disk_store.blobs).blobs


def test_a_file_that_a_crash_left_is_removed(disk_store: Store, tmp_path: Path) -> None:
    hash = disk_store.put(LARGE).hash
    sql(disk_store, "DELETE FROM blobs WHERE hash = ?", bytes.fromhex(hash))
    path = disk_store.root / "objects" / hash[:2] / hash[2:]
    collect(disk_store, dry_run=True)
    collect(disk_store, grace=GRACE_S)
    assert path.exists()
    with pytest.MonkeyPatch.context() as patch:
        now = time.time()
        patch.setattr("casfs.maintenance.gc.time.time", lambda: now + OLD)
        collect(disk_store)
    assert not path.exists()
