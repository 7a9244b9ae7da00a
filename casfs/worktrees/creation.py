"""Creates worktrees."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from casfs.store.store import Store
from casfs.trees import dated, edit, tree
from casfs.trees.dated import DatedTree
from casfs.trees.git import linked_repositories
from casfs.trees.git.index import GIT
from casfs.trees.recorded_state import RecordedState
from casfs.trees.snapshot import exclusions, policy, working_tree
from casfs.trees.snapshot.report import SnapshotOptions, SnapshotReport
from casfs.workspaces import lifecycle
from casfs.workspaces.registry import Workspace
from casfs.worktrees import git_worktree
from casfs.worktrees.git_worktree import GitSource
from casfs.worktrees.worktree import Worktree, listing

GIT_NAME = os.fsencode(GIT)
WITHOUT_REPOSITORY = {GIT_NAME: "the repository"}
MAX_DIFFERENT = 5000  # entries between a worktree and the image below it
# Opens a workspace of a state at a directory, with this in its record.
OpenWorkspace = Callable[[RecordedState, Path, Mapping[str, Any]], Workspace]


@dataclass(frozen=True, slots=True)
class NewWorktree:
    """`project`: of which directory; `source`: of git, None without one: what it begins with is of
    the project, or of a worktree of it; `path`: where it is to be; `branch`: that is checked out in
    it, new or not; `port`: the first of its own."""

    project: Path
    source: GitSource | None
    name: str
    path: Path
    branch: str
    port: int


def look(store: Store, project: Path, report: SnapshotReport) -> RecordedState:
    """Stores a project as it is now, with what is private or derived, without the `.git` at its
    top. Raises NotFound, Refused, Failed."""
    rules = exclusions.ignore_rules(store, project, report, keeps_derived=True)
    rules.excluded = {**rules.excluded, **WITHOUT_REPOSITORY}
    options = SnapshotOptions(scanner=policy.load(store).scanner(), leaves_out_unreadable=True)
    with store.batch() as batch:
        return working_tree.snapshot(store, batch, project, rules, report=report, options=options)


def with_own_repositories(
    store: Store, state: RecordedState, project: Path, git_files: Iterable[bytes]
) -> tuple[RecordedState, list[bytes]]:
    """Returns the state in which a submodule has a repository of its own in place of its `.git`
    file, which leads to the project's; and the `.git` files that are left out, as what they name
    cannot be read."""
    with store.batch() as batch:
        return linked_repositories.replaced(store, batch, state, top=project, git_files=git_files)


def without_git(store: Store, state: RecordedState) -> RecordedState:
    """Returns a state without the `.git` at its top, which a thread's may have."""
    if tree.find(store, state.full, GIT_NAME) is None:
        return state
    with store.local_writes().batch() as batch:
        work, full = (
            DatedTree(
                edit.with_entries(store, batch, root=side.tree, changes={GIT_NAME: None}).hash
            )
            for side in (state.work, state.whole)
        )
        batch.commit()
        work, full = (
            side._replace(times=dated.times_for(store, batch, tree=side.tree, source=source))
            for side, source in ((work, state.work), (full, state.whole))
        )
    return RecordedState.of_parts(work, full)


def similar_image(store: Store, project: Path, state: RecordedState) -> DatedTree | None:
    """Returns the tree of the image that is mounted for an open worktree of the project, the newest
    one, where few entries differ from it. A whole image takes seconds, one of few entries none."""
    worktrees = listing(store, project)
    worktrees.sort(key=lambda worktree: -worktree.workspace.record["openedAt"])
    for worktree in worktrees:
        workspace = worktree.workspace
        if workspace.strategy.native and workspace.state == "open":
            changes = tree.changes(store, workspace.image_tree.tree, state.full)
            few = len(list(islice(changes, MAX_DIFFERENT + 1))) <= MAX_DIFFERENT
            return workspace.image_tree if few else None
    return None


def add(
    store: Store,
    state: RecordedState,
    plan: NewWorktree,
    env: Mapping[str, str],
    open_workspace: OpenWorkspace,
) -> Worktree:
    """Makes a worktree that begins with a state of its project. Raises Refused (no commit, the
    branch, the directory), Conflict, Failed; then nothing is left of it."""
    fields = {"name": plan.name, "project": str(plan.project), "portBase": plan.port}
    if plan.source is None:
        return Worktree(open_workspace(state, plan.path, fields))
    link = git_worktree.add(plan.source, plan.path, name=plan.name, branch=plan.branch, env=env)
    workspace = None
    try:
        workspace = open_workspace(state, plan.path, fields | {"git": link.record})
        git_worktree.fill(link, plan.source, plan.path, env)
    except BaseException:
        if workspace is not None:
            lifecycle.close(store, workspace, force=True)
        git_worktree.remove(link, env)
        raise
    return Worktree(workspace)
