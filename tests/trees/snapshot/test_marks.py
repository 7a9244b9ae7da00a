"""No work refers to what is marked as local, whatever went wrong, and when a path became work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from casfs.checkpoints import checkpoint, create
from casfs.errors import Conflict
from casfs.store import graph, local_trees
from casfs.store.store import Store
from casfs.store.write_batch import Batch
from casfs.trees.snapshot import stat_cache
from tests.support.helpers import write_tree

PROJECT: dict[str, Any] = {
    "a": {"b": {"conf": b"x=1\n", "other": b"o"}, "empty": {}},
    "c": {".env": b"KEY=value\n", "d": {"f": b"f"}},
    "node_modules": {"m": {"index.js": b"m"}},
    "package.json": b"{}",
}


@pytest.fixture(autouse=True)
def old_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files count as long unchanged: the stat cache is used at once."""
    monkeypatch.setattr(stat_cache, "RACY_WINDOW_NS", -(1 << 40))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "project", PROJECT)


def hidden_work(store: Store) -> set[str]:
    """What heads reach as work, and is marked."""
    roots = [head.hash for name, head in store.heads.list() if name.startswith(checkpoint.HEADS)]
    return store.blobs.local_among(set(graph.walk(store, roots)))


def make(store: Store, project: Path, name: str = "app", **more: Any) -> None:
    create.create(store, name, project, options=create.CreateOptions(**more))


def settings(store: Store, text: str) -> None:
    (store.root / "config.toml").write_text(text)


def test_after_a_conflict(
    disk_store: Store, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def conflict(*_: object, **__: object) -> None:
        raise Conflict("moved meanwhile")

    with monkeypatch.context() as patch:
        patch.setattr(create, "put", conflict)
        with pytest.raises(Conflict):
            make(disk_store, project)
    make(disk_store, project)
    assert hidden_work(disk_store) == set()
    assert disk_store.blobs.local_among([hash for _, hash, _ in disk_store.blobs.iterate()])


def test_after_a_kill_between_its_commits(
    disk_store: Store, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Batch, "settle", killed)
        with pytest.raises(KeyboardInterrupt):
            make(disk_store, project)
    make(disk_store, project)
    assert hidden_work(disk_store) == set()


@pytest.mark.parametrize("name", ["app", "other"])
def test_a_setting_that_is_taken_back(disk_store: Store, project: Path, name: str) -> None:
    settings(disk_store, '[snapshot]\nprivate = ["conf", "d/"]\n')
    make(disk_store, project)
    settings(disk_store, "")
    make(disk_store, project, name)
    assert hidden_work(disk_store) == set()


def test_a_setting_that_calls_it_work(disk_store: Store, project: Path) -> None:
    make(disk_store, project)
    settings(disk_store, '[snapshot]\nwork = [".env"]\n')
    make(disk_store, project, "other")
    assert hidden_work(disk_store) == set()
    root = checkpoint.find(disk_store, "other").root
    assert local_trees.get(disk_store, checkpoint.find(disk_store, "other").hash) is None
    assert root


def test_a_derived_directory_that_becomes_work(disk_store: Store, project: Path) -> None:
    make(disk_store, project, with_derived=True)
    (project / "package.json").unlink()
    make(disk_store, project, "other", with_derived=True)
    assert hidden_work(disk_store) == set()
