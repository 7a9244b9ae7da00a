"""Creates a worktree: what `worktree add` and the hooks of agents share."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from casfs.attach.projects import project_of
from casfs.checkpoints.revisions import resolve
from casfs.cli.common import refuse_home_or_root
from casfs.cli.output import warn
from casfs.cli.workspace.opening import Opening, open_best
from casfs.errors import CasfsError, Conflict, Refused
from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.system.paths import printable
from casfs.trees.recorded_state import RecordedState
from casfs.trees.snapshot.report import SnapshotReport
from casfs.workspaces.registry import Workspace
from casfs.worktrees import creation, environment, git_worktree, worktree
from casfs.worktrees.creation import NewWorktree
from casfs.worktrees.git_worktree import GitSource
from casfs.worktrees.worktree import Worktree

MAX_LOOKS = 3


@dataclass(frozen=True)
class Wanted:
    """`name`: None for a new one; `revision`: None for the directory as it is now; `branch`: None
    for that of the worktree's name; `path`: None for the default; `backend`: None for the best."""

    name: str | None = None
    revision: str | None = None
    branch: str | None = None
    path: str | None = None
    backend: str | None = None


@dataclass(frozen=True)
class _Look:
    """`git_files`: the `.git` files, of submodules; `unreadable`: what was left out, and why."""

    state: RecordedState
    git_files: list[bytes]
    unreadable: dict[bytes, str]


def create(store: Store, directory: Path, wanted: Wanted) -> Worktree:
    """Creates a worktree of the project that `directory` is in; in a worktree, one that begins as
    that is. Raises as `creation.add`."""
    source = project_of(directory)
    inside = worktree.at(store, source)
    project = source if inside is None else inside.project
    refuse_home_or_root(project, force=None)
    git_source = None
    if git_worktree.is_in_git(source):
        git_source = git_worktree.read_source(source, os.environ)
    name = wanted.name
    if name is None:
        name = worktree.new_name(
            store, project, lambda name: git_worktree.has_branch(source, name, os.environ)
        )
    worktree.check_new(store, project, name)
    branch = name if wanted.branch is None else wanted.branch
    if git_source is not None and wanted.branch is None:
        git_worktree.check_new_branch(source, branch, os.environ)
    path = _path(project, source, name, wanted.path)
    if wanted.revision is not None:
        state = creation.without_git(store, resolve(store, wanted.revision).state)
    else:
        state, git_source = _state(store, project, inside, git_source)
    port = worktree.free_ports(store, path)
    state = environment.with_env(store, state, name=name, branch=branch, port=port)
    plan = NewWorktree(project, git_source, name=name, path=path, branch=branch, port=port)

    def opened(state: RecordedState, path: Path, record: Mapping[str, Any]) -> Workspace:
        image_tree = creation.similar_image(store, project, state)
        opening = Opening(wanted.backend, image_tree=image_tree, worktree=record, visible=True)
        return open_best(store, state, path, opening)

    return creation.add(store, state, plan, os.environ, open_workspace=opened)


def _path(project: Path, source: Path, name: str, wanted: str | None) -> Path:
    """Returns where a worktree is to be. Raises Refused for a link, and for a place inside of what
    it is made from, which would then hold itself."""
    if wanted is None:
        return worktree.default_path(project, name)
    path = Path(os.path.abspath(wanted))
    real = path.parent.resolve() / path.name
    if path.is_symlink():
        raise Refused(f"{path} is a link; name the directory itself")
    if real.is_relative_to(project) or real.is_relative_to(source):
        raise Refused(f"{path} is inside of {project}; choose another directory")
    return real


def _state(
    store: Store, project: Path, inside: Worktree | None, source: GitSource | None
) -> tuple[RecordedState, GitSource | None]:
    """Returns the files and what git has of them, of one moment: a commit while they are read would
    be taken back by the next one in the worktree. Raises Conflict."""
    for _ in range(MAX_LOOKS):
        state = _look(store, project) if inside is None else worktree.record(store, inside)
        if source is None:
            return state, None
        before, source = source, git_worktree.read_source(source.top, os.environ)
        if before == source:
            return state, source
    raise Conflict(f"git changes {project} all the time; try again")


def _look(store: Store, project: Path) -> RecordedState:
    look = _look_of_daemon(store, project)
    if look is None:
        report = SnapshotReport()
        state = creation.look(store, project, report)
        look = _Look(state, list(report.git_files), report.unreadable)
    state, left_out = creation.with_own_repositories(store, look.state, project, look.git_files)
    reasons = look.unreadable | dict.fromkeys(
        left_out, "the repository that it names is unreadable"
    )
    for entry, reason in reasons.items():
        warn(f"{printable(entry)} is left out: {reason}")
    return state


def _look_of_daemon(store: Store, project: Path) -> _Look | None:
    """Returns what the daemon, which follows the project from its first worktree on, knows of it;
    None where none runs, or it cannot tell."""
    try:
        answer = daemon_socket.request(store.root, "project_state", directory=str(project))
    except CasfsError:
        return None
    return _Look(
        RecordedState.of_fields(answer["tree"], answer["fields"]),
        [bytes.fromhex(path) for path in answer["gitFiles"]],
        {bytes.fromhex(path): reason for path, reason in answer["unreadable"].items()},
    )
