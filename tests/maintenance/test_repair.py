"""Repairs: from another store, a restored checkpoint, a copy of the objects, an archive."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from casfs.digest import hash_bytes
from casfs.errors import Failed, NotFound
from casfs.maintenance import archive, fsck, repair
from casfs.maintenance.blob_check import Fault
from casfs.maintenance.fsck import Report
from casfs.store import graph
from casfs.store.store import Store
from tests.support.damage import (
    LARGE_HASH,
    SMALL_HASH,
    TREE,
    Victim,
    check,
    flipped,
    rewrite,
)
from tests.support.helpers import (
    LARGE,
    blobs,
    write_tree,
)
from tests.support.maintenance import reopened, sql
from tests.support.new_store import init_store


def copy_of(victim: Victim, tmp_path: Path) -> Store:
    """Another store with the same content, by another way than files."""
    other = init_store(tmp_path / "other")
    with other.batch() as batch:
        for hash in graph.post_order(victim.store, sorted(blobs(victim.store))):
            blob = victim.store.blobs.get(hash)
            batch.put(blob.data) if blob.type is None else batch.put_encoded(blob.data)
    other.close()
    return other


def ruin(victim: Victim) -> set[str]:
    """A loss of each kind: a file, a small blob, a step, a directory and its schema."""
    step, directory = victim.thread.steps[1], victim.thread.tree
    type = victim.store.registry.head("directory").hash
    rewrite(victim.file(LARGE_HASH), flipped)
    for hash in (step, directory, type):
        victim.overwrite(hash, flipped(victim.data(hash)))
    victim.lose(SMALL_HASH)
    return {LARGE_HASH, SMALL_HASH, step, directory, type}


def mend(victim: Victim, source: Path) -> tuple[set[str], list[Fault]]:
    """fsck, repair, fsck: what came back, and what is left."""
    with reopened(victim.store) as store:
        report, back = repair.repair_all(
            store, fsck.check(store), source, lambda: check(victim.store)
        )
    assert len(set(back)) == len(back)
    assert {fault.hash for fault in check(victim.store).faults} == {
        fault.hash for fault in report.faults
    }
    return set(back), report.faults


def test_repair_from_another_store(victim: Victim, tmp_path: Path) -> None:
    before = {hash: victim.store.blobs.get(hash) for hash in blobs(victim.store)}
    copy_of(victim, tmp_path)
    lost = ruin(victim)
    assert mend(victim, tmp_path / "other") == (lost, [])
    with reopened(victim.store) as store:
        assert {hash: store.blobs.get(hash) for hash in blobs(store)} == before


def test_repair_from_a_store_that_is_damaged_too(victim: Victim, tmp_path: Path) -> None:
    other = copy_of(victim, tmp_path)
    lost = ruin(victim)
    sql(other, "UPDATE blobs SET data = x'00' WHERE hash = ?", bytes.fromhex(SMALL_HASH))
    back, left = mend(victim, tmp_path / "other")
    assert back == lost - {SMALL_HASH}
    assert [(fault.kind, fault.hash) for fault in left] == [("missing", SMALL_HASH)]


def test_repair_from_a_restored_checkpoint(victim: Victim, tmp_path: Path) -> None:
    write_tree(tmp_path / "restored", {"elsewhere": TREE, "format": b"a file like any other"})
    rewrite(victim.file(LARGE_HASH), flipped)
    victim.lose(SMALL_HASH)
    assert mend(victim, tmp_path / "restored") == ({LARGE_HASH, SMALL_HASH}, [])
    assert victim.file(LARGE_HASH).read_bytes() == LARGE
    assert victim.file(LARGE_HASH).stat().st_mode & 0o777 == 0o444


def test_repair_from_a_copy_of_the_objects(victim: Victim, tmp_path: Path) -> None:
    shutil.copytree(victim.root / "objects", tmp_path / "copy")
    victim.file(LARGE_HASH).unlink()
    assert mend(victim, tmp_path / "copy") == ({LARGE_HASH}, [])


def test_repair_from_an_unpacked_export(victim: Victim, tmp_path: Path) -> None:
    with (tmp_path / "x.tar").open("wb") as out:
        archive.export(victim.store, sorted(blobs(victim.store)), [], out)
    (tmp_path / "unpacked").mkdir()
    subprocess.run(["tar", "xf", tmp_path / "x.tar", "-C", tmp_path / "unpacked"], check=True)
    lost = ruin(victim)
    assert mend(victim, tmp_path / "unpacked") == (lost, [])
    with reopened(victim.store) as store:
        assert store.node(victim.thread.steps[1], "thread-step").payload["index"] == 2


def test_a_node_is_not_put_back_before_its_schema(victim: Victim, tmp_path: Path) -> None:
    """Without it nobody could tell that it is one."""
    step = victim.content(1)
    type = victim.store.registry.head("content").hash
    good = victim.data(step)
    for hash in (step, type):
        victim.overwrite(hash, flipped(victim.data(hash)))
    write_tree(tmp_path / "found", {"node": good})
    back, left = mend(victim, tmp_path / "found")
    assert back == set()
    assert {fault.hash for fault in left} == {step, type}


def test_repair_brings_back_part_of_what_was_lost(victim: Victim, tmp_path: Path) -> None:
    write_tree(tmp_path / "found", {"a": LARGE})
    lost = ruin(victim)
    back, left = mend(victim, tmp_path / "found")
    assert back == {LARGE_HASH}
    unseen = {SMALL_HASH}  # while directories have no schema
    assert {fault.hash for fault in left} == lost - back - unseen


def test_repair_brings_in_nothing_that_was_not_lost(victim: Victim, tmp_path: Path) -> None:
    source = write_tree(tmp_path / "found", {"a": LARGE, "b": b"never seen", "c": b"x" * 5000})
    os.mkfifo(source / "pipe")
    os.symlink("a", source / "link")
    before = blobs(victim.store)
    victim.file(LARGE_HASH).unlink()
    assert mend(victim, source) == ({LARGE_HASH}, [])
    assert blobs(victim.store) == before


def test_repair_of_a_damaged_file_replaces_it(victim: Victim, tmp_path: Path) -> None:
    """Its row is lost and its file is damaged: the file must not be taken as it is."""
    write_tree(tmp_path / "found", {"a": LARGE})
    rewrite(victim.file(LARGE_HASH), flipped)
    victim.lose(LARGE_HASH)
    assert mend(victim, tmp_path / "found") == ({LARGE_HASH}, [])


def test_nothing_lost_nothing_done(victim: Victim, tmp_path: Path) -> None:
    write_tree(tmp_path / "found", TREE)
    assert mend(victim, tmp_path / "found") == (set(), [])


def test_repair_from_nowhere(victim: Victim, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="nowhere"):
        repair.repair(victim.store, Report(), tmp_path / "nowhere")


def test_repair_survives_a_source_that_changes(
    victim: Victim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_tree(tmp_path / "found", {"a": LARGE})
    victim.file(LARGE_HASH).unlink()
    with reopened(victim.store) as store:
        report = fsck.check(store)
        hashed = repair._hash

        def then_change(path: Path) -> str:
            found = hashed(path)
            path.write_bytes(b"something else")
            return found

        monkeypatch.setattr(repair, "_hash", then_change)
        with pytest.raises(Failed, match="changed"):
            repair.repair(store, report, source)
        assert LARGE_HASH not in blobs(store)
        assert hash_bytes(b"something else") not in blobs(store)
    monkeypatch.undo()
    (source / "a").write_bytes(LARGE)
    assert mend(victim, source) == ({LARGE_HASH}, [])
