"""What the commands of worktrees share."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from casfs.cli.output import warn
from casfs.cli.workspace.opening import Opening, open_best
from casfs.directories.projects import work_tree_of
from casfs.errors import NotFound, Refused
from casfs.store.store import Store
from casfs.workspaces import lifecycle, registry
from casfs.worktrees import git_link, git_mend, worktree
from casfs.worktrees.git_link import Lock
from casfs.worktrees.worktree import Worktree


def current_project(store: Store) -> Path:
    return project_at(store, Path.cwd())


def project_at(store: Store, directory: Path) -> Path:
    """Returns the project that a directory is in, also where that is in a worktree of it."""
    source = work_tree_of(directory)
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


def mount(store: Store, listed: Worktree) -> None:
    """Mounts a worktree that a reboot has unmounted, or whose server is gone, with all that was
    written in it; and has its repository and it know one another again. Raises Refused where files
    were put into its directory since, Failed."""
    workspace = listed.workspace
    is_mounted = workspace.state != "unmounted"
    if not is_mounted or lifecycle.is_disconnected(workspace):
        if not is_mounted:
            _check_empty(workspace.path)
        open_best(store, workspace.recorded, workspace.path, Opening())
    elif listed.link is None or git_link.is_linked(listed.link, workspace.path):
        return
    if listed.link is not None:
        for line in git_mend.mend(
            listed.link, Lock(store.root, listed.name), workspace.path, os.environ
        ):
            warn(f"worktree {listed.name} was mended: {line}")


def _check_empty(path: Path) -> None:
    with suppress(FileNotFoundError, NotADirectoryError):
        if any(path.iterdir()):
            raise Refused(
                f"{path} is not mounted, and has files that it would hide; move them away"
            )
