"""Changes applied to a directory: all of them or, after a kill, none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from casfs.directories import operations
from casfs.errors import Conflict, NotFound, Refused
from casfs.store.store import Store
from casfs.trees.recorded_state import RecordedState
from casfs.trees.restore import apply as applying
from casfs.trees.restore.apply import Applied
from casfs.trees.restore.incremental import IncrementalRestore
from tests.support.helpers import Program, put_tree, read_tree, write_tree
from tests.support.restores import do_again, restored, take_back_last
from tests.trees.restore.test_restore import named

OLD = {"a": b"1\n2\n3\n4\n5\n", "gone": b"g", "d": {"x": b"x", "y": b"y"}, "run": b"#!"}
NEW = {"a": b"1\n2\n3\n4\nfive\n", "d": {"x": b"x2"}, "run": Program(b"#!"), "e": {"n": b"n"}}
HERE = {**OLD, "a": b"one\n2\n3\n4\n5\n", "mine": b"m", "d": {"x": b"x", "y": b"y", "z": b"z"}}
AFTER = {
    b"a": b"one\n2\n3\n4\nfive\n",
    b"mine": b"m",
    b"d": {b"x": b"x2", b"z": b"z"},
    b"run": Program(b"#!"),
    b"e": {b"n": b"n"},
}


def apply(store: Store, place: Path, new: Any = NEW, **more: Any) -> Applied:
    old, theirs = put_tree(store, OLD), put_tree(store, new)
    return applying.apply(
        store, RecordedState(old), RecordedState(theirs), place, label="theirs", **more
    )


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "place", HERE)


def test_what_is_changed_and_what_is_not(disk_store: Store, place: Path) -> None:
    untouched = {name: (place / name).stat().st_ctime_ns for name in ("mine", "d/z")}
    done = apply(disk_store, place)
    assert read_tree(place) == AFTER
    assert [one.path for one in done.merged.changed] == [
        *(b"a", b"d/x", b"d/y", b"e/n", b"gone", b"run")
    ]
    assert done.merged.conflicts == []
    assert {name: (place / name).stat().st_ctime_ns for name in untouched} == untouched
    assert done.operation is not None
    changed = {"a": HERE["a"], "d": {"x": b"x", "y": b"y"}, "gone": b"g", "run": b"#!"}
    assert done.operation.before.tree == put_tree(disk_store, changed)
    again = apply(disk_store, place)
    assert (again.merged.changed, again.merged.conflicts) == ([], [])


def test_a_check_changes_nothing(disk_store: Store, place: Path) -> None:
    before = read_tree(place)
    assert len(apply(disk_store, place, check=True).merged.changed) == 6
    assert read_tree(place) == before


def killed(store: Store, place: Path, step: str, count: int) -> None:
    """Apply in a process of its own that ends at the `count`th call of a method of the restore."""
    pid = os.fork()
    if pid == 0:
        original, left = getattr(IncrementalRestore, step), [count]

        def wrapped(*arguments: Any, **options: Any) -> Any:
            if left[0] == 0:
                os._exit(9)
            left[0] -= 1
            return original(*arguments, **options)

        setattr(IncrementalRestore, step, wrapped)
        with Store.open(store.root) as own:
            apply(own, place)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9


@pytest.mark.parametrize(
    ("step", "count"),
    [*(("_restore_entry", n) for n in range(7)), *(("_place", n) for n in range(2))],
)
def test_one_that_was_killed_is_taken_back(
    disk_store: Store, place: Path, step: str, count: int
) -> None:
    before = read_tree(place)
    killed(disk_store, place, step, count)
    for check in (True, False):
        with pytest.raises(Refused, match="was interrupted; take it back"):
            apply(disk_store, place, check=check)
    take_back_last(disk_store, place)
    assert read_tree(place) == before
    apply(disk_store, place)
    assert read_tree(place) == AFTER


def test_one_that_was_killed_is_finished(disk_store: Store, place: Path) -> None:
    killed(disk_store, place, "_restore_entry", 2)
    take_back_last(disk_store, place)
    do_again(disk_store, place)
    assert read_tree(place) == AFTER
    assert apply(disk_store, place).merged.changed == []


def test_what_was_changed_after_a_kill_is_not_overwritten(disk_store: Store, place: Path) -> None:
    killed(disk_store, place, "_restore_entry", 2)
    (place / "a").write_bytes(b"later")
    with pytest.raises(Refused, match="was interrupted"):
        apply(disk_store, place)
    take_back_last(disk_store, place)
    assert (place / "a").read_bytes() == b"later"


def test_what_cannot_be_applied_to(disk_store: Store, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no directory"):
        apply(disk_store, tmp_path / "none")
    with pytest.raises(Refused, match="the store itself"):
        apply(disk_store, disk_store.root)


def test_one_at_a_time(disk_store: Store, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = operations.begin

    def nested(*arguments: Any, **options: Any) -> Any:
        with pytest.raises(Conflict, match="under way"):
            apply(disk_store, place)
        return begin(*arguments, **options)

    monkeypatch.setattr(operations, "begin", nested)
    apply(disk_store, place)


def test_it_is_taken_back_also_where_the_directory_was_not_tracked(
    disk_store: Store, place: Path
) -> None:
    apply(disk_store, place)
    (place / "later").write_bytes(b"mine")
    take_back_last(disk_store, place)
    assert read_tree(place) == named({**HERE, "later": b"mine"})


def test_an_apply_does_not_change_what_restores_compare_with(
    disk_store: Store, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    first = put_tree(disk_store, {**HERE, "mine": b"restored"})
    restored(disk_store, first, place)
    (place / "mine").write_bytes(b"m")
    apply(disk_store, place)
    with pytest.raises(Refused, match=r"local changes would be overwritten: .*mine"):
        restored(disk_store, first, place)
    take_back_last(disk_store, place)
    assert read_tree(place) == named({**HERE, "mine": b"m"})


def test_conflicts_that_are_not_resolved_are_refused(disk_store: Store, place: Path) -> None:
    (place / "a").write_bytes(b"1\n2\n3\n4\nV\n")
    assert [path for path, _ in apply(disk_store, place).merged.conflicts] == [b"a"]
    before = read_tree(place)
    with pytest.raises(Refused, match="not resolved: a; edit"):
        apply(disk_store, place)
    assert read_tree(place) == before
    (place / "a").write_bytes(b"1\n2\n3\n4\nV\nfive\n")
    apply(disk_store, place)
