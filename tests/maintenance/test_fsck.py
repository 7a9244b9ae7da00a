"""fsck and repair: damage of each kind is planted, found, set aside and put right again.

The thread of these tests is the one of `thread_example`, on disk, with a checkpoint beside it;
each check opens the store anew, as another process would.
"""

from __future__ import annotations

import os

import pytest

from casfs.backend.derived import count_by_type, repairable, total_stored
from casfs.digest import hash_bytes
from casfs.errors import NotFound
from casfs.maintenance import fsck, repair
from casfs.maintenance.blob_check import detect_type
from casfs.store.nodes.node import encode
from casfs.store.store import Store
from tests.support.damage import (
    LARGE_HASH,
    SMALL_HASH,
    Victim,
    check,
    checkpointed,
    flipped,
    only,
    plant,
    rewrite,
    run_fsck,
)
from tests.support.helpers import (
    ABSENT,
    LARGE,
    put_tree,
    put_unchecked,
    set_head,
)
from tests.support.maintenance import NOTE, SECOND, ended, fork, put_checkpoint, reopened
from tests.support.thread_example import make_thread

# -- a sound store ---------------------------------------------------------------------------


def test_a_sound_store_has_no_faults(victim: Victim) -> None:
    with victim.store.batch() as batch:
        batch.put_schema(NOTE)
    victim.store.put_node("note", {"text": "x", "of": LARGE_HASH})
    counts: list[int] = []
    with reopened(victim.store) as store:
        report = fsck.check(store, progress=lambda blobs, bytes: counts.append(blobs))
        total = total_stored(store.blobs)
        assert (report.blobs, report.bytes) == (total.blobs, total.bytes)
        assert report.nodes == sum(count_by_type(store.blobs).values())
    assert (report.faults, report.quarantined) == ([], [])
    assert counts == list(range(1, report.blobs + 1))
    assert not (victim.root / "quarantine").exists()


def test_a_quarantined_node_is_missing(store: Store) -> None:
    thread = ended(store, "one")
    repairable(store.blobs).quarantine(thread.steps[0])
    fault = only(fsck.check(store))
    assert (fault.kind, fault.hash, fault.takes) == ("missing", thread.steps[0], [thread.name])


# -- bytes -----------------------------------------------------------------------------------


def test_a_bit_flip_in_a_file(victim: Victim) -> None:
    bad = rewrite(victim.file(LARGE_HASH), flipped)
    report = check(victim.store)
    fault = only(report)
    assert (fault.kind, fault.hash) == ("corrupt", LARGE_HASH)
    assert fault.takes == [victim.checkpoint]
    assert report.quarantined == [LARGE_HASH]
    assert victim.aside() == {LARGE_HASH: bad}
    assert not victim.file(LARGE_HASH).exists()


def test_a_bit_flip_in_a_row(victim: Victim) -> None:
    victim.overwrite(SMALL_HASH, flipped(b"a few bytes"))
    fault = only(check(victim.store))
    assert (fault.kind, fault.hash, fault.takes) == ("corrupt", SMALL_HASH, [victim.checkpoint])
    assert victim.aside() == {SMALL_HASH: flipped(b"a few bytes")}


def test_a_bit_flip_in_a_node(victim: Victim) -> None:
    step = victim.thread.steps[1]
    bad = flipped(victim.data(step))
    victim.overwrite(step, bad)
    fault = only(check(victim.store))
    assert (fault.kind, fault.hash, fault.takes) == ("corrupt", step, [victim.thread.name])
    assert victim.aside() == {step: bad}


def test_damage_takes_every_head_that_reaches_it(victim: Victim) -> None:
    """The threads that fork before it are spared."""
    before = fork(victim.thread, SECOND, victim.thread.steps[0])
    behind = fork(victim.thread, SECOND[:-1] + "2", victim.thread.steps[2])
    victim.overwrite(victim.content(1), b"no node at all")
    fault = only(check(victim.store))
    assert fault.takes == [victim.thread.name, behind]
    assert before not in fault.takes


