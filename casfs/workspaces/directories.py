"""Directories that are known to hold a tree: restored, recorded or opened as workspaces.

What such a directory holds now is recorded as a tree that no head keeps, so that it can be compared
with any other (`casfs.trees.snapshot.working_tree`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from casfs.digest import TreeHash
from casfs.errors import Refused
from casfs.store.store import Store
from casfs.trees.recorded_state import RecordedState
from casfs.trees.restore.restore_state import RestoreStates
from casfs.workspaces import registry
from casfs.workspaces.registry import Workspace

if TYPE_CHECKING:
    from casfs.trees.snapshot.report import SnapshotOptions, SnapshotReport


@dataclass(frozen=True, slots=True)
class KnownDirectory:
    """`path`: the directory that held `state`; `below`: the path in it that was asked
    for; `name`: NAME@ID of the checkpoint that it was recorded as, else empty."""

    path: Path
    state: RecordedState
    below: bytes
    workspace: Workspace | None
    name: str = ""

    @property
    def root(self) -> TreeHash:
        """The work that it held."""
        return self.state.tree


def find(store: Store, directory: Path) -> KnownDirectory | None:
    """Returns what the nearest directory, this one or above it, is known to hold. Raises Refused
    where a restore into it was interrupted."""
    real_directory = Path(os.path.realpath(directory))
    for path in (real_directory, *real_directory.parents):
        below = b"" if path == real_directory else os.fsencode(real_directory.relative_to(path))
        workspace = registry.get(store, path)
        if workspace is not None:
            return KnownDirectory(path, workspace.recorded, below=below, workspace=workspace)
        state = RestoreStates(store.root).find(path)
        if state is not None and path.exists() and state.is_of(os.lstat(path)):
            if state.state is None:
                raise Refused(f"{path}: a restore was interrupted; run it again")
            return KnownDirectory(path, state.state, below=below, workspace=None, name=state.name)
    return None


def record(
    store: Store,
    directory: Path,
    known: KnownDirectory | None,
    base: TreeHash | None,
    report: SnapshotReport,
    options: SnapshotOptions | None = None,
) -> RecordedState:
    """Stores what `directory` holds now, without a head. `base`: a tree none of whose paths is
    ignored, where nothing is `known`. Raises as `working_tree.record`."""
    from casfs.trees.snapshot import working_tree  # to look at a revision needs no scanner
    from casfs.workspaces import commit

    workspace = None if known is None else known.workspace
    if workspace is not None and workspace.record["readOnly"]:
        return workspace.recorded
    if workspace is not None:
        with store.batch() as batch:
            return commit.snapshot(store, batch, workspace=workspace, report=report)
    states = [RecordedState(base)] if base is not None else []
    if known is not None:
        states.insert(0, known.state)
    return working_tree.record(store, directory, known=states, report=report, options=options)
