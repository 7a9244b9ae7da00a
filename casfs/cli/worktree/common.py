"""What the commands of worktrees share."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from casfs.attach.projects import project_of
from casfs.cli.workspace.opening import Opening, open_best
from casfs.errors import Refused
from casfs.store.store import Store
from casfs.trees.git.index import GIT
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
    """Raises NotFound."""
    return worktree.find(store, name, current_project(store))


def mount(store: Store, unmounted: Worktree) -> None:
    """Mounts a worktree that a reboot, or a kill, has unmounted. Raises Refused where files were
    put into its directory since, Failed."""
    workspace = unmounted.workspace
    if workspace.state != "unmounted":
        return
    with suppress(FileNotFoundError):
        if any(workspace.path.iterdir()):
            raise Refused(
                f"{workspace.path} is not mounted, and has files that it would hide; move them away"
            )
    open_best(store, workspace.recorded, workspace.path, Opening())
    if unmounted.link is not None and not (workspace.path / GIT).exists():
        git_worktree.link_again(unmounted.link, workspace.path, os.environ)
