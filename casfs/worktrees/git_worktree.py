"""The git side of a worktree: a linked work tree of the project's repository, made by git itself.

Git makes an empty one, locked, so that nothing prunes it while its directory is not mounted. Once
the files are there, its index is the project's own: what was changed or staged is so here, too.
What the repository shares stays shared: refs, stashes, configuration, hooks.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from casfs.errors import Failed, Refused
from casfs.system import rmtree
from casfs.system.files import os_errors, replacing
from casfs.system.git_program import git
from casfs.system.paths import small_text
from casfs.trees.git import index_stats
from casfs.trees.git.index import GIT, pointed_to
from casfs.worktrees.git_link import (
    BRANCH_HEAD,
    INDEX,
    LOCKED,
    SYNCED,
    GitLink,
    Lock,
    in_directory,
    is_of_another,
    leading_to,
    links,
    write_synced,
)
from casfs.worktrees.git_questions import check_same, check_top, tip

# Of a merge or the like that has begun: git in the worktree can end it. A rebase goes on in the
# project alone, as it moves the branch that is checked out there.
UNFINISHED = ("MERGE_HEAD", "MERGE_MSG", "MERGE_MODE", "CHERRY_PICK_HEAD", "REVERT_HEAD")
HEAD = "HEAD^{commit}"


@dataclass(frozen=True, slots=True)
class GitSource:
    """A work tree as a worktree begins with it. `own`: its directory in the repository; `commit`:
    that is checked out; `index`: None where there is none yet."""

    top: Path
    own: Path
    commit: str
    index: bytes | None
    index_written_s: int


def read_source(top: Path, env: Mapping[str, str]) -> GitSource:
    """Raises Refused for a repository without a commit, and where git takes the directory for
    another work tree; Failed."""
    where = ("--show-toplevel", "--absolute-git-dir")
    # Without a commit the second one fails, with the answer of the first.
    answer = git(
        in_directory(top, "rev-parse", *where, "--verify", "--quiet", HEAD), env, expected=(0, 1)
    )
    shown_top, directory, *commits = answer.splitlines()
    check_same(top, shown_top)
    own = Path(directory)
    if not commits:
        raise Refused(f"{top} has no commit yet; make one first (git commit)")
    with suppress(FileNotFoundError), (own / INDEX).open("rb") as file:
        return GitSource(top, own, commits[0], file.read(), int(os.fstat(file.fileno()).st_mtime))
    return GitSource(top, own, commits[0], None, 0)


def add(
    source: GitSource, path: Path, lock: Lock, *, branch: str, env: Mapping[str, str]
) -> GitLink:
    """Makes the linked work tree for the directory `path`, which is not there afterwards. Raises
    Failed with git's reason; then nothing is left of it."""
    before = _linked(source.own, path)
    is_there = bool(tip(source.top, branch, env))
    # A branch that is there is checked out once the files are there, as git does it.
    how = ("--detach",) if is_there else ("--no-track", "-b", branch)
    locked = ("--lock", "--reason", lock.text.rstrip())
    adding = ("worktree", "add", "--quiet", "--no-checkout", *locked, *how)
    try:
        # A newer git may write relative paths, which the record has not.
        settings = (SYNCED, "worktree.useRelativePaths=false")
        git(in_directory(source.top, *adding, str(path), source.commit), env, settings=settings)
        admin = pointed_to(path / GIT)
        link = GitLink(admin, branch, source.commit, made_branch=not is_there)
        with os_errors(f"cannot prepare {path}"):
            for file, text in {**links(link, path), admin / LOCKED: lock.text}.items():
                if file != path / GIT:
                    write_synced(file, text)
            # The files come by a mount, which needs an empty directory.
            (path / GIT).unlink()
            path.rmdir()
        return link
    except BaseException:
        # Not what was there before: a person may have a work tree of git at this path.
        for admin in _linked(source.own, path) - before:
            rmtree.delete(admin)
        # Git makes the branch before all else. One with another commit is a person's, of just now.
        if not is_there:
            _delete_branch(source.top, branch, source.commit, env)
        raise


