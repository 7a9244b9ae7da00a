"""Restores that were killed or failed, and are run again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from casfs.errors import Failed, NotFound
from casfs.store.store import Store
from casfs.system import rmtree
from casfs.trees.restore import host_entries, incremental, write
from casfs.trees.restore import restore as restoring
from tests.support.helpers import (
    LARGE,
    Link,
    Program,
    Tree,
    put_tree,
    read_tree,
    write_tree,
)
from tests.support.restores import leftovers, restore_tree
from tests.trees.restore.test_restore import named


class Killed(BaseException):
    """As if the process had been killed: nothing that would still clean up succeeds."""


class Mortal:
    """The os module, until `left` changes of the file system have been made."""

    CHANGES = ("open", "mkdir", "rmdir", "unlink", "rename", "symlink", "fchmod", "utime")

    def __init__(self, left: int) -> None:
        self.left = left

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in self.CHANGES:
            return real

        def until_killed(*args: Any, **keywords: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise Killed
            return real(*args, **keywords)

        return until_killed


MODULES = (host_entries, incremental, write, restoring)


@pytest.fixture
def dies(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    def after(left: int) -> None:
        mortal = Mortal(left)
        for module in MODULES:
            monkeypatch.setattr(module, "os", mortal)

    yield after
    monkeypatch.undo()


def lives(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in MODULES:
        monkeypatch.setattr(module, "os", os)


BEFORE: Tree = {
    "becomes dir": b"file",
    "becomes file": {"f": b"1", "d": {"g": b"2"}},
    "changed": {"a": b"1", "b": Program(b"2"), "l": Link(b"1")},
    "gone": {"f": b"1", "d": {"e": {}}},
    "same": {"f": b"same"},
}
AFTER: Tree = {
    "becomes dir": {"f": b"1", "d": {"g": b"2", "large": LARGE}},
    "becomes file": b"file",
    "changed": {"a": b"3", "b": b"2", "l": Link(b"2")},
    "new": {"f": b"1", "d": {"e": {}, "l": Link(b"x")}},
    "same": {"f": b"same"},
}


@pytest.mark.parametrize("then", ["the same", "back", "somewhere else"])
def test_interrupted_at_any_operation_and_run_again_it_completes(
    disk_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies: Any, then: str
) -> None:
    old, new = put_tree(disk_store, BEFORE), put_tree(disk_store, AFTER)
    last = {"the same": AFTER, "back": BEFORE, "somewhere else": {"new": b"f", "same": {}}}[then]
    wanted = put_tree(disk_store, last)
    for count in range(1000):
        place = tmp_path / f"w{count}"
        restore_tree(disk_store, old, place)
        write_tree(place / "same", {"mine": b"m"})
        dies(count)
        try:
            restore_tree(disk_store, new, place)
        except Killed:
            lives(monkeypatch)
        else:
            break
        done = restore_tree(disk_store, wanted, place)
        expected = named(last)
        expected[b"same"] = {**expected[b"same"], b"mine": b"m"}
        assert read_tree(place) == expected, count
        assert (done.outcome.changed, done.outcome.kept) == ([], []), count
    assert count > 30


def test_a_full_restore_that_was_killed_is_run_again(
    disk_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies: Any
) -> None:
    root = put_tree(disk_store, AFTER)
    for count in range(1000):
        place = write_tree(tmp_path / f"p{count}", {}) / "w"
        with monkeypatch.context() as patch:
            patch.setattr(rmtree, "delete", lambda path: None)
            dies(count)
            try:
                restore_tree(disk_store, root, place)
            except Killed:
                lives(monkeypatch)
            else:
                break
        restore_tree(disk_store, root, place)
        assert read_tree(place.parent) == {b"w": named(AFTER)}, count
    assert count > 30


def test_filling_a_directory_as_it_is_that_was_killed_is_run_again(
    disk_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies: Any
) -> None:
    root = put_tree(disk_store, AFTER)
    for count in range(1000):
        place = write_tree(tmp_path / f"w{count}", {})
        monkeypatch.chdir(place)
        dies(count)
        try:
            restore_tree(disk_store, root, Path())
        except Killed:
            lives(monkeypatch)
        else:
            break
        restore_tree(disk_store, root, Path())
        assert read_tree(place) == named(AFTER), count
    assert count > 30


def test_an_error_leaves_nothing_of_ours_and_can_be_completed(
    disk_store: Store, tmp_path: Path
) -> None:
    old = put_tree(disk_store, {"a": b"1", "d": {"f": b"1"}})
    place = tmp_path / "w"
    restore_tree(disk_store, old, place)
    new = put_tree(disk_store, {"a": b"2", "d": {"f": LARGE}, "new": {"g": LARGE}})
    hash = disk_store.put(LARGE).hash
    file = disk_store.root / "objects" / hash[:2] / hash[2:]
    file.rename(file.with_suffix(".away"))
    with pytest.raises(NotFound):
        restore_tree(disk_store, new, place)
    assert leftovers(place) == []
    file.with_suffix(".away").rename(file)
    restore_tree(disk_store, new, place)
    assert read_tree(place) == named({"a": b"2", "d": {"f": LARGE}, "new": {"g": LARGE}})


@pytest.mark.parametrize("there", [{}, {"d": {}}, {"d": {"x": b""}}])
def test_the_message_names_the_path(store: Store, tmp_path: Path, there: Tree) -> None:
    too_long = put_tree(store, {"d": {"x": Link(b"x" * 5000)}})
    restore_tree(store, put_tree(store, there), tmp_path / "w")
    with pytest.raises(Failed, match=r"w at d/x: File name too long"):
        restore_tree(store, too_long, tmp_path / "w", base=put_tree(store, there))
    assert leftovers(tmp_path / "w") == []
