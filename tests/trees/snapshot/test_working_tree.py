"""A directory against the tree that it is known to hold."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from casfs.digest import TreeHash
from casfs.store.store import Store
from casfs.trees import tree
from casfs.trees.recorded_state import RecordedState
from casfs.trees.snapshot import walker
from casfs.trees.snapshot.ignore import IgnoreRules
from casfs.trees.snapshot.report import SnapshotOptions, SnapshotReport
from casfs.trees.snapshot.tracked_rules import TrackedRules
from casfs.trees.snapshot.working_tree import record
from tests.support.helpers import Link, Program, take, write_tree

TREE = {
    "same": b"same",
    "edited": b"old",
    "gone": b"gone",
    "run": b"#!",
    "link": Link(b"same"),
    "d": {"f": b"f"},
}


def letters(store: Store, base: TreeHash, directory: Path) -> list[str]:
    found = record(store, directory, [RecordedState(base)])
    return [
        f"{change.letter} {os.fsdecode(change.path)}"
        for change in tree.changes(store, base, found.tree)
    ]


def test_every_kind_of_change(store: Store, tmp_path: Path) -> None:
    place = write_tree(tmp_path / "d", TREE)
    base = take(store, place)
    assert letters(store, base, place) == []
    (place / "edited").write_bytes(b"new")
    (place / "gone").unlink()
    (place / "run").chmod(0o755)
    (place / "link").unlink()
    (place / "link").symlink_to("edited")
    (place / "d/f").unlink()
    (place / "new").mkdir()
    expected = ["D d/f", "M edited", "D gone", "T link", "A new", "T run"]
    assert letters(store, base, place) == expected
    assert letters(store, base, place) == expected, "from the stat cache"


def test_what_was_recorded_is_never_ignored(store: Store, tmp_path: Path) -> None:
    """Also below a directory that the rules ignore; what is new there is ignored."""
    place = write_tree(tmp_path / "d", {"old.log": b"one", "logs": {"a": b"a", "b": b"b"}})
    base = take(store, place)
    write_tree(place, {".casfsignore": b"*.log\nlogs/\n", "new.log": b""})
    (place / "old.log").write_bytes(b"other")
    (place / "logs/a").write_bytes(b"other")
    (place / "logs/b").unlink()
    (place / "logs/new").touch()
    expected = ["A .casfsignore", "M logs/a", "D logs/b", "M old.log"]
    assert letters(store, base, place) == expected


def test_a_derived_directory_that_was_recorded_as_work_stays_work(
    store: Store, tmp_path: Path
) -> None:
    modules = {"package": {"index.js": b""}}
    place = write_tree(tmp_path / "d", {"package.json": b"{}", "node_modules": modules})
    with store.batch() as batch:
        base = walker.snapshot(batch, place, IgnoreRules()).node.hash
    own = IgnoreRules(defaults=True, keeps_derived=True)
    for state, derived in ((RecordedState(base), []), (None, [b"node_modules"])):
        rules = own if state is None else TrackedRules(own, store, state)
        report = SnapshotReport()
        with store.batch() as batch:
            walker.snapshot(batch, place, rules, report)
        assert [*report.derived] == derived


@pytest.mark.parametrize("preserve", [("mtime",), ("mode",), ("mode", "mtime")])
def test_properties_are_compared_where_they_were_preserved(
    store: Store, tmp_path: Path, preserve: tuple[str, ...]
) -> None:
    place = write_tree(tmp_path / "d", {"f": b"", "g": Program(b"")})
    with store.batch() as batch:
        options = SnapshotOptions(preserve)
        base = walker.snapshot(batch, place, IgnoreRules(), options=options).node.hash
    assert letters(store, base, place) == []
    os.utime(place / "f", (1, 1))
    (place / "g").chmod(0o711)
    changed = ["T f", "T g"] if "mtime" in preserve else ["T g"]
    assert letters(store, base, place) == changed


def test_it_is_recorded_as_a_checkpoint_would_be(store: Store, tmp_path: Path) -> None:
    place = write_tree(tmp_path / "d", TREE)
    base = take(store, place)
    (place / "new").write_bytes(b"new")
    assert record(store, place, [RecordedState(base)]).is_equal(RecordedState(take(store, place)))
