"""Which paths of a directory are work, private, derived or ignored."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from casfs import config
from casfs.checkpoints import create
from casfs.scanner import fingerprint
from casfs.store.store import Store
from casfs.trees import tree
from casfs.trees.recorded_state import RecordedState
from casfs.trees.snapshot.ignore import BY_SETTING
from casfs.trees.snapshot.report import SnapshotReport
from casfs.trees.snapshot.working_tree import record
from tests.support import planted
from tests.support.helpers import read_tree, write_tree

SECRET = planted.settings_file()


class Found(NamedTuple):
    state: RecordedState
    work: set[str]
    local: set[str]  # and not work
    report: SnapshotReport


def recorded(store: Store, place: Path, *known: RecordedState) -> Found:
    report = SnapshotReport()
    state = record(store, place, known, report)
    work, full = (
        {path.decode() for path, entry in tree.walk(store, root) if not tree.subtree(entry)}
        for root in (state.tree, state.full)
    )
    assert work <= full
    return Found(state, work, full - work, report)


def with_git(place: Path, *tracked: str) -> Path:
    subprocess.run(["git", "init", "-q", place], check=True)
    if tracked:
        subprocess.run(["git", "-C", place, "add", "-f", *tracked], check=True)
    return place


def setting(store: Store, name: str, *patterns: str) -> None:
    """Sets `snapshot.<name>` of a store."""
    with (store.root / config.FILE).open("a") as file:
        file.write(f"snapshot.{name} = {json.dumps(patterns)}\n")


def test_private_names_are_local(store: Store, tmp_path: Path) -> None:
    tree_ = {"a": b"a", ".env": b"X=1", ".env.example": b"X=", "d": {"id_rsa": b"", "x.pem": b""}}
    found = recorded(store, write_tree(tmp_path / "w", tree_))
    assert found.local == {".env", "d/id_rsa"}
    assert found.work == {"a", ".env.example", "d/x.pem"}
    assert dict(found.report.local) == {b".env": "its name", b"d/id_rsa": "its name"}


def test_a_directory_without_private_files_has_one_tree(store: Store, tmp_path: Path) -> None:
    found = recorded(store, write_tree(tmp_path / "w", {"a": b"a", "d": {}}))
    assert found.state.local is None
    assert found.state.full == found.state.tree


def test_what_git_tracks_is_work_whatever_it_holds(store: Store, tmp_path: Path) -> None:
    content = {".env": SECRET, "conf": SECRET, "id_rsa": b"k", "d": {".env": b""}}
    place = with_git(write_tree(tmp_path / "w", content), ".env", "conf", "d/.env")
    found = recorded(store, place)
    assert found.work == {".env", "conf", "d/.env"}
    assert found.local == {"id_rsa"}
    assert set(found.report.exposed) == {b".env", b"conf"}


def test_an_untracked_file_with_a_secret_is_private(store: Store, tmp_path: Path) -> None:
    place = with_git(write_tree(tmp_path / "w", {"a": b"a", "conf": SECRET, "b": b"b"}), "a")
    found = recorded(store, place)
    assert (found.work, found.local) == ({"a", "b"}, {"conf"})
    assert found.report.local == {b"conf": f"{planted.TOKEN_KIND} in line 2"}
    assert found.report.exposed == {}


def test_without_git_a_secret_is_private(store: Store, tmp_path: Path) -> None:
    place = write_tree(tmp_path / "w", {"a": b"", "conf": SECRET, "d": {"c": SECRET}})
    found = recorded(store, place)
    assert (found.work, found.local) == ({"a"}, {"conf", "d/c"})
    assert found.report.local == dict.fromkeys((b"conf", b"d/c"), f"{planted.TOKEN_KIND} in line 2")
    assert found.report.exposed == {}


def test_without_git_what_was_recorded_as_work_stays_so(store: Store, tmp_path: Path) -> None:
    """As after --allow-secret; with another content it is new."""
    place = write_tree(tmp_path / "w", {"conf": SECRET})
    known = create.create(
        store, "w", place, options=create.CreateOptions(allow_secret=True)
    ).checkpoint
    state = create.checkpoint.recorded(store, known)
    found = recorded(store, place, state)
    assert (found.work, set(found.report.exposed)) == ({"conf"}, {b"conf"})
    (place / "conf").write_bytes(SECRET + b"more")
    found = recorded(store, place, state)
    assert set(found.report.local) == {b"conf"}
    assert tree.find(store, found.state.tree, b"conf") == tree.find(store, state.tree, b"conf")


def test_a_repository_inside_decides_of_its_own_files(store: Store, tmp_path: Path) -> None:
    place = write_tree(tmp_path / "w", {"conf": SECRET, "r": {"conf": SECRET, "kept": SECRET}})
    with_git(place / "r", "kept")
    found = recorded(store, place)
    assert found.local == {"conf", "r/conf"}
    assert set(found.report.exposed) == {b"r/kept"}


def test_a_directory_of_a_repository_around_it(store: Store, tmp_path: Path) -> None:
    top = write_tree(tmp_path / "w", {"d": {"conf": SECRET, "kept": SECRET}})
    with_git(top, "d/kept")
    found = recorded(store, top / "d")
    assert (found.work, found.local) == ({"kept"}, {"conf"})


def test_ignored_paths_are_in_neither(store: Store, tmp_path: Path) -> None:
    content = {".casfsignore": b".env\n/data/\n", ".env": b"", "data": {"f": b""}, "a": b""}
    found = recorded(store, write_tree(tmp_path / "w", content))
    assert (found.work, found.local) == ({".casfsignore", "a"}, set())


@pytest.mark.parametrize("with_derived", [False, True])
def test_derived_directories_of_a_checkpoint(
    store: Store, tmp_path: Path, with_derived: bool
) -> None:
    content: dict[str, Any] = {"package.json": b"", "node_modules": {"x": b""}, "a": b""}
    place = write_tree(tmp_path / "w", content)
    made = create.create(
        store, "w", place, options=create.CreateOptions(with_derived=with_derived, patterns=["a"])
    ).checkpoint
    state = create.checkpoint.recorded(store, made)
    assert list(tree.load(store, state.tree)) == [b"package.json"]
    if with_derived:
        assert list(tree.load(store, state.full)) == [b"node_modules", b"package.json"]
    else:
        assert state.local is None


def test_settings_move_paths_to_another_class(disk_store: Store, tmp_path: Path) -> None:
    content = {".env": b"", "a.key": b"", "b.key": b"", "d": {"f": b"", "g": {"h": b""}}}
    place = write_tree(tmp_path / "w", content)
    setting(disk_store, "work", ".env", "b.key")
    setting(disk_store, "private", "*.key", "/d/")
    found = recorded(disk_store, place)
    assert found.work == {".env", "b.key"}
    assert found.local == {"a.key", "d/f", "d/g/h"}
    assert set(found.report.local.values()) == {BY_SETTING}


def test_work_by_a_setting_holds_for_contents(disk_store: Store, tmp_path: Path) -> None:
    """A file that a person has called work is work, and its secret is named."""
    place = with_git(write_tree(tmp_path / "w", {"conf": SECRET}))
    setting(disk_store, "work", "conf")
    found = recorded(disk_store, place)
    assert (found.work, found.local) == ({"conf"}, set())
    assert set(found.report.exposed) == {b"conf"}


def test_a_directory_that_is_work_is_so_with_all_below_it(
    disk_store: Store, tmp_path: Path
) -> None:
    place = with_git(write_tree(tmp_path / "w", {"d": {"e": {".env": b"", "conf": SECRET}}}))
    setting(disk_store, "work", "/d/")
    assert recorded(disk_store, place).work == {"d/e/.env", "d/e/conf"}


def test_private_by_a_setting_wins_over_git(disk_store: Store, tmp_path: Path) -> None:
    place = with_git(write_tree(tmp_path / "w", {"conf": b"c"}), "conf")
    setting(disk_store, "private", "conf")
    assert recorded(disk_store, place).local == {"conf"}


def test_allowed_secrets_are_none(disk_store: Store, tmp_path: Path) -> None:
    place = with_git(write_tree(tmp_path / "w", {"conf": SECRET, "other": planted.token("b")}))
    setting(disk_store, "allow", fingerprint(planted.token()))
    found = recorded(disk_store, place)
    assert (found.work, found.local) == ({"conf"}, {"other"})


def test_the_stat_cache_remembers_what_was_found(disk_store: Store, tmp_path: Path) -> None:
    """A file that is not read again is still private, or named."""
    place = with_git(write_tree(tmp_path / "w", {"conf": SECRET, "kept": SECRET}), "kept")
    first = recorded(disk_store, place)
    again = recorded(disk_store, place)
    assert again.state == first.state
    assert (again.report.local, again.report.exposed) == (first.report.local, first.report.exposed)
    subprocess.run(["git", "-C", place, "add", "conf"], check=True)
    assert recorded(disk_store, place).local == set(), "the index has changed, the file has not"


def test_a_file_that_becomes_private_keeps_its_last_clean_version(
    store: Store, tmp_path: Path
) -> None:
    place = with_git(write_tree(tmp_path / "w", {"conf": b"clean", "a": b""}))
    before = recorded(store, place)
    assert before.local == set()
    (place / "conf").write_bytes(SECRET)
    after = record(store, place, [before.state])
    assert after.tree == before.state.tree
    assert after.local is not None
    entry = tree.find(store, after.full, b"conf")
    assert store.get(entry.digest.hash) == SECRET  # type: ignore[union-attr]


def test_a_file_that_was_private_stays_so_without_git(store: Store, tmp_path: Path) -> None:
    place = with_git(write_tree(tmp_path / "w", {"conf": SECRET, "a": b""}))
    before = recorded(store, place).state
    bare = write_tree(tmp_path / "v", {"conf": SECRET, "a": b""})
    assert read_tree(bare)[b"conf"] == SECRET
    assert record(store, bare, [before]).is_equal(before)
    (bare / "conf").write_bytes(b"clean")
    assert record(store, bare, [before]).local is None, "nothing secret is in it any more"
