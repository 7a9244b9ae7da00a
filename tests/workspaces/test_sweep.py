"""The sweep of read-only workspaces, where other processes close and open them meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from casfs.errors import Failed
from casfs.store.store import Store
from casfs.trees.recorded_state import RecordedState
from casfs.workspaces import lifecycle, registry, strategies
from casfs.workspaces.registry import Workspace
from tests.support.helpers import put_tree


def unmounted(store: Store, path: Path) -> Workspace:
    """A read-only workspace that a crash has unmounted."""
    state = RecordedState(put_tree(store, {"f": b"content"}))
    strategy = strategies.STRATEGIES[strategies.NATIVE]
    workspace = registry.new(store, path, state, strategy, None, read_only=True, mode=None)
    registry.swap(store, workspace.id, None, workspace.head)
    workspace.folder.mkdir(parents=True)
    return workspace


@pytest.fixture
def closed(disk_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """One that is closed after the sweep has listed it, and another that is not."""
    workspaces = [unmounted(disk_store, tmp_path / name) for name in ("closed", "other")]
    closed = workspaces[0]
    registry.swap(disk_store, closed.id, closed.head, None)
    monkeypatch.setattr(registry, "listing", lambda *_, **__: workspaces)
    return closed


def test_it_goes_on_where_one_was_closed(
    disk_store: Store, tmp_path: Path, closed: Workspace
) -> None:
    assert [workspace.path for workspace in lifecycle.sweep(disk_store)] == [tmp_path / "other"]


def test_the_files_of_the_next_one_in_that_directory_stay(
    disk_store: Store, closed: Workspace
) -> None:
    head = registry.Head(closed.root, {**closed.record, "openedAt": 1, "readOnly": False})
    registry.swap(disk_store, closed.id, None, head)
    lifecycle.sweep(disk_store)
    assert closed.folder.is_dir()


def test_the_head_goes_last(
    disk_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = unmounted(disk_store, tmp_path / "w")

    def fail(*_: Any) -> None:
        raise Failed("no")

    with monkeypatch.context() as patch:
        patch.setattr(lifecycle, "_remove", fail)
        with pytest.raises(Failed):
            lifecycle.sweep(disk_store)
    assert lifecycle.sweep(disk_store) == [workspace], "what a crash has left is found again"
    assert not workspace.folder.exists()
