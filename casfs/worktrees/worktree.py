"""Worktrees: a project's directory as it is now, with what is ignored, private and derived, as
another directory to work in.

A worktree is a workspace (`casfs.workspaces`) whose record has, as `worktree`,

    name       unique in its project
    project    the directory that it was made from
    git        its linked work tree in the project's repository (`GitLink.record`), or absent
    portBase   the first of its ports (`casfs.worktrees.environment`)
    applies    what was applied of it to the project (`casfs.worktrees.applied`), or absent

Its `.git`, a file that names the repository, is in no record.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from casfs.backend.protocols import Head
from casfs.errors import Conflict, Invalid, NotFound, Refused
from casfs.store.store import Store
from casfs.system.clock import moment
from casfs.trees.recorded_state import RecordedState
from casfs.trees.snapshot.report import SnapshotReport
from casfs.workspaces import commit, registry
from casfs.workspaces.registry import WORKTREE, Workspace
from casfs.worktrees import environment
from casfs.worktrees.git_link import GitLink

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


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
    def environment(self) -> dict[str, str]:
        return environment.variables(self.name, self.record["portBase"])

    @property
    def applies(self) -> list[Mapping[str, Any]]:
        """The records of its applies to the project, oldest first."""
        return list(self.record.get("applies", ()))

    @property
    def link(self) -> GitLink | None:
        fields = self.record.get("git")
        return None if fields is None else GitLink.of_record(fields)

    @property
    def summary(self) -> dict[str, Any]:
        """What is shown of it, as JSON."""
        return {
            "name": self.name,
            "directory": str(self.path),
            "project": str(self.project),
            "branch": None if self.link is None else self.link.current_branch or None,
            "portBase": self.record["portBase"],
            "state": self.workspace.state,
            "backend": self.workspace.strategy.name,
            "openedAt": moment(self.workspace.record["openedAt"]),
        }


def listing(store: Store, project: Path | None = None) -> list[Worktree]:
    """Returns the worktrees of a project, or all, by directory."""
    worktrees = [
        Worktree(workspace) for workspace in registry.listing(store) if WORKTREE in workspace.record
    ]
    return [worktree for worktree in worktrees if project in (None, worktree.project)]


def find(store: Store, name: str, project: Path) -> Worktree:
    """Returns the worktree of a project. Raises NotFound."""
    projects = []
    for worktree in listing(store):
        if worktree.name == name and worktree.project == project:
            return worktree
        if worktree.name == name:
            projects.append(str(worktree.project))
    where = f"; {', '.join(projects)} has one" if projects else ""
    raise NotFound(f"{project} has no worktree {name!r}{where}; see `casfs worktree list --all`")


def at(store: Store, directory: Path) -> Worktree | None:
    """Returns the worktree whose directory this is."""
    workspace = registry.get(store, directory)
    return Worktree(workspace) if workspace and WORKTREE in workspace.record else None


def default_folder(project: Path) -> Path:
    return project.parent / f"{project.name}.worktrees"


def check_new(worktrees: Iterable[Worktree], project: Path, name: str) -> None:
    """Raises Invalid for a name that is not allowed, Conflict where the project has it."""
    if not NAME.fullmatch(name) or ".." in name or name.endswith((".", ".lock")):
        raise Invalid(f"{name!r}: a worktree's name has letters, digits, and . _ - inside")
    if name in _names(worktrees, project):
        raise Conflict(f"{project} has a worktree {name!r}; `casfs worktree path {name}`")


def new_name(worktrees: Iterable[Worktree], project: Path, is_taken: Callable[[str], bool]) -> str:
    """Returns a name that no worktree of the project has. `is_taken`: whether a branch has it."""
    names = _names(worktrees, project)
    for number in itertools.count(1):
        name = f"w{number}"
        if name not in names and not is_taken(name):
            return name
    raise AssertionError("unreachable")


def _names(worktrees: Iterable[Worktree], project: Path) -> set[str]:
    return {worktree.name for worktree in worktrees if worktree.project == project}


def free_ports(worktrees: Iterable[Worktree], path: Path) -> int:
    """Returns the first port of a block for a new worktree. Raises Failed."""
    taken = {worktree.record["portBase"] for worktree in worktrees}
    return environment.free_ports(taken, path)


def check_directory(worktree: Worktree) -> None:
    """Raises Refused where a program has put a link in place of the directory of a copy: what that
    leads to is not the worktree's."""
    if worktree.path.is_symlink():
        raise Refused(f"{worktree.path} is a link, and not the worktree any more; move it away")


def record(store: Store, worktree: Worktree) -> RecordedState:
    """Stores what a worktree holds now; no head keeps it. Raises Refused, Failed."""
    check_directory(worktree)
    with store.batch() as batch:
        return commit.snapshot(store, batch, worktree.workspace, SnapshotReport())


def note(store: Store, worktree: Worktree, **fields: Any) -> None:
    old = worktree.workspace.head
    values = {**old.record, WORKTREE: {**worktree.record, **fields}}
    registry.swap(store, worktree.workspace.id, old, Head(old.hash, values))
