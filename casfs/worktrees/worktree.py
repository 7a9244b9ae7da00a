"""Worktrees: a project's directory as it is now, with what is ignored, private and derived, as
another directory to work in.

A worktree is a workspace (`casfs.workspaces`) whose record has, as `worktree`,

    name       unique in its project
    project    the directory that it was made from
    git        its linked work tree in the project's repository (`GitLink.record`), or absent
    applied    what it held, without what is derived, when it was applied last, or absent

Its `.git`, a file that names the repository, is in no record.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from casfs.backend.protocols import Head
from casfs.checkpoints.checkpoint import Checkpoint
from casfs.checkpoints.create import create_of_state
from casfs.errors import Conflict, Invalid, NotFound, Refused
from casfs.store.store import Store
from casfs.trees import dated, edit, recorded_state, tree
from casfs.trees.dated import DatedTree
from casfs.trees.diff import merge
from casfs.trees.git import linked_repositories
from casfs.trees.git.index import GIT
from casfs.trees.recorded_state import RecordedState
from casfs.trees.restore import apply as tree_apply
from casfs.trees.restore.apply import Applied
from casfs.trees.restore.target import listed
from casfs.trees.scratch_store import ScratchStore
from casfs.trees.snapshot import exclusions, policy, working_tree
from casfs.trees.snapshot.report import SnapshotOptions, SnapshotReport
from casfs.workspaces import commit, lifecycle, registry
from casfs.workspaces.registry import WORKTREE, Workspace
from casfs.worktrees import git_worktree
from casfs.worktrees.git_worktree import GitLink

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
GIT_NAME = os.fsencode(GIT)
MAX_DIFFERENT = 5000  # entries between a worktree and the image below it
# Opens a workspace of a state at a directory, with this in its record.
OpenWorkspace = Callable[[RecordedState, Path, Mapping[str, Any]], Workspace]


@dataclass(frozen=True, slots=True)
class NewWorktree:
    """`project`: of which directory; `path`: where it is to be; `branch`: that is checked out in
    it, new or not."""

    project: Path
    name: str
    path: Path
    branch: str


@dataclass(frozen=True, slots=True)
class Worktree:
    workspace: Workspace

    @property
    def record(self) -> Mapping[str, Any]:
        fields: Mapping[str, Any] = self.workspace.record[WORKTREE]
        return fields

    @property
    def name(self) -> str:
        return str(self.record["name"])

    @property
    def project(self) -> Path:
        return Path(self.record["project"])

    @property
    def path(self) -> Path:
        return self.workspace.path

    @property
    def link(self) -> GitLink | None:
        fields = self.record.get("git")
        return None if fields is None else GitLink.of_record(fields)


def listing(store: Store, project: Path | None = None) -> list[Worktree]:
    """Returns the worktrees of a project, or all, by directory."""
    worktrees = [
        Worktree(workspace) for workspace in registry.listing(store) if WORKTREE in workspace.record
    ]
    return [worktree for worktree in worktrees if project in (None, worktree.project)]


def find(store: Store, name: str, project: Path) -> Worktree:
    """Returns the worktree of a project, or the only one of that name. Raises NotFound, Conflict
    where several projects have it."""
    candidates = [worktree for worktree in listing(store) if worktree.name == name]
    own = [worktree for worktree in candidates if worktree.project == project]
    if len(own or candidates) == 1:
        return (own or candidates)[0]
    if candidates:
        projects = ", ".join(str(worktree.project) for worktree in candidates)
        raise Conflict(f"several projects have a worktree {name!r}: {projects}; go into one")
    raise NotFound(f"no worktree {name!r}; see `casfs worktree list`")


def default_path(project: Path, name: str) -> Path:
    return project.parent / f"{project.name}.worktrees" / name


def check_new(store: Store, project: Path, name: str) -> None:
    """Raises Invalid for a name that is not allowed, Conflict where the project has it."""
    if not NAME.fullmatch(name) or ".." in name or name.endswith((".", ".lock")):
        raise Invalid(f"{name!r}: a worktree's name has letters, digits, and . _ - inside")
    if any(worktree.name == name for worktree in listing(store, project)):
        raise Conflict(f"{project} has a worktree {name!r}; `casfs worktree path {name}`")


def new_name(store: Store, project: Path) -> str:
    """Returns a name that the project does not have yet."""
    names = {worktree.name for worktree in listing(store, project)}
    return next(name for number in range(1, len(names) + 2) if (name := f"w{number}") not in names)


def look(store: Store, project: Path, report: SnapshotReport) -> RecordedState:
    """Stores a project as it is now, with what is private or derived, without the `.git` at its
    top; a submodule has a repository of its own in place of its `.git` file, which leads to the
    project's. Raises NotFound, Refused, Failed."""
    rules = exclusions.ignore_rules(store, project, report, keeps_derived=True)
    rules.excluded = {**rules.excluded, GIT_NAME: "the repository"}
    options = SnapshotOptions(scanner=policy.load(store).scanner(), leaves_out_unreadable=True)
    with store.batch() as batch:
        state = working_tree.snapshot(store, batch, project, rules, report=report, options=options)
        state, left_out = linked_repositories.replaced(
            store, batch, state, project, report.git_files
        )
    report.unreadable |= dict.fromkeys(left_out, "the repository that it names cannot be read")
    return state


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
    return RecordedState(work.tree, full.tree, times=work.times, local_times=full.times)


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
    fields: dict[str, Any] = {"name": plan.name, "project": str(plan.project)}
    if not git_worktree.is_in_git(plan.project):
        return Worktree(open_workspace(state, plan.path, fields))
    link = git_worktree.add(plan.project, plan.path, plan.name, plan.branch, env)
    workspace = None
    try:
        workspace = open_workspace(state, plan.path, fields | {"git": link.record})
        git_worktree.fill(link, plan.project, plan.path, env)
    except BaseException:
        if workspace is not None:
            lifecycle.close(store, workspace, force=True)
        git_worktree.remove(link, plan.project, plan.path, env)
        raise
    return Worktree(workspace)


