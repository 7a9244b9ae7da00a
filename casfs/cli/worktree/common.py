"""What the commands of worktrees share."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from casfs.attach.projects import project_of
from casfs.cli.workspace.opening import Opening, open_best
from casfs.errors import NotFound, Refused
from casfs.store.store import Store
from casfs.trees.git.index import GIT
from casfs.workspaces import lifecycle, registry
from casfs.worktrees import git_worktree, worktree
from casfs.worktrees.worktree import Worktree


def current_project(store: Store) -> Path:
    return project_at(store, Path.cwd())


def project_at(store: Store, directory: Path) -> Path:
    """Returns the project that a directory is in, also where that is in a worktree of it."""
    source = project_of(directory)
    inside = worktree.at(store, source)
    return source if inside is None else inside.project


def find(store: Store, name: str) -> Worktree:
    """Returns the worktree of the project that one is in, or the one at a path. Raises
    NotFound."""
    if "/" not in name:
        return worktree.find(store, name, current_project(store))
    path = registry.absolute(Path(name))
    at_path = worktree.at(store, path)
    if at_path is None:
        raise NotFound(f"{path} is not a worktree; see `casfs worktree list --all`")
    return at_path


def mount(store: Store, unmounted: Worktree) -> None:
    """Mounts a worktree that a reboot has unmounted, or whose server is gone, with all that was
    written in it. Raises Refused where files were put into its directory since, Failed."""
    workspace = unmounted.workspace
    is_mounted = workspace.state != "unmounted"
    if is_mounted and not lifecycle.is_disconnected(workspace):
        return
    with suppress(FileNotFoundError, NotADirectoryError):
        if not is_mounted and any(workspace.path.iterdir()):
            raise Refused(
                f"{workspace.path} is not mounted, and has files that it would hide; move them away"
            )
    open_best(store, workspace.recorded, workspace.path, Opening())
    if unmounted.link is not None and not (workspace.path / GIT).exists():
        git_worktree.link_again(unmounted.link, workspace.path, os.environ)
