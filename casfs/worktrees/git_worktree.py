"""The git side of a worktree: a linked work tree of the project's repository, made by git itself.

Git makes an empty one, locked, so that nothing prunes it while its directory is not mounted. Once
the files are there, its index is the project's own: what was changed or staged is so here, too.
What the repository shares stays shared: refs, stashes, configuration, hooks.

Format: Documentation/gitrepository-layout of git.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from casfs.errors import Failed, Refused
from casfs.system.files import os_errors
from casfs.system.git_program import NO_HOOKS, git
from casfs.trees.git import index_stats
from casfs.trees.git.index import GIT, pointed_to

# Of a merge or the like that has begun: git in the worktree can end it. A rebase goes on in the
# project alone, as it moves the branch that is checked out there.
UNFINISHED = ("MERGE_HEAD", "MERGE_MSG", "MERGE_MODE", "CHERRY_PICK_HEAD", "REVERT_HEAD")
# Before an object id in a record: a text of 64 digits alone would be one of ours.
COMMIT = "commit "


@dataclass(frozen=True, slots=True)
class GitLink:
    """`admin`: the directory of the work tree in the repository; `start`: the commit that it began
    with; `made_branch`: the branch was made with it."""

    admin: Path
    branch: str
    start: str
    made_branch: bool

    @property
    def record(self) -> dict[str, Any]:
        return {
            "admin": str(self.admin),
            "branch": self.branch,
            "start": COMMIT + self.start,
            "madeBranch": self.made_branch,
        }

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Self:
        return cls(
            Path(record["admin"]),
            record["branch"],
            record["start"].removeprefix(COMMIT),
            record["madeBranch"],
        )


def is_in_git(project: Path) -> bool:
    return (project / GIT).exists()


def add(project: Path, path: Path, name: str, branch: str, env: Mapping[str, str]) -> GitLink:
    """Makes the linked work tree for the directory `path`, which is not there afterwards. Raises
    Refused (no commit, the branch), Failed."""
    try:
        start = git(_in(project, "rev-parse", "--verify", "HEAD^{commit}"), env).strip()
    except Failed:
        raise Refused(f"{project} has no commit yet; make one first (git commit)") from None
    is_there = _has_branch(project, branch, env)
    # A branch that is there is checked out once the files are there, as git does it.
    how = ("--detach",) if is_there else ("--no-track", "-b", branch)
    adding = ("worktree", "add", "--quiet", "--no-checkout", "--lock", *how, str(path), start)
    git(_in(project, *adding), env, settings=(NO_HOOKS,))
    admin = pointed_to(path / GIT)
    with os_errors(f"cannot prepare {path}"):
        (admin / "locked").write_text(f"casfs worktree {name}\n")
        # The files come by a mount, which needs an empty directory.
        (path / GIT).unlink()
        path.rmdir()
    return GitLink(admin, branch, start, made_branch=not is_there)


def fill(link: GitLink, project: Path, path: Path, env: Mapping[str, str]) -> None:
    """Makes the directory `path`, which holds the files of the project, the work tree of `link`.
    Raises Refused where the branch cannot be checked out there, Failed."""
    own = Path(git(_in(project, "rev-parse", "--absolute-git-dir"), env).strip())
    with os_errors(f"cannot write {path / GIT}"):
        (path / GIT).write_text(f"gitdir: {link.admin}\n")
        _copy_index(own, link.admin, project, path, env)
        for name in UNFINISHED:
            with suppress(FileNotFoundError):
                shutil.copyfile(own / name, link.admin / name)
    if not link.made_branch:
        try:
            git(_in(path, "switch", "--quiet", "--no-guess", link.branch), env)
        except Failed as error:
            reason = str(error).removeprefix("git: ").removesuffix(":")
            raise Refused(f"branch {link.branch} cannot be checked out: {reason}") from None


def _copy_index(own: Path, admin: Path, project: Path, path: Path, env: Mapping[str, str]) -> None:
    try:
        data = index_stats.moved(own / "index", project, path)
    except FileNotFoundError:
        return
    except index_stats.UnsupportedIndex:
        for file in (own / "index", *own.glob("sharedindex.*")):
            shutil.copyfile(file, admin / file.name)
        with suppress(Failed):  # it fails where a file needs a merge
            git(_in(path, "update-index", "-q", "--refresh"), env)
        return
    (admin / "index").write_bytes(data)


def remove(link: GitLink, project: Path, path: Path, env: Mapping[str, str]) -> bool:
    """Removes the linked work tree, whose directory is gone, and its branch where that was made
    with it and has no commit of its own. Returns whether the branch is gone. Raises Failed."""
    if link.admin.exists():
        # Twice, since it is locked.
        removing = ("worktree", "remove", "--force", "--force", str(path))
        git(_in(project, *removing), env)
    if not link.made_branch or not _has_branch(project, link.branch, env):
        return False
    tip = git(_in(project, "rev-parse", f"refs/heads/{link.branch}"), env).strip()
    if tip != link.start:
        return False
    git(_in(project, "branch", "--quiet", "-D", link.branch), env)
    return True


def uncommitted(path: Path, env: Mapping[str, str]) -> set[bytes]:
    """Returns the paths that `git status` lists in a work tree, without those that are ignored.
    Raises Failed."""
    listed = ("status", "--porcelain", "-z", "--no-renames", "--untracked-files=all")
    output = os.fsencode(git(_in(path, *listed), env))
    return {line[3:] for line in output.split(b"\0") if line}


def ignored(path: Path, paths: Iterable[bytes], env: Mapping[str, str]) -> set[bytes]:
    """Returns those paths in a work tree that git ignores. Raises Failed."""
    check = ("check-ignore", "-z", "--stdin")
    # 1: none is.
    output = git(_in(path, *check), env, sent=b"\0".join(paths), expected=(0, 1))
    return set(filter(None, os.fsencode(output).split(b"\0")))


def has_lost_commits(path: Path, env: Mapping[str, str]) -> bool:
    """Returns whether no branch or tag has the commit that is checked out. Raises Failed."""
    containing = ("for-each-ref", "--count=1", "--contains", "HEAD")
    return not git(_in(path, *containing), env).strip()


def _has_branch(project: Path, branch: str, env: Mapping[str, str]) -> bool:
    try:
        git(_in(project, "show-ref", "--verify", "--quiet", f"refs/heads/{branch}"), env)
    except Failed:
        return False
    return True


def _in(directory: Path, *arguments: str) -> tuple[str, ...]:
    return ("-C", str(directory), *arguments)
