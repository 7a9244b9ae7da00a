"""What the commands of worktrees share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from casfs.attach.projects import project_of
from casfs.cli.json_values import moment
from casfs.store.store import Store
from casfs.workspaces import registry
from casfs.workspaces.registry import WORKTREE
from casfs.worktrees import worktree
from casfs.worktrees.worktree import Worktree


def current_project(store: Store) -> Path:
    """Returns the project of the working directory, also where that is a worktree."""
    directory = project_of(Path.cwd())
    workspace = registry.get(store, directory)
    if workspace is not None and WORKTREE in workspace.record:
        return Worktree(workspace).project
    return directory


def find(store: Store, name: str) -> Worktree:
    """Raises NotFound, Conflict."""
    return worktree.find(store, name, current_project(store))


def worktree_json(created: Worktree) -> dict[str, Any]:
    link = created.link
    return {
        "name": created.name,
        "directory": str(created.path),
        "project": str(created.project),
        "branch": None if link is None else link.branch,
        "state": created.workspace.state,
        "backend": created.workspace.strategy.name,
        "openedAt": moment(created.workspace.record["openedAt"]),
    }
