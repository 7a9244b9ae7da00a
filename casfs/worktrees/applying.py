"""Applies what was changed in a worktree to its project, or to another directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from casfs.store.store import Store
from casfs.system.paths import real_path
from casfs.trees import dated, recorded_state
from casfs.trees.diff import merge
from casfs.trees.recorded_state import RecordedState
from casfs.trees.restore import apply as tree_apply
from casfs.trees.restore.apply import Applied
from casfs.workspaces import registry
from casfs.worktrees import applied, git_questions, nested
from casfs.worktrees.worktree import Worktree, note, record


@dataclass(frozen=True, slots=True)
class Applying:
    """`check`: change nothing; `with_ignored`: also what git ignores; `actor`: who asks for it."""

    directory: Path
    check: bool
    with_ignored: bool
    actor: str


def apply(store: Store, worktree: Worktree, options: Applying, env: Mapping[str, str]) -> Applied:
    """Brings what was changed in a worktree to a directory, by a three-way merge; to its project
    what was changed since the last time. Raises as `casfs.trees.restore.apply.apply`."""
    registry.check_open(worktree.workspace)
    is_to_project = real_path(options.directory) == real_path(worktree.project)
    state = record(store, worktree)
    if is_to_project:
        old = applied.base(store, worktree)
    else:
        old = recorded_state.with_private(store, worktree.workspace.recorded)
    new = recorded_state.with_private(store, state)
    if worktree.link is not None and not options.with_ignored:
        changed = merge.changes(store, old, new).paths
        paths = [path for path in changed if nested.is_of_top(store, state.full, path)]
        ignored = git_questions.ignored(worktree.link, worktree.path, paths, env)
        new = applied.with_paths_of(store, new, old, ignored)
    with store.local_writes().batch() as batch:
        times = dated.times_for(store, batch, tree=new, source=state.whole)
    done = tree_apply.apply(
        store,
        RecordedState(old),
        RecordedState(new, times=times),
        options.directory,
        label=f"worktree {worktree.name}",
        check=options.check,
        actor=options.actor,
    )
    if is_to_project and not options.check:
        note(store, worktree, applies=applied.with_apply(store, worktree, done, old, new))
    return done
