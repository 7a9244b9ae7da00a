"""What the store knows of the directories that it restored."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from casfs.digest import TreeHash
from casfs.errors import Conflict, NotFound, Refused
from casfs.store.store import Store
from casfs.system import locks
from casfs.trees.recorded_state import RecordedState
from casfs.trees.restore.restore_state import RestoreStates
from casfs.trees.restore.target import Target, record_state
from tests.support.helpers import (
    ABSENT,
    Tree,
    put_tree,
    read_tree,
    write_tree,
)
from tests.support.restores import restore_tree
from tests.trees.restore.test_restore import named


def test_a_directory_that_was_restored_is_known_again(disk_store: Store, tmp_path: Path) -> None:
    place = tmp_path / "w"
    trees: list[Tree] = [{"f": b"1", "d": {}}, {"f": b"2"}, {"g": b"3"}, {"g": b"3"}]
    for tree in trees:
        restore_tree(disk_store, put_tree(disk_store, tree), place)
        assert read_tree(place) == named(tree)
    assert os.listdir(disk_store.root / "locks") == []  # type: ignore[operator]


def test_a_directory_is_known_by_any_path_to_it(
    disk_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    restore_tree(disk_store, put_tree(disk_store, {"f": b"1"}), tmp_path / "link" / "w")
    monkeypatch.chdir(tmp_path / "real")
    restore_tree(disk_store, put_tree(disk_store, {"f": b"2"}), Path("w"))
    monkeypatch.chdir(tmp_path / "real" / "w")
    restore_tree(disk_store, put_tree(disk_store, {"f": b"3"}), Path())
    assert read_tree(tmp_path / "real" / "w") == {b"f": b"3"}


@pytest.mark.parametrize("name", ["", "app@1"])
def test_a_directory_that_a_restore_has_made_stays_one(
    disk_store: Store, tmp_path: Path, name: str
) -> None:
    place = tmp_path / "w"
    tree = put_tree(disk_store, {"f": b"1"})
    restore_tree(disk_store, tree, place, name=name)
    assert Target(disk_store, place).restored_state() == RecordedState(TreeHash(tree))
    record_state(disk_store, place, RecordedState(TreeHash(tree)), "app@2")
    assert Target(disk_store, place).restored_state() == RecordedState(TreeHash(tree))

    other = write_tree(tmp_path / "other", {"f": b"1"})
    record_state(disk_store, other, RecordedState(TreeHash(tree)), "app@3")
    assert Target(disk_store, other).restored_state() is None


@pytest.mark.parametrize("kind", ["never restored", "another directory", "broken", "collected"])
def test_what_is_not_known_is_refused(disk_store: Store, tmp_path: Path, kind: str) -> None:
    place = tmp_path / "w"
    if kind != "never restored":
        restore_tree(disk_store, put_tree(disk_store, {"f": b"1"}), place)
    [*records] = (disk_store.root / "restored").glob("*.json")
    if kind == "another directory":
        place.rename(tmp_path / "moved")
    elif kind == "broken":
        records[0].write_text('{"path": 1}')
    elif kind == "collected":
        value = json.loads(records[0].read_text())
        records[0].write_text(json.dumps({**value, "roots": [ABSENT]}))
    write_tree(place, {"mine": b"m"})
    before = read_tree(place)
    with pytest.raises(Refused, match="empty directory"):
        restore_tree(disk_store, put_tree(disk_store, {"f": b"2"}), place)
    assert read_tree(place) == before


def test_a_directory_of_another_store_needs_a_base(
    store: Store, disk_store: Store, tmp_path: Path
) -> None:
    root = put_tree(store, {"f": b"1"})
    restore_tree(store, root, tmp_path / "w")
    with pytest.raises(Refused, match="--base"):
        restore_tree(disk_store, put_tree(disk_store, {"f": b"1"}), tmp_path / "w")


def test_from_that_is_no_tree(store: Store, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        restore_tree(store, put_tree(store, {}), tmp_path / "w", base=ABSENT)
    assert not (tmp_path / "w").exists()


def test_records_of_directories_that_are_gone_are_forgotten(
    disk_store: Store, tmp_path: Path
) -> None:
    root = put_tree(disk_store, {})
    for n in range(3):
        restore_tree(disk_store, root, tmp_path / f"w{n}")
    (tmp_path / "w0").rmdir()
    (tmp_path / "w1").rmdir()
    restore_tree(disk_store, root, tmp_path / "w3")
    assert len(os.listdir(disk_store.root / "restored")) == 2


def test_one_restore_at_a_time(disk_store: Store, tmp_path: Path) -> None:
    name = f"restore-{RestoreStates.key(tmp_path / 'w')[:32]}"
    with (
        locks.held(disk_store.root, name, lambda: None),
        pytest.raises(Conflict, match="under way"),
    ):
        restore_tree(disk_store, put_tree(disk_store, {}), tmp_path / "w")


def test_the_store_itself_is_no_target(disk_store: Store, tmp_path: Path) -> None:
    root = put_tree(disk_store, {"store.db": b""})
    with pytest.raises(Refused, match="the store itself"):
        restore_tree(disk_store, root, disk_store.root, base=root)
    with pytest.raises(Refused, match="the store itself"):
        restore_tree(disk_store, root, tmp_path, base=root, delete_untracked=True)


def test_of_what_is_in_the_store_only_workspaces_are_targets(disk_store: Store) -> None:
    root = put_tree(disk_store, {"f": b"1"})
    for inside in ("new", "objects/ab", "workspaces"):
        with pytest.raises(Refused, match="restore into another directory"):
            restore_tree(disk_store, root, disk_store.root / inside)
    restore_tree(disk_store, root, disk_store.root / "workspaces/x")
    assert read_tree(disk_store.root / "workspaces/x") == {b"f": b"1"}


def test_an_empty_directory_that_we_stand_in_is_filled_as_it_is(
    disk_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = write_tree(tmp_path / "w", {})
    inode = place.stat().st_ino
    monkeypatch.chdir(place)
    tree = {"f": b"1", "d": {"g": b"2"}}
    restore_tree(disk_store, put_tree(disk_store, tree), Path("."))
    assert read_tree(Path()) == named(tree)
    assert place.stat().st_ino == inode