def record(store: Store, worktree: Worktree) -> RecordedState:
    """Stores what a worktree holds now; no head keeps it. Raises Failed."""
    with store.batch() as batch:
        return commit.snapshot(store, batch, worktree.workspace, SnapshotReport())


def unsaved(store: Store, worktree: Worktree, env: Mapping[str, str]) -> list[bytes]:
    """Returns the paths that were changed in a worktree, and are neither applied nor committed as
    they are. What git ignores, or is derived, counts only where it is private. Raises Failed."""
    scratch = ScratchStore(store)
    state = record(scratch, worktree)
    before = worktree.record.get("applied")
    if before is None:
        before = recorded_state.with_private(scratch, worktree.workspace.recorded)
    after = recorded_state.with_private(scratch, state)
    paths = merge.changes(scratch, before, after).paths
    if worktree.link is None or not paths:
        return paths
    counted = git_worktree.uncommitted(worktree.path, env)
    counted |= recorded_state.private_files(scratch, state).keys()
    return [path for path in paths if path in counted]


def remove(
    store: Store, worktree: Worktree, env: Mapping[str, str], *, force: bool = False
) -> bool:
    """Removes a worktree; its branch stays where it has commits of its own. Returns whether the
    branch is gone, too. Raises Refused where programs run in it, and, unless `force`, where
    something would be lost."""
    if not force:
        _refuse_loss(store, worktree, env)
    lifecycle.close(store, worktree.workspace, force=True)
    with suppress(OSError):  # others are in it
        worktree.path.parent.rmdir()
    # Last: while git knows of it, a name or a branch is not free, and `remove` can be run again.
    link = worktree.link
    return link is None or git_worktree.remove(link, worktree.project, worktree.path, env)


def _refuse_loss(store: Store, worktree: Worktree, env: Mapping[str, str]) -> None:
    registry.check_open(worktree.workspace)
    if paths := unsaved(store, worktree, env):
        raise Refused(
            f"worktree {worktree.name} has changes that are neither applied nor committed:"
            f" {listed(paths)}; `casfs worktree apply {worktree.name}`, or rm --keep or --force"
        )
    if worktree.link is not None and git_worktree.has_lost_commits(worktree.path, env):
        raise Refused(
            f"worktree {worktree.name} has commits that are on no branch; make one there"
            " (git switch -c), or rm --force"
        )


@dataclass(frozen=True, slots=True)
class Applying:
    """`check`: change nothing; `with_ignored`: also what git ignores; `on_change`: as of
    `casfs.trees.restore.apply.apply`."""

    directory: Path
    check: bool
    with_ignored: bool
    on_change: Callable[[RecordedState], None]


def apply(store: Store, worktree: Worktree, options: Applying, env: Mapping[str, str]) -> Applied:
    """Brings what was changed in a worktree to a directory, by a three-way merge. Raises as
    `casfs.trees.restore.apply.apply`."""
    registry.check_open(worktree.workspace)
    old = worktree.workspace.recorded
    new = record(store, worktree)
    if worktree.link is not None and not options.with_ignored:
        before, after = (recorded_state.with_private(store, state) for state in (old, new))
        changed = merge.changes(store, before, after).paths
        ignored = git_worktree.ignored(worktree.path, changed, env)
        new = _with_paths_of(store, new, old, ignored)
    done = tree_apply.apply(
        store,
        old,
        new,
        options.directory,
        label=f"worktree {worktree.name}",
        check=options.check,
        on_change=options.on_change,
    )
    if not options.check and not done.failed:
        _note(store, worktree, applied=recorded_state.with_private(store, new))
    return done


def _with_paths_of(
    store: Store, state: RecordedState, old: RecordedState, paths: Collection[bytes]
) -> RecordedState:
    """Returns a state in which these paths are as in the state `old`."""
    if not paths:
        return state
    with store.local_writes().batch() as batch:
        sides = []
        for side, before in ((state.work, old.tree), (state.whole, old.full)):
            entries = {path: tree.find(store, before, path) for path in paths}
            root = edit.with_entries(
                store, batch, side.tree, changes=entries, like=before, keep_empty=True
            )
            batch.commit()
            times = dated.times_for(store, batch, tree=root.hash, source=side)
            sides.append(DatedTree(root.hash, times))
    work, whole = sides
    return RecordedState(work.tree, whole.tree, times=work.times, local_times=whole.times)


def keep(store: Store, worktree: Worktree) -> Checkpoint:
    """Records what a worktree holds as a checkpoint. Raises Failed."""
    registry.check_open(worktree.workspace)
    name = f"worktree-{worktree.name}"
    message = f"worktree {worktree.name} of {worktree.project.name}"
    return create_of_state(store, name, record(store, worktree), message)


def _note(store: Store, worktree: Worktree, **fields: Any) -> None:
    old = worktree.workspace.head
    values = {**old.record, WORKTREE: {**worktree.record, **fields}}
    registry.swap(store, worktree.workspace.id, old, Head(old.hash, values))