def test_a_hash_in_a_record_counts(victim: Victim) -> None:
    blob = victim.store.put(b"of an attempt").hash
    fork(victim.thread, SECOND, victim.thread.steps[0], status="suspended", attempts=[blob])
    victim.lose(blob)
    fault = only(check(victim.store))
    assert (fault.kind, fault.hash, fault.takes) == ("missing", blob, [f"threads/{SECOND}"])


def test_a_message_that_looks_like_a_hash_is_no_fault(victim: Victim) -> None:
    put_checkpoint(victim.store, {"f": b"x"}, "other", message=ABSENT)
    assert check(victim.store).faults == []


@pytest.mark.parametrize("cut", [0, 1, len(LARGE) - 1])
def test_a_truncated_file(victim: Victim, cut: int) -> None:
    bad = rewrite(victim.file(LARGE_HASH), lambda data: data[:cut])
    assert only(check(victim.store)).kind == "corrupt"
    assert victim.aside() == {LARGE_HASH: bad}


def test_a_file_that_grew(victim: Victim) -> None:
    rewrite(victim.file(LARGE_HASH), lambda data: data + b"\0")
    assert only(check(victim.store)).kind == "corrupt"


def test_a_wrong_size_in_a_row(victim: Victim) -> None:
    victim.sql("UPDATE blobs SET size = 7 WHERE hash = ?", bytes.fromhex(LARGE_HASH))
    fault = only(check(victim.store))
    assert (fault.kind, fault.hash) == ("corrupt", LARGE_HASH)


def test_a_missing_file(victim: Victim) -> None:
    victim.file(LARGE_HASH).unlink()
    fault = only(check(victim.store))
    assert (fault.kind, fault.hash, fault.takes) == ("missing", LARGE_HASH, [victim.checkpoint])


def test_a_missing_row(victim: Victim) -> None:
    victim.lose(LARGE_HASH)
    fault = only(check(victim.store))
    assert (fault.kind, fault.hash, fault.takes) == ("missing", LARGE_HASH, [victim.checkpoint])


def test_a_file_under_another_objects_name(victim: Victim) -> None:
    other = victim.store.put(LARGE + b"!").hash
    victim.file(other).rename(victim.file(LARGE_HASH))
    report = check(victim.store)
    assert {(fault.kind, fault.hash) for fault in report.faults} == {
        ("corrupt", LARGE_HASH),
        ("missing", other),
    }
    assert victim.aside() == {LARGE_HASH: LARGE + b"!"}


@pytest.mark.parametrize("name", ["stray", "ab/stray", "ab/" + "c" * 63, "no/" + "c" * 62])
def test_a_stray_name(victim: Victim, name: str) -> None:
    path = victim.root / "objects" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"?")
    report = check(victim.store)
    assert {fault.kind for fault in report.faults} == {"store"}
    assert any(f"objects/{name}" in fault.message for fault in report.faults)
    assert path.exists()


def test_an_unreadable_file_is_reported_and_stays(victim: Victim) -> None:
    path = victim.file(LARGE_HASH)
    path.unlink()
    path.mkdir()
    report = check(victim.store)
    assert ("unreadable", LARGE_HASH) in {(fault.kind, fault.hash) for fault in report.faults}
    assert report.quarantined == []


# -- nodes -----------------------------------------------------------------------------------


def test_a_node_that_is_no_json(victim: Victim) -> None:
    hash = plant(victim, b"{not JSON")
    fault = only(check(victim.store))
    assert (fault.kind, fault.hash, fault.takes) == ("bad node", hash, ["kept/planted"])
    assert victim.aside() == {hash: b"{not JSON"}