def locked_by(store: Path, repository: Path) -> list[Path]:
    """Returns the directories of the linked work trees of a repository that were made for the store
    at a path."""
    paths: list[Path] = []
    for admin in sorted((repository / "worktrees").glob("*")):
        leads = small_text(admin / "gitdir").strip("\0\n")
        if leads and Lock.is_of(store, small_text(admin / LOCKED)):
            paths.append(Path(leads).parent)
    return paths


def _linked(own: Path, path: Path) -> set[Path]:
    """Returns the directories in the repository of the linked work trees at a path; `own`: of any
    work tree."""
    shared = own / small_text(own / "commondir").strip()
    admins = (shared / "worktrees").glob("*")
    return {admin for admin in admins if small_text(admin / "gitdir") == f"{path / GIT}\n"}


def forget_interrupted(source: GitSource, path: Path, store: Path, env: Mapping[str, str]) -> None:
    """Deletes what an `add` that was killed has left in the repository for this directory, where
    the store at `store` has no worktree, and the branch that it has made. Raises Failed."""
    if path.exists():
        return
    for admin in _linked(source.own, path):
        if Lock.is_of(store, small_text(admin / LOCKED)):
            head = BRANCH_HEAD.fullmatch(small_text(admin / "HEAD"))
            rmtree.delete(admin)
            # Of a branch that was there before it is detached until the files are there.
            if head is not None:
                _delete_unused(source.top, head[1], env)


def _delete_unused(top: Path, branch: str, env: Mapping[str, str]) -> None:
    """Deletes a branch whose commit another branch or tag has."""
    commit = tip(top, branch, env)
    if not commit:
        return
    containing = ("for-each-ref", "--format=%(refname)", "--contains", commit)
    if {*git(in_directory(top, *containing), env).splitlines()} - {f"refs/heads/{branch}"}:
        _delete_branch(top, branch, commit, env)


def _delete_branch(top: Path, branch: str, commit: str, env: Mapping[str, str]) -> None:
    """Deletes a branch that has this commit."""
    if tip(top, branch, env) == commit:
        git(in_directory(top, "branch", "--quiet", "-D", branch), env)


def fill(link: GitLink, source: GitSource, path: Path, env: Mapping[str, str]) -> None:
    """Makes the directory `path`, which holds the files of the source, the work tree of `link`.
    Raises Refused where the branch cannot be checked out there, Failed."""
    with os_errors(f"cannot write {path / GIT}"):
        write_synced(path / GIT, leading_to(link))
        _copy_index(link, source, path, env)
        for name in UNFINISHED:
            with suppress(FileNotFoundError):
                shutil.copyfile(source.own / name, link.admin / name)
    check_top(path, env)
    if not link.made_branch:
        try:
            switch = ("switch", "--quiet", "--no-guess", "--no-recurse-submodules")
            git(in_directory(path, *switch, link.branch), env)
        except Failed as error:
            reason = str(error).removeprefix("git: ").removesuffix(":")
            raise Refused(f"branch {link.branch} cannot be checked out: {reason}") from None


def _copy_index(link: GitLink, source: GitSource, path: Path, env: Mapping[str, str]) -> None:
    if source.index is None:
        return
    try:
        data = index_stats.moved(source.index, source.index_written_s, source.top, path)
    except index_stats.UnsupportedIndex:
        # With its time: by that git knows which files it must read again.
        for file in (source.own / INDEX, *source.own.glob("sharedindex.*")):
            shutil.copy2(file, link.admin / file.name)
        with suppress(Failed):  # it fails where a file needs a merge
            git(in_directory(path, "update-index", "-q", "--refresh"), env)
        return
    with replacing(link.admin / INDEX, durable=True) as out:
        out.write(data)


def remove(link: GitLink, path: Path, env: Mapping[str, str]) -> bool:
    """Removes the linked work tree, whose directory `path` is gone, and its branch where that was
    made with it and is where it began. Returns whether the branch is gone. Raises Failed."""
    checked_out = link.branch
    if not is_of_another(link, path):
        checked_out = link.current_branch or link.branch
        rmtree.delete(link.admin)
        with suppress(OSError):  # others are in it
            link.admin.parent.rmdir()
    if not link.repository.is_dir():
        return True
    if link.made_branch:
        _delete_branch(link.repository, link.branch, link.start, env)
    return not tip(link.repository, checked_out, env)
