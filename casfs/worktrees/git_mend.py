"""Mends git's part of a worktree: after a power cut git's files may be empty, as it syncs none of
them, and a person may have removed them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from casfs.errors import Failed, Refused
from casfs.system.files import os_errors
from casfs.system.git_program import git
from casfs.system.paths import small_text
from casfs.trees.git.index import GIT
from casfs.worktrees.git_link import (
    BRANCH_HEAD,
    INDEX,
    LOCKED,
    SYNCED,
    GitLink,
    Lock,
    holds,
    in_directory,
    is_of_another,
    links,
    of_link,
    write_synced,
)
from casfs.worktrees.git_questions import tip

LOGGED = re.compile(r"^[0-9a-f]+ ([0-9a-f]{40,64}) ", re.M)
OBJECT_ID = re.compile(r"(?!0+\n)([0-9a-f]{40}|[0-9a-f]{64})\n")


def mend(link: GitLink, lock: Lock, path: Path, env: Mapping[str, str]) -> list[str]:
    """Makes a directory the linked work tree of `link` again, after an `add` that was interrupted,
    a power cut that has taken what git had not synced, or a person who has removed git's part.
    Returns a line for each thing that is not as it was before. Raises Refused where git has another
    work tree there, Failed."""
    if not (link.repository / "objects").is_dir():
        raise Failed(f"its repository {link.repository} is gone")
    # Else a git that does not work at all would be taken for damage.
    git(in_directory(link.repository, "rev-parse", "--git-dir"), env)
    if is_of_another(link, path):
        raise Refused(
            f"git has another work tree as {link.admin.name}; `casfs worktree rm --keep --force"
            f" {path}` removes this one"
        )
    mended: list[str] = []
    files = {**links(link, path), link.admin / LOCKED: lock.text}
    with os_errors(f"cannot mend {link.admin}"):
        link.admin.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            if not holds(file, text):
                write_synced(file, text)
        if branch := _mended_branch(link, path, env):
            mended.append(f"it is on branch {branch}")
    if not (link.admin / INDEX).exists() or _fails(link, path, env, "ls-files", "--", GIT):
        (link.admin / INDEX).unlink(missing_ok=True)
        git(of_link(link, path, "reset", "--quiet"), env, settings=(SYNCED,))
        mended.append("what was staged is not any more")
    return mended


def _mended_branch(link: GitLink, path: Path, env: Mapping[str, str]) -> str:
    """Makes HEAD, or the branch that it names, anew where it is lost; returns that branch, nothing
    where neither is. Another branch, a commit, or a branch without one stay. Raises OSError,
    Failed."""
    head = small_text(link.admin / "HEAD")
    is_lost = not (BRANCH_HEAD.fullmatch(head) or OBJECT_ID.fullmatch(head))
    if is_lost:
        head = f"ref: refs/heads/{link.branch}\n"
        write_synced(link.admin / "HEAD", head)
    match = BRANCH_HEAD.fullmatch(head)
    branch = match[1] if match else ""
    if not branch or tip(link.repository, branch, env):
        return branch if is_lost else ""
    reference = f"refs/heads/{branch}"
    loose = link.repository / reference
    if loose.is_file() and not OBJECT_ID.fullmatch(small_text(loose)):
        loose.unlink()  # git replaces no reference that it cannot read
    elif branch != link.branch:
        return ""
    # That of the branch first: HEAD's has other branches, too.
    logs = (link.repository / "logs" / reference, link.admin / "logs/HEAD")
    commits = [commit for file in logs for commit in reversed(LOGGED.findall(_log(file)))]
    if branch == link.branch:
        commits.append(link.start)
    for commit in commits:
        if not _fails(link, path, env, "rev-parse", "--verify", f"{commit}^{{commit}}"):
            git(of_link(link, path, "update-ref", reference, commit), env, settings=(SYNCED,))
            return branch
    raise Failed(f"branch {branch} has no commit that is left")


def _log(file: Path) -> str:
    try:
        return file.read_text("utf-8", "replace")
    except OSError:
        return ""


def _fails(link: GitLink, path: Path, env: Mapping[str, str], *arguments: str) -> bool:
    try:
        git(of_link(link, path, *arguments), env)
    except Failed:
        return True
    return False
