"""Shows a worktree at its project's own path, to one process and its children: what has that path
inside, such as a virtual environment or CMake's cache, works there as it is.

In a mount namespace of their own the worktree is bound over the project. This hides the project's
repository, which is therefore bound to the workspace's folder in the store, and the `.git` file of
the worktree names that one. Git in submodules, which borrow objects by the old path, does not work,
and settings that hold for a directory of git (`includeIf.gitdir`) do not.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from casfs.errors import Failed
from casfs.system import mounts
from casfs.system.files import os_errors
from casfs.trees.git.index import GIT
from casfs.workspaces import registry
from casfs.worktrees.git_link import GitLink, leading_to, write_synced
from casfs.worktrees.worktree import Worktree

REPOSITORY = "repository"  # in the folder of the workspace
LINK = "git-link"


def enter(worktree: Worktree) -> Path:
    """Moves this process, which must have one thread, to a namespace in which the worktree is at
    its project's path; returns that. Raises Failed; Refused while it is being removed."""
    project = worktree.project
    if not project.is_dir():
        raise Failed(f"{project} is gone; nothing can be shown there")
    # Until the last program has ended: the kernel does not say of a mount in another namespace that
    # it is busy, so `rm` would take away what they write to.
    registry.lock(worktree.workspace, shared=True)
    with os_errors("cannot create a mount namespace"):
        _unshare()
        # Mounts from outside still come in, none goes out.
        mounts.mount("none", Path("/"), type="none", flags=mounts.MS_REC | mounts.MS_SLAVE)
    link = worktree.link
    with os_errors(f"cannot show {worktree.path} at {project}"):
        is_hidden = link is not None and link.admin.is_relative_to(project)
        if link is not None and is_hidden:
            _bind_repository(worktree, link)
        _bind(worktree.path, project)
        if is_hidden:
            _bind(worktree.workspace.folder / LINK, project / GIT)
    return project


def _bind_repository(worktree: Worktree, link: GitLink) -> None:
    folder = worktree.workspace.folder
    point = folder / REPOSITORY
    point.mkdir(exist_ok=True)
    _bind(link.repository, point)
    moved = replace(link, admin=point / link.admin.relative_to(link.repository))
    write_synced(folder / LINK, leading_to(moved))


def _bind(source: Path, point: Path) -> None:
    flags = mounts.MS_BIND | mounts.MS_REC
    mounts.mount(str(source), point, type="none", flags=flags)


def _unshare() -> None:
    if os.geteuid() == 0:
        mounts.unshare(mounts.CLONE_NEWNS)
    else:
        mounts.enter_user_namespace()
