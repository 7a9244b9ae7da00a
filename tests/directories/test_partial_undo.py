"""Operations that are taken back in part, break off, or lose what they would give back."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from casfs.directories import operations
from casfs.directories.operations import PERSON, Intent, Operation, Verb
from casfs.errors import Failed
from casfs.maintenance.purge import purge
from casfs.rewind import take_back
from casfs.rewind.undo_calls import PURGED
from casfs.rewind.write_undone import UNRECORDED
from casfs.store.nodes.directory import File
from casfs.store.store import Store
from casfs.trees import tree
from casfs.trees.restore.incremental import IncrementalRestore
from tests.support.helpers import put_tree, read_tree
from tests.support.restores import do_again, restore_tree, take_back_last
from tests.trees.restore.test_restore import named

OLD = {"a": b"old a\n", "b": b"old b\n", "c": b"old c\n"}
NEW = {"a": b"new a\n", "b": b"new b\n", "c": b"new c\n"}


def restored(store: Store, content: dict[str, bytes], place: Path) -> None:
    restore_tree(store, put_tree(store, content), place, operation=Intent(Verb.RESTORE, "x"))


def newest(store: Store, place: Path, verb: Verb = Verb.RESTORE) -> Operation:
    log = operations.log_of(store, place).operations
    return next(operation for operation in log if operation.verb is verb)


@pytest.fixture
def place(disk_store: Store, tmp_path: Path) -> Path:
    for content in (OLD, NEW):
        restored(disk_store, content, tmp_path / "place")
    return tmp_path / "place"


def fails_at(name: bytes, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    real = IncrementalRestore._place

    def place(self: IncrementalRestore, fd: int, wanted: bytes, to: Any) -> None:
        if wanted == name:
            raise OSError(error, "No space left on device")
        real(self, fd, wanted, to)

    monkeypatch.setattr(IncrementalRestore, "_place", place)


def test_an_error_in_the_middle_names_the_way_back(
    disk_store: Store, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        fails_at(b"b", patch, errno.ENOSPC)
        with pytest.raises(Failed, match=r"at b: .*; `casfs undo` takes back what was written"):
            restored(disk_store, OLD, place)
    assert (place / "a").read_bytes() == OLD["a"]
    take_back_last(disk_store, place)
    assert read_tree(place) == named(NEW)


def test_an_undo_that_breaks_off_goes_on(
    disk_store: Store, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        fails_at(b"b", patch, errno.ENOSPC)
        with pytest.raises(Failed, match=r"at b: .*; run `casfs undo` again for the rest"):
            take_back_last(disk_store, place)
    take_back_last(disk_store, place)
    assert read_tree(place) == named(OLD)


def test_what_could_not_be_written_is_done_by_the_next(
    disk_store: Store, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        fails_at(b"b", patch, errno.EACCES)
        done = take_back_last(disk_store, place)
        assert done is not None
        assert list(done.failed) == [b"b"]
    assert not newest(disk_store, place).is_taken_back
    take_back_last(disk_store, place)
    assert newest(disk_store, place).is_taken_back
    assert read_tree(place) == named(OLD)
    do_again(disk_store, place)
    assert read_tree(place) == named(NEW)


def test_what_stays_is_counted(disk_store: Store, place: Path) -> None:
    (place / "a").write_bytes(b"mine\n")
    take_back_last(disk_store, place)
    operation = newest(disk_store, place)
    assert (operation.is_taken_back, operation.stays) == (True, 1)
    assert read_tree(place) == named({**OLD, "a": b"mine\n"})
    do_again(disk_store, place)
    assert newest(disk_store, place).stays == 0
    assert read_tree(place) == named({**NEW, "a": b"mine\n"})


def test_what_was_purged_is_not_deleted(disk_store: Store, place: Path) -> None:
    """Its file has nothing to come back from."""
    entry = tree.find(disk_store, newest(disk_store, place).before.tree, b"a")
    assert isinstance(entry, File)
    purge(disk_store, entry.digest.hash)
    plan = take_back.plan(disk_store, place, newest(disk_store, place), is_again=False)
    assert plan.undone.conflicts == {b"a": PURGED}
    take_back.do(disk_store, plan, PERSON)
    assert read_tree(place) == named({**OLD, "a": NEW["a"]})


def test_the_number_of_an_undo_is_its_redo(disk_store: Store, place: Path) -> None:
    take_back_last(disk_store, place)
    log = operations.log_of(disk_store, place)
    undo, restore = log.operations[:2]
    assert undo.verb is Verb.UNDO
    operation, is_again = log.meant(undo.number)
    assert (operation.number, is_again) == (restore.number, True)
    plan = take_back.plan(disk_store, place, operation, is_again=is_again)
    take_back.do(disk_store, plan, PERSON)
    assert read_tree(place) == named(NEW)
    log = operations.log_of(disk_store, place)
    operation, is_again = log.meant(log.operations[0].number)
    assert (operation.number, is_again) == (restore.number, False)
    take_back_last(disk_store, place)
    assert read_tree(place) == named(OLD)


def test_an_undo_and_a_redo_that_had_nothing_to_do(disk_store: Store, place: Path) -> None:
    take_back_last(disk_store, place)
    for name, data in NEW.items():
        (place / name).write_bytes(data)
    do_again(disk_store, place)
    assert not newest(disk_store, place).is_taken_back
    take_back_last(disk_store, place)
    assert read_tree(place) == named(OLD)


def test_what_was_in_the_way_of_an_undo(disk_store: Store, place: Path) -> None:
    restored(disk_store, {"a": b"a\n"}, place)
    os.mkfifo(place / "b")
    done = take_back_last(disk_store, place)
    assert done is not None
    assert done.failed == {b"b": UNRECORDED}
    assert not newest(disk_store, place).is_taken_back
    (place / "b").unlink()
    take_back_last(disk_store, place)
    assert newest(disk_store, place).is_taken_back
    assert read_tree(place) == named(NEW)
