"""The log of a directory: what is taken back next, whose it is, and where the directory went."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from casfs.directories import operations
from casfs.directories.identity import Identity
from casfs.directories.operations import PERSON, Intent, Log, Verb
from casfs.errors import NotFound
from casfs.maintenance import fsck, gc
from casfs.rewind import take_back
from casfs.store.nodes.directory import File
from casfs.store.store import Store
from casfs.trees import tree
from tests.support.helpers import put_tree, read_tree, write_tree
from tests.support.maintenance import age
from tests.support.restores import do_again, restore_tree, take_back_last
from tests.trees.restore.test_restore import named

AGENT = "claude 01J"
FIRST, SECOND, THIRD = ({"f": text, "kept": b"k"} for text in (b"1\n", b"2\n", b"3\n"))


def restored(store: Store, content: dict[str, bytes], place: Path, actor: str = PERSON) -> None:
    intent = Intent(Verb.RESTORE, "x", actor)
    restore_tree(store, put_tree(store, content), place, operation=intent)


def log(store: Store, place: Path) -> Log:
    return operations.log_of(store, place)


def verbs(store: Store, place: Path) -> list[str]:
    return [operation.verb.value for operation in log(store, place).operations]


@pytest.fixture
def place(disk_store: Store, tmp_path: Path) -> Path:
    """Restored to three trees, one after the other."""
    for content in (FIRST, SECOND, THIRD):
        restored(disk_store, content, tmp_path / "place")
    return tmp_path / "place"


def test_one_after_the_other_and_back(disk_store: Store, place: Path) -> None:
    for content in (SECOND, FIRST):
        take_back_last(disk_store, place)
        assert read_tree(place) == named(content)
    take_back_last(disk_store, place)
    assert read_tree(place) == {}
    assert log(disk_store, place).to_undo(PERSON) is None
    for content in (FIRST, SECOND, THIRD):
        do_again(disk_store, place)
        assert read_tree(place) == named(content)
    assert log(disk_store, place).to_redo(PERSON) is None
    assert verbs(disk_store, place) == ["redo"] * 3 + ["undo"] * 3 + ["restore"] * 3
    assert fsck.check(disk_store).faults == []


def test_what_restores_compare_with_goes_back_too(disk_store: Store, place: Path) -> None:
    take_back_last(disk_store, place)
    restored(disk_store, FIRST, place)  # nothing is a local change
    assert read_tree(place) == named(FIRST)


def test_a_new_operation_ends_what_can_be_redone(disk_store: Store, place: Path) -> None:
    take_back_last(disk_store, place)
    restored(disk_store, {"f": b"4\n"}, place)
    assert log(disk_store, place).to_redo(PERSON) is None
    take_back_last(disk_store, place)
    assert read_tree(place) == named(SECOND)
    take_back_last(disk_store, place)
    assert read_tree(place) == named(FIRST)


def test_one_in_the_middle(disk_store: Store, tmp_path: Path) -> None:
    place = tmp_path / "place"
    for content in ({"a": b"1"}, {"a": b"1", "b": b"2"}, {"a": b"1", "b": b"2", "c": b"3"}):
        restored(disk_store, content, place)
    operation = log(disk_store, place).numbered(2)
    take_back.do(disk_store, take_back.plan(disk_store, place, operation, is_again=False), PERSON)
    assert read_tree(place) == named({"a": b"1", "c": b"3"})
    next_one = log(disk_store, place).to_undo(PERSON)
    assert next_one is not None
    assert next_one.number == 3


def test_what_was_changed_since_stays(disk_store: Store, place: Path) -> None:
    write_tree(place, {"f": b"mine\n", "kept": b"mine, too", "new": b"n"})
    operation = log(disk_store, place).to_undo(PERSON)
    assert operation is not None
    plan = take_back.plan(disk_store, place, operation, is_again=False)
    assert plan.undone.conflicts == {b"f": "changed since, in the same lines or next to them"}
    assert take_back.do(disk_store, plan, PERSON) is None
    assert read_tree(place) == named({"f": b"mine\n", "kept": b"mine, too", "new": b"n"})
    assert not log(disk_store, place).numbered(3).is_taken_back
    write_tree(place, {"f": b"3\n"})
    take_back_last(disk_store, place)
    assert read_tree(place) == named({"f": b"2\n", "kept": b"mine, too", "new": b"n"})


def test_each_takes_back_what_is_its_own(disk_store: Store, place: Path) -> None:
    restored(disk_store, {**THIRD, "agents": b"a"}, place, actor=AGENT)
    own, agents = (log(disk_store, place).to_undo(actor) for actor in (PERSON, AGENT))
    assert own is not None
    assert agents is not None
    assert (own.number, agents.number) == (3, 4)
    assert log(disk_store, place).to_undo("claude 01K") is None
    take_back_last(disk_store, place)
    assert read_tree(place) == named({**SECOND, "agents": b"a"})
    assert log(disk_store, place).to_redo(AGENT) is None


def test_a_directory_that_was_moved(disk_store: Store, place: Path) -> None:
    moved = place.with_name("moved")
    place.rename(moved)
    take_back_last(disk_store, moved)
    assert read_tree(moved) == named(SECOND)
    assert log(disk_store, moved).operations[-1].path == place
    assert len({operation.directory_id for operation in log(disk_store, moved).operations}) == 1


def test_another_directory_at_the_same_path(disk_store: Store, place: Path) -> None:
    identity = Identity.at(place)
    place.rename(place.with_name("away"))
    write_tree(place, THIRD)
    assert log(disk_store, place).operations == ()
    assert not Identity.at(place).is_same(identity)


def test_an_inode_that_is_used_again(tmp_path: Path) -> None:
    """On ext4 the next directory has the number of the one that was deleted."""
    place = tmp_path / "place"
    seen = []
    for _ in range(20):
        place.mkdir()
        seen.append(Identity.at(place))
        place.rmdir()
    assert len(set(seen)) == 20
    assert not any(one.is_same(other) for one in seen for other in seen if one is not other)


def test_the_innermost_directory_is_meant(disk_store: Store, place: Path) -> None:
    inner = place / "inner"
    restored(disk_store, FIRST, inner)
    (inner / "deep").mkdir()
    held = operations.innermost(disk_store, inner / "deep")
    assert held is not None
    assert (held[0], len(held[1].operations)) == (inner, 1)
    outer = operations.innermost(disk_store, place)
    assert outer is not None
    assert (outer[0], len(outer[1].operations)) == (place, 3)
    assert operations.innermost(disk_store, place.parent) is None


def test_a_name_that_is_no_text(disk_store: Store, tmp_path: Path) -> None:
    place = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    restored(disk_store, FIRST, place)
    restored(disk_store, SECOND, place)
    assert log(disk_store, place).operations[0].path == place
    take_back_last(disk_store, place)
    assert read_tree(place) == named(FIRST)


def test_an_unknown_number(disk_store: Store, place: Path) -> None:
    with pytest.raises(NotFound, match="no operation 7 here"):
        log(disk_store, place).numbered(7)


def test_gc_deletes_nothing_that_is_to_come_back(disk_store: Store, tmp_path: Path) -> None:
    place = tmp_path / "place"
    restored(disk_store, FIRST, place)
    write_tree(place, {"f": b"in no tree but the log's", ".env": b"KEY=only here"})
    intent = Intent(Verb.RESTORE, "x")
    root = put_tree(disk_store, {})
    restore_tree(disk_store, root, place, force=True, delete_untracked=True, operation=intent)
    assert read_tree(place) == {}
    age(disk_store)
    gc.collect(disk_store, grace=0)
    take_back_last(disk_store, place)
    assert read_tree(place) == named(
        {"f": b"in no tree but the log's", ".env": b"KEY=only here", "kept": b"k"}
    )
    assert fsck.check(disk_store).faults == []


def test_nothing_of_it_is_shown(disk_store: Store, tmp_path: Path) -> None:
    place = tmp_path / "place"
    restored(disk_store, FIRST, place)
    write_tree(place, {"f": b"overwritten\n"})
    restore_tree(
        disk_store,
        put_tree(disk_store, SECOND),
        place,
        force=True,
        operation=Intent(Verb.RESTORE, "x"),
    )
    before = log(disk_store, place).operations[0].before.tree
    ((_, entry),) = tree.walk(disk_store, before)
    assert isinstance(entry, File)
    hash = entry.digest.hash
    assert disk_store.get(hash) == b"overwritten\n"
    assert not disk_store.shown().blobs.info([hash, before])


def test_the_oldest_are_dropped(
    disk_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "MAX_OPERATIONS", 3)
    place = tmp_path / "place"
    for number in range(6):
        restored(disk_store, {"f": b"%d" % number}, place)
    assert [operation.number for operation in log(disk_store, place).operations] == [6, 5, 4]


def test_a_directory_that_is_gone(disk_store: Store, place: Path) -> None:
    shutil.rmtree(place)
    with pytest.raises(FileNotFoundError):
        log(disk_store, place)