def test_nodes_whose_bytes_no_writer_of_ours_made(victim: Victim) -> None:
    type = victim.store.registry.head("content").hash
    canonical = encode(type, {"text": "t", "artifacts": []}).decode()
    for number, text in enumerate(
        [
            canonical.replace(":", ": "),
            canonical.replace('"text":"t"', '"text":5'),
            canonical.replace('"text":"t"', '"more":1,"text":"t"'),
            canonical.replace('"text":"t"', '"text":"t","text":"t"'),
            canonical.replace(type, victim.store.registry.head("agent").hash),
            canonical.replace('{"payload"', '{"a":1,"payload"'),
            canonical.replace("[]", "{}"),
            "[]",
            "null",
            '{"payload":1}',
        ]
    ):
        hash = plant(victim, text.encode())
        fault = only(check(victim.store))
        assert (fault.kind, fault.hash) == ("bad node", hash), text
        assert len(victim.aside()) == number + 1


def test_a_directory_that_its_schema_cannot_refuse(victim: Victim) -> None:
    digest = {"hash": LARGE_HASH, "size_bytes": len(LARGE)}
    files = [{"name": name, "digest": digest, "is_executable": False} for name in ("b", "a")]
    payload = {"files": files, "directories": [], "symlinks": []}
    hash = put_unchecked(victim.store, "directory", payload)
    fault = only(check(victim.store))
    assert (fault.kind, fault.hash) == ("bad node", hash)


def test_a_dangling_ref(victim: Victim) -> None:
    hash = put_unchecked(victim.store, "content", {"text": "", "artifacts": [ABSENT]})
    set_head(victim.store, "kept/x", hash)
    report = check(victim.store)
    fault = only(report)
    assert (fault.kind, fault.hash, fault.takes) == ("missing", ABSENT, ["kept/x"])
    assert hash in fault.message
    assert report.quarantined == []


def test_one_thing_that_is_missing_is_one_fault(victim: Victim) -> None:
    for number in range(3):
        payload = {"text": str(number), "artifacts": [ABSENT]}
        set_head(victim.store, f"x/{number}", put_unchecked(victim.store, "content", payload))
    fault = only(check(victim.store))
    assert fault.takes == ["x/0", "x/1", "x/2"]


def test_a_ref_to_another_type_than_it_must(victim: Victim) -> None:
    """The target is sound, and stays."""
    step = dict(victim.store.node(victim.thread.steps[2]).payload, content=victim.thread.tree)
    hash = put_unchecked(victim.store, "thread-step", step)
    set_head(victim.store, "x/y", hash)
    report = check(victim.store)
    fault = only(report)
    assert (fault.kind, fault.hash, fault.takes) == ("wrong ref", hash, ["x/y"])
    assert report.quarantined == []


@pytest.mark.parametrize("key", ["previous", "start"])
def test_a_step_that_follows_no_step(victim: Victim, key: str) -> None:
    step = dict(victim.store.node(victim.thread.steps[2]).payload)
    hash = put_unchecked(victim.store, "thread-step", {**step, key: victim.thread.tree})
    fault = only(check(victim.store))
    assert (fault.kind, fault.hash) == ("wrong ref", hash)


def test_a_row_of_types_is_lost(victim: Victim) -> None:
    """Every node of a type is bytes to the store then; what needs it as a node says so."""
    key = bytes.fromhex(victim.store.registry.head("content").hash)
    said = [victim.content(number) for number in range(3)]
    victim.sql("DELETE FROM types WHERE hash = ?", key)
    report = check(victim.store)
    assert {fault.kind for fault in report.faults} == {"lost type"}
    assert set(said) <= {fault.hash for fault in report.faults}
    assert all(victim.thread.name in fault.takes for fault in report.faults)
    aside = victim.aside()
    assert set(said) <= aside.keys()
    with reopened(victim.store) as store:
        repair.repair(store, fsck.check(store), victim.root / "quarantine")
        assert fsck.check(store).faults == []
        assert store.node(said[0], "content").payload["text"] == "first"


