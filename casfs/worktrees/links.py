"""Symbolic links of a project that do not lead in a worktree to where they lead in the project."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from casfs.store.nodes.directory import Symlink
from casfs.store.store import Store
from casfs.trees import tree
from casfs.trees.recorded_state import RecordedState
from casfs.trees.restore.target import listed

MAX_ENTRIES = 20_000  # that are looked at: `add` takes a tenth of a second


def warnings(store: Store, state: RecordedState, project: Path, worktree: Path) -> Iterator[str]:
    """Yields a line about absolute links into the project, and one about relative ones to what is
    beside it and not beside the worktree. Only those of its work are looked at."""
    into: list[bytes] = []
    nowhere: list[bytes] = []
    for path, entry in islice(tree.walk(store, state.tree), MAX_ENTRIES):
        if not isinstance(entry, Symlink):
            continue
        link = os.fsdecode(path)
        target = os.fsdecode(entry.target)
        from_project, from_worktree = (
            Path(os.path.normpath(top / os.path.dirname(link) / target))
            for top in (project, worktree)
        )
        if os.path.isabs(target):
            if from_project.is_relative_to(project):
                into.append(path)
        elif (
            not from_project.is_relative_to(project)
            and from_project.exists()
            and not from_worktree.exists()
        ):
            nowhere.append(path)
    if into:
        yield f"links lead into {project}, what is written through them is there: {listed(into)}"
    if nowhere:
        yield f"links lead to what is beside {project}, and nowhere from here: {listed(nowhere)}"
