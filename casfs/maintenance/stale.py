"""What a store's mounts, workspaces, worktrees and attached agents need from a person: what is
stale, and what mends it. Nothing is changed."""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from casfs.attach import attachments, spool
from casfs.store.store import Store
from casfs.system import store_mounts
from casfs.workspaces import lifecycle, registry
from casfs.workspaces.registry import Workspace
from casfs.worktrees import git_link, git_worktree, worktree
from casfs.worktrees.worktree import Worktree


@dataclass(frozen=True, slots=True)
class Stale:
    """`kind`: mount, workspace, worktree, git, attach or report; `remedy`: what to do, as a person
    types it."""

    kind: str
    path: Path
    problem: str
    remedy: str


def listing(store: Store) -> Iterator[Stale]:
    """Yields what is stale in a store: dead mounts, workspaces and worktrees that are not mounted,
    or that git does not know, what git has of forgotten ones, agents that are attached in projects
    that are gone, and reports of agents that could not be read."""
    for point in store_mounts.mounted(store.root):
        if _is_dead(point):
            yield Stale("mount", point, "nothing serves it", f"casfs umount {_quoted(point)}")
    for workspace in registry.listing(store):
        if registry.WORKTREE in workspace.record:
            yield from _of_worktree(Worktree(workspace))
        else:
            yield from _of_workspace(workspace)
    yield from _of_git(store, worktree.listing(store))
    for attachment in attachments.gone(store.root):
        project = Path(attachment.directory or "")
        agent = attachment.agent
        problem = f"{agent} is attached there, and it is gone; if it was moved, attach it there"
        remedy = f"casfs detach {agent} --project {_quoted(project)}"
        yield Stale("attach", project, problem, remedy)
    if count := spool.set_aside_count(store.root):
        folder = store.root / spool.SPOOL / spool.ASIDE
        reports = "report of an agent" if count == 1 else "reports of agents"
        problem = f"{count} {reports} could not be read: no session has them"
        remedy = f"update casfs where the agent is newer; then rm -r {_quoted(folder)}"
        yield Stale("report", folder, problem, remedy)


def _is_dead(point: Path) -> bool:
    try:
        os.stat(point)
    except OSError as error:
        return error.errno != errno.EACCES
    return False


def _of_workspace(workspace: Workspace) -> Iterator[Stale]:
    path = workspace.path
    if workspace.state == "unmounted" or lifecycle.is_disconnected(workspace):
        remedy = f"casfs workspace open {workspace.root} {_quoted(path)}"
        yield Stale("workspace", path, "not mounted", remedy)


def _of_worktree(worktree: Worktree) -> Iterator[Stale]:
    path = worktree.path
    remove = f"casfs worktree rm --force {_quoted(path)}"
    mend = "casfs worktree list --all"
    workspace = worktree.workspace
    if not worktree.project.is_dir():
        problem = f"its project {worktree.project} is gone; if it comes back, nothing is to be done"
        yield Stale("worktree", path, problem, f"{remove} --keep")
    elif workspace.strategy.layered and not workspace.upper.is_dir():
        yield Stale("worktree", path, "what was written in it is gone from the store", remove)
    elif workspace.state == "unmounted" or lifecycle.is_disconnected(workspace):
        yield Stale("worktree", path, "not mounted", mend)
    elif worktree.link is not None and not git_link.is_linked(worktree.link, path):
        yield Stale("worktree", path, "its repository and it do not know one another", mend)


def _of_git(store: Store, worktrees: list[Worktree]) -> Iterator[Stale]:
    """Of a worktree that was forgotten here, its repository may still have its part."""
    known = {item.path for item in worktrees}
    links = [item.link for item in worktrees if item.link is not None]
    repositories = {link.repository for link in links}
    for repository in sorted(repositories):
        git = f"git -C {_quoted(repository)} worktree"
        for path in git_worktree.locked_by(store.root, repository):
            if path not in known:
                problem = f"{repository} has it as a worktree of this store, but the store does not"
                yield Stale("git", path, problem, f"{git} unlock {_quoted(path)} && {git} prune")


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
