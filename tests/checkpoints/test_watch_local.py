"""What a watch keeps here only: also of directories that a later look does not list."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from casfs.checkpoints import checkpoint, create
from casfs.checkpoints.watch_list import WatchSpec
from casfs.store.store import Store
from casfs.trees import tree
from casfs.trees.recorded_state import RecordedState
from tests.checkpoints.test_watch import METHODS, settle
from tests.support import planted
from tests.support.following import OwnWatch
from tests.support.helpers import write_tree

SECRET = planted.settings_file()
PROJECT = {"a": b"a", "d": {".env": b"K=1\n", "conf": SECRET, "f": b"f"}, "e": {"g": b"g"}}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    top = write_tree(tmp_path / "work", PROJECT)
    subprocess.run(["git", "init", "-q", top], check=True)
    return top


@pytest.fixture(params=METHODS)
def watch(request: pytest.FixtureRequest, disk_store: Store, place: Path) -> Iterator[OwnWatch]:
    """A watch that has looked at everything once."""
    found = OwnWatch(
        disk_store, WatchSpec(str(place), "work", 0.0), fanotify=request.param[0] == "f"
    )
    settle(found)
    yield found
    found.close()


def state(store: Store, watch: OwnWatch) -> RecordedState:
    settle(watch)
    found = checkpoint.latest(store, "work")
    assert found is not None
    return checkpoint.recorded(store, found)


def local(store: Store, watch: OwnWatch) -> set[str]:
    """The files that are no work."""
    found = state(store, watch)
    work, full = (
        {path.decode() for path, entry in tree.walk(store, root) if not tree.subtree(entry)}
        for root in (found.tree, found.full)
    )
    assert work <= full
    again = create.create(store, "other", Path(watch.spec.directory))
    assert checkpoint.recorded(store, again.checkpoint) == found, "as a checkpoint"
    return full - work


def test_a_directory_that_is_not_listed_again(
    disk_store: Store, watch: OwnWatch, place: Path
) -> None:
    private = {"d/.env", "d/conf"}
    assert local(disk_store, watch) == private
    for count in range(2):
        (place / "e/g").write_text(f"more {count}")
        assert local(disk_store, watch) == private
        assert b"/d" not in watch._directory._listed
    (place / "e/.netrc").write_text("new")
    assert local(disk_store, watch) == private | {"e/.netrc"}
    (place / "d/f").write_text("more")
    assert local(disk_store, watch) == private | {"e/.netrc"}
    assert not watch._directory._is_full
    made = watch.record("named", "", skip=False)
    assert set(made.report.local) == {b"d/.env", b"d/conf", b"e/.netrc"}


def test_a_private_file_that_changes_or_goes(
    disk_store: Store, watch: OwnWatch, place: Path
) -> None:
    before = state(disk_store, watch)
    (place / "d/.env").write_text("K=2\n")
    changed = state(disk_store, watch)
    assert (changed.tree, changed.full != before.full) == (before.tree, True)
    (place / "d/.env").unlink()
    assert local(disk_store, watch) == {"d/conf"}
    (place / "d/conf").write_text("clean")
    assert local(disk_store, watch) == set()
    (place / "d/conf").write_bytes(SECRET)
    after = state(disk_store, watch)
    entry = tree.find(disk_store, after.tree, b"d/conf")
    assert disk_store.get(entry.digest.hash) == b"clean", "its last clean version"  # type: ignore[union-attr]
    (place / "d/conf").unlink()
    (place / "d").rename(place / "moved")
    (place / "moved/.env").write_text("K=3\n")
    assert local(disk_store, watch) == {"moved/.env"}
    (place / "moved/.env").unlink()
    assert local(disk_store, watch) == set()
    assert state(disk_store, watch).local is None


def test_what_git_begins_to_track_is_work(disk_store: Store, watch: OwnWatch, place: Path) -> None:
    assert local(disk_store, watch) == {"d/.env", "d/conf"}
    subprocess.run(["git", "-C", place, "add", "-f", "d/conf"], check=True)
    (place / "a").write_text("more")
    assert local(disk_store, watch) == {"d/.env"}
    assert set(watch._directory.look(None).report.exposed) == {b"d/conf"}
    assert not watch._directory._is_full
    subprocess.run(["git", "-C", place, "rm", "-q", "--cached", "-f", "d/conf"], check=True)
    (place / "a").write_text("still more")
    found = state(disk_store, watch)
    entry = tree.find(disk_store, found.tree, b"d/conf")
    assert entry is not None, "it was work, and was not deleted"
    assert set(watch._directory.look(None).report.local) == {b"d/.env", b"d/conf"}
