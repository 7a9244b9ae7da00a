"""Creates a worktree: what `worktree add` and the hooks of agents share."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from casfs.cli.output import warn
from casfs.cli.workspace.opening import Opening, open_best
from casfs.errors import CasfsError
from casfs.store.nodes.directory import File
from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.system.sizes import readable
from casfs.trees import tree
from casfs.trees.dated import DatedTree
from casfs.trees.recorded_state import RecordedState
from casfs.workspaces.registry import Workspace
from casfs.worktrees import creation, project_files
from casfs.worktrees.creation import Wanted
from casfs.worktrees.project_files import ProjectLook
from casfs.worktrees.worktree import Worktree


def create(store: Store, directory: Path, wanted: Wanted, backend: str | None = None) -> Worktree:
    """Creates a worktree, by that strategy, by default the best one. Raises as
    `creation.create`."""

    def look(project: Path) -> ProjectLook:
        return _look_of_daemon(store, project) or project_files.look(store, project)

    def opened(
        state: RecordedState, path: Path, image: DatedTree | None, record: Mapping[str, Any]
    ) -> Workspace:
        opening = Opening(backend, image_tree=image, worktree=record)
        return open_best(store, state, path, opening)

    began = time.monotonic()
    created = creation.create(
        store, directory, wanted, os.environ, look=look, open_workspace=opened, warn=warn
    )
    if not created.workspace.strategy.layered and backend is None:
        files = tree.walk(store, created.workspace.recorded.full)
        size = sum(entry.digest.size_bytes for _, entry in files if isinstance(entry, File))
        warn(
            f"a copy of {readable(size)}, in {time.monotonic() - began:.1f} s; with root, or"
            " another fuse-overlayfs, it would take only what differs"
        )
    return created


def _look_of_daemon(store: Store, project: Path) -> ProjectLook | None:
    """Returns what the daemon, which follows the project from its first worktree on, knows of it;
    None where none runs, or it cannot tell."""
    try:
        answer = daemon_socket.request(store.root, "project_state", directory=str(project))
    except CasfsError:
        return None
    return ProjectLook(
        RecordedState.of_fields(answer["tree"], answer["fields"]),
        [bytes.fromhex(path) for path in answer["gitFiles"]],
        {bytes.fromhex(path): reason for path, reason in answer["unreadable"].items()},
        answer["newBytes"],
    )