def test_the_type_of_what_a_head_leads_to_is_lost(victim: Victim) -> None:
    key = bytes.fromhex(victim.store.registry.head("checkpoint").hash)
    victim.sql("DELETE FROM types WHERE hash = ?", key)
    fault = only(check(victim.store))
    assert (fault.kind, fault.takes) == ("lost type", [victim.checkpoint])


def test_a_damaged_schema_does_not_condemn_its_nodes(victim: Victim) -> None:
    type = victim.store.registry.head("directory").hash
    good = victim.data(type)
    victim.overwrite(type, flipped(good))
    for _ in range(2):  # damaged, then gone
        report = check(victim.store)
        fault = only(report)
        assert fault.hash == type
        assert {victim.thread.name, victim.checkpoint, "schemas/directory"} <= set(fault.takes)
        assert victim.aside() == {type: flipped(good)}
    with victim.store.batch() as batch:
        batch.put_encoded(good)
    assert check(victim.store).faults == []


def test_a_damaged_meta_schema_does_not_condemn_the_others(victim: Victim) -> None:
    meta = victim.store.registry.head("schema").hash
    good = victim.data(meta)
    victim.overwrite(meta, flipped(good))
    for _ in range(2):
        fault = only(check(victim.store))
        assert fault.hash == meta
        assert victim.thread.name in fault.takes
    with victim.store.batch() as batch:
        batch.put_encoded(good)
    assert check(victim.store).faults == []


# -- order, depth and heads ------------------------------------------------------------------


def test_a_wrong_index(victim: Victim) -> None:
    step = dict(victim.store.node(victim.thread.steps[2]).payload, index=7)
    hash = victim.store.put_node("thread-step", step).hash
    head = fork(victim.thread, SECOND, hash)
    report = check(victim.store)
    fault = only(report)
    assert (fault.kind, fault.hash, fault.takes) == ("order", hash, [head])
    assert "7" in fault.message
    assert report.quarantined == []


def test_a_first_step_that_is_not_number_one(victim: Victim) -> None:
    step = dict(victim.store.node(victim.thread.steps[0]).payload, index=2)
    hash = victim.store.put_node("thread-step", step).hash
    fault = only(check(victim.store))
    assert (fault.kind, fault.hash, fault.takes) == ("order", hash, [])


@pytest.mark.parametrize(
    ("parent", "depth"),
    [("step", 1), ("start", 1), ("step", 0), ("start", 2), (None, 0), (None, 1)],
)
def test_the_depth_of_a_thread(victim: Victim, parent: str | None, depth: int) -> None:
    start = dict(victim.store.node(victim.thread.start).payload)
    state = {"step": victim.thread.steps[0], "start": victim.thread.start, None: None}[parent]
    child = {**start, "parentState": state, "depth": depth}
    hash = victim.store.put_node("thread-start", child).hash
    faults = check(victim.store).faults
    right = 0 if parent is None else 1
    assert [(fault.kind, fault.hash) for fault in faults] == ([("depth", hash)] * (depth != right))


def test_a_head_to_nothing(victim: Victim) -> None:
    victim.sql("UPDATE heads SET hash = ? WHERE name = ?", bytes.fromhex(ABSENT), "workflows/demo")
    fault = only(check(victim.store))
    assert (fault.kind, fault.hash, fault.takes) == ("missing", ABSENT, ["workflows/demo"])


@pytest.mark.parametrize(
    "name", ["workflows/x", f"threads/{SECOND}", "schemas/x", "checkpoints/x/y"]
)
def test_a_head_to_what_it_cannot_mean(victim: Victim, name: str) -> None:
    for hash in (victim.content(0), LARGE_HASH):
        set_head(victim.store, name, hash)
        report = check(victim.store)
        fault = only(report)
        assert (fault.kind, fault.takes) == ("wrong head", [name])
        assert report.quarantined == []


# -- the SQLite file -------------------------------------------------------------------------


