"""The private directory of a thread: it holds just the tree that it is reset to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from casfs.errors import NotFound
from casfs.store import Store
from casfs.trees import snapshot
from casfs.trees.ignore import Ignore
from engine.workspace import Workspace


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory with everything that a tree can hold, and what others leave out."""
    root = tmp_path / "project"
    for folder in ("empty", "src/node_modules", ".git"):
        (root / folder).mkdir(parents=True)
    (root / "src/node_modules/dep.js").write_text("dep\n")
    (root / ".git/HEAD").write_text("ref\n")
    (root / "run").write_text("#!/bin/sh\n")
    (root / "run").chmod(0o755)
    (root / "link").symlink_to("../outside")
    (root / os.fsdecode(b"caf\xe9")).write_bytes(b"\0" * 5000)
    return root


@pytest.fixture
def root(disk_store: Store, project: Path) -> str:
    with disk_store.batch() as batch:
        return snapshot.build(batch, project, Ignore()).hash


@pytest.fixture
def workspace(disk_store: Store, root: str) -> Workspace:
    """A workspace that holds `root`."""
    assert disk_store.root is not None
    made = Workspace(disk_store, disk_store.root / "workspaces" / "T")
    made.reset(root)
    return made


def beside(workspace: Workspace) -> list[str]:
    return sorted(os.listdir(workspace.path.parent))


def test_everything_is_recorded(workspace: Workspace, root: str) -> None:
    assert workspace.record() == workspace.root == root
    assert (workspace.path / "src/node_modules/dep.js").exists()


def test_reset_takes_back_every_change(workspace: Workspace, root: str) -> None:
    (workspace.path / "run").chmod(0o644)
    (workspace.path / "empty").rmdir()
    (workspace.path / "link").unlink()
    (workspace.path / "new").write_text("new\n")
    assert workspace.record() != root
    workspace.reset(root)
    assert workspace.record() == root


def test_what_holds_the_tree_already_is_left_as_it_is(workspace: Workspace, root: str) -> None:
    workspace.record()
    before = (workspace.path / "run").stat().st_ino
    workspace.reset(root)
    assert (workspace.path / "run").stat().st_ino == before


def test_what_an_agent_may_have_touched_is_made_again(workspace: Workspace, root: str) -> None:
    before = (workspace.path / "run").stat().st_ino
    (workspace.path / "keep").touch()  # so that no number is given out twice
    kept = os.open(workspace.path / "run", os.O_RDONLY)
    workspace.reset(root)
    os.close(kept)
    assert (workspace.path / "run").stat().st_ino != before


def test_remove_leaves_nothing(workspace: Workspace) -> None:
    workspace.remove()
    workspace.remove()
    assert beside(workspace) == []
    assert workspace.root is None
    with pytest.raises(NotFound):
        workspace.record()


def test_remove_takes_what_a_killed_restore_left(workspace: Workspace) -> None:
    half = workspace.path.parent / ".T.0123456789abcdef"
    other = workspace.path.parent / ".TT.0123456789abcdef"
    for made in (half, other):
        (made / "half").mkdir(parents=True)
    workspace.remove()
    assert beside(workspace) == [other.name]


def test_write_protected_directories_are_removed_and_links_not_followed(
    disk_store: Store, root: str, runtime_dir: Path
) -> None:
    """Root is stopped by no mode, so root does this as somebody else, in a child process."""
    workspace = Workspace(disk_store, runtime_dir / "workspaces" / "T")
    workspace.reset(root)
    outside = runtime_dir / "outside"
    outside.mkdir()
    (outside / "file").touch(mode=0o400)
    deep = workspace.path / "a/b"
    deep.mkdir(parents=True)
    (deep / "file").touch()
    (deep / "to-file").symlink_to(outside / "file")
    (deep / "to-folder").symlink_to(outside)
    everything = _below(runtime_dir)
    for path, mode in ((deep, 0o000), (deep.parent, 0o500), (workspace.path, 0o500)):
        path.chmod(mode)
    outside.chmod(0o500)
    _as_nobody(workspace, everything)
    assert beside(workspace) == []
    assert (outside / "file").stat().st_mode & 0o777 == 0o400
    assert outside.stat().st_mode & 0o777 == 0o500


def _below(top: Path) -> list[Path]:
    return [top, *(Path(folder, name) for folder, a, b in os.walk(top) for name in [*a, *b])]


def _as_nobody(workspace: Workspace, paths: list[Path]) -> None:
    """Remove the workspace without root's powers; `paths` are given away for that."""
    if os.geteuid() != 0:
        workspace.remove()
        return
    for path in paths:
        os.chown(path, 65534, 65534, follow_symlinks=False)
    child = os.fork()
    if child == 0:
        try:
            os.setgid(65534)
            os.setuid(65534)
            workspace.remove()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("target", ["/etc", "/no/such"])
def test_a_link_in_its_place_is_removed_not_followed(
    target: str, workspace: Workspace, root: str
) -> None:
    workspace.path.rename(workspace.path.with_name("moved"))
    workspace.path.symlink_to(target)
    workspace.reset(root)
    assert not workspace.path.is_symlink()
    assert workspace.record() == root