def test_a_damaged_page_of_the_database(victim: Victim) -> None:
    for number in range(400):
        victim.store.put(b"%d" % number * 50)
    file = checkpointed(victim)
    data = bytearray(file.read_bytes())
    pages = len(data) // 4096
    for page in range(pages // 2, pages // 2 + 3):
        data[page * 4096 : page * 4096 + 4096] = b"\xa5" * 4096
    file.write_bytes(data)
    with Store.open(victim.root) as store:
        report = fsck.check(store, quarantine=False)
    assert "store" in {fault.kind for fault in report.faults}
    answer = run_fsck(victim.root)
    assert answer.returncode == 1
    assert answer.stderr == ""
    assert answer.stdout.startswith("store: ")
    assert "malformed" in answer.stdout
    assert "try `casfs fsck`" not in answer.stdout


def test_a_database_that_is_none(victim: Victim) -> None:
    checkpointed(victim).write_bytes(b"not SQLite " * 1000)
    answer = run_fsck(victim.root)
    assert (answer.returncode, answer.stderr.count("\n")) == (1, 1)


# -- the next run ----------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["file", "row", "node"])
def test_a_reachable_loss_is_reported_until_it_is_back(victim: Victim, place: str) -> None:
    hash = {"file": LARGE_HASH, "row": SMALL_HASH, "node": victim.content(1)}[place]
    good = victim.store.get(hash)
    if place == "file":
        rewrite(victim.file(hash), flipped)
    else:
        victim.overwrite(hash, flipped(good))
    first = only(check(victim.store))
    assert first.kind == "corrupt"
    for _ in range(2):
        report = check(victim.store)
        again = only(report)
        assert (again.kind, again.hash, again.takes) == ("missing", hash, first.takes)
        assert report.quarantined == []
    with pytest.raises(NotFound):
        victim.store.get(hash)
    with victim.store.batch() as batch:
        batch.put_encoded(good) if place == "node" else batch.put(good)
    assert check(victim.store).faults == []


def test_a_loss_that_nothing_reaches_is_reported_once(victim: Victim) -> None:
    garbage = victim.store.put(LARGE + b"garbage").hash
    rewrite(victim.file(garbage), flipped)
    fault = only(check(victim.store))
    assert (fault.hash, fault.takes) == (garbage, [])
    assert check(victim.store).faults == []


def test_without_quarantine_nothing_is_touched(victim: Victim) -> None:
    bad = rewrite(victim.file(LARGE_HASH), flipped)
    for _ in range(2):
        report = check(victim.store, quarantine=False)
        assert only(report).kind == "corrupt"
        assert report.quarantined == []
    assert victim.file(LARGE_HASH).read_bytes() == bad


def test_damage_is_found_though_the_blob_was_verified_before(victim: Victim) -> None:
    """fsck trusts nothing that its process remembers, not even with the same stamps."""
    victim.store.get(LARGE_HASH)
    path = victim.file(LARGE_HASH)
    stamp = path.stat()
    rewrite(path, flipped)
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert only(fsck.check(victim.store)).kind == "corrupt"


# -- repair ----------------------------------------------------------------------------------


def test_the_type_of_bytes_is_detected(store: Store) -> None:
    thread = make_thread(store)
    for _, hash, info in store.blobs.iterate():
        assert detect_type(store, store.get(hash)) == info.type
    for data in (b"", b"{}", b"[]", b"null", b"5", b"\xff", b'{"payload":1,"type":5}'):
        assert detect_type(store, data) is None
    good = store.get(thread.start)
    assert detect_type(store, good + b" ") is None
    assert detect_type(store, good.replace(b'"depth":0', b'"depth":-1')) is None


def test_the_exit_code_says_whether_all_is_well(victim: Victim) -> None:
    assert run_fsck(victim.root).returncode == 0
    put_tree(victim.store, {"x": LARGE + b"!"})
    rewrite(victim.file(hash_bytes(LARGE + b"!")), flipped)
    answer = run_fsck(victim.root)
    assert (answer.returncode, answer.stderr) == (1, "")
