"""What git says of a project and of its worktrees. Nothing is changed."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from casfs.errors import Conflict, Refused
from casfs.system.git_program import git
from casfs.trees.git.index import GIT
from casfs.worktrees.git_link import GitLink, in_directory, of_link

# Else git looks into submodules, by what their own configuration says.
OF_COMMITS = "--ignore-submodules=dirty"
ORDINARY_TAG = "H"  # of `git ls-files -v`: in the index, and compared with its file


def is_in_git(project: Path) -> bool:
    return (project / GIT).exists()


def check_top(directory: Path, env: Mapping[str, str]) -> None:
    """Raises Refused where git takes a directory for another work tree: what it does there it would
    do to that one."""
    check_same(
        directory, git(in_directory(directory, "rev-parse", "--show-toplevel"), env).rstrip("\n")
    )


def check_same(directory: Path, top: str) -> None:
    if os.path.realpath(top) != os.path.realpath(directory):
        raise Refused(
            f"git takes {directory} for the work tree {top}; mend its .git, or core.worktree"
        )


def has_own_commits(link: GitLink, env: Mapping[str, str]) -> bool:
    """Returns whether a branch that was made with it is at another commit than that with which it
    began. Raises Failed."""
    branch = link.current_branch or link.branch
    return link.made_branch and tip(link.repository, branch, env) not in ("", link.start)


def has_unmerged_commits(link: GitLink, project: Path, env: Mapping[str, str]) -> bool:
    """Returns whether the branch of a worktree has commits that what is checked out in the project
    has not. Raises Failed."""
    if not (branch := link.current_branch):
        return False
    count = ("rev-list", "--count", "--max-count=1", f"HEAD..refs/heads/{branch}", "--")
    return git(in_directory(project, *count), env).strip() not in ("", "0")


def has_lost_commits(link: GitLink, path: Path, env: Mapping[str, str]) -> bool:
    """Returns whether no branch or tag has the commit that is checked out. Raises Failed."""
    containing = ("for-each-ref", "--count=1", "--contains", "HEAD")
    return not git(of_link(link, path, *containing), env).strip()


def has_submodules_of_its_own(link: GitLink) -> bool:
    """Returns whether git has cloned submodules for this work tree alone."""
    modules = link.admin / "modules"
    return modules.is_dir() and any(modules.iterdir())


def committed(link: GitLink, path: Path, env: Mapping[str, str]) -> set[bytes]:
    """Returns the paths that are in the index of a work tree, with their files as they are there,
    and no other than in its commit. Raises Failed."""
    tagged = _lines(git(of_link(link, path, "ls-files", "-v", "-z"), env))
    # Others are not compared with their files, as one told git to ignore its changes.
    compared = {line[2:] for line in tagged if line.startswith(ORDINARY_TAG.encode())}
    listed = ("status", "--porcelain", "-z", "--no-renames", "--untracked-files=no", OF_COMMITS)
    changed = {line[3:] for line in _lines(git(of_link(link, path, *listed), env))}
    return compared - changed


def ignored(
    link: GitLink, path: Path, paths: Iterable[bytes], env: Mapping[str, str]
) -> Collection[bytes]:
    """Returns those paths in a work tree that git ignores. Raises Failed."""
    return _ignored(of_link(link, path), paths, env)


def ignored_in(top: Path, paths: Iterable[bytes], env: Mapping[str, str]) -> Collection[bytes]:
    """As `ignored`, in the work tree that git finds at a directory."""
    return _ignored(in_directory(top), paths, env)


def _ignored(
    where: tuple[str, ...], paths: Iterable[bytes], env: Mapping[str, str]
) -> Collection[bytes]:
    # It takes pathspecs, in which a leading colon is magic.
    sent = b"\0".join(b"./" + name for name in paths)
    check = ("check-ignore", "-z", "--stdin")
    output = git((*where, *check), env, sent=sent, expected=(0, 1))  # 1: none is
    return {line.removeprefix(b"./") for line in _lines(output)}


def hooks_directory(top: Path, env: Mapping[str, str]) -> bytes:
    """Returns where a repository has its hooks, relative to its work tree, as husky sets it; empty
    where they are not in there. Raises Failed."""
    # Of the repository alone: we set another one whenever we run git.
    setting = ("config", "--local", "--includes", "--type=path", "--get", "core.hooksPath")
    said = git(in_directory(top, *setting), env, expected=(0, 1)).removesuffix("\n")
    real = Path(os.path.realpath(top))
    path = Path(os.path.realpath(real / said))
    return os.fsencode(path.relative_to(real)) if said and real in path.parents else b""


def staged_alone(link: GitLink, path: Path, project: Path, env: Mapping[str, str]) -> set[bytes]:
    """Returns the paths in the index of a work tree that are as in no file, in no commit, and not
    in the index of the project. Raises Failed."""
    raw = ("--raw", "--no-renames", "--abbrev=64", "-z", OF_COMMITS)
    staged = _object_ids(_lines(git(of_link(link, path, "diff", "--cached", *raw), env)))
    differing = _lines(git(of_link(link, path, "diff", "--name-only", "-z", OF_COMMITS), env))
    alone = {name: staged[name] for name in differing if name in staged}
    if not alone:
        return set()
    listed = _lines(git(in_directory(project, "ls-files", "-s", "-z"), env))
    of_project = {
        name: about.split()[1] for about, _, name in (line.partition(b"\t") for line in listed)
    }
    return {name for name, id in alone.items() if of_project.get(name) != id}


def _object_ids(raw: list[bytes]) -> dict[bytes, bytes]:
    """Returns the new object id of each path that `git diff --raw -z` prints."""
    return {name: about.split()[3] for about, name in zip(raw[::2], raw[1::2], strict=True)}


def tip(directory: Path, branch: str, env: Mapping[str, str]) -> str:
    """Returns the commit of a branch, nothing where there is none. Raises Failed."""
    verify = ("rev-parse", "--verify", "--quiet", f"refs/heads/{branch}")
    return git(in_directory(directory, *verify), env, expected=(0, 1)).strip()


def check_new_branch(directory: Path, branch: str, env: Mapping[str, str]) -> None:
    """Raises Conflict for a branch that is there."""
    if tip(directory, branch, env):
        raise Conflict(f"there is a branch {branch} already; take it by --branch, or another name")


def _lines(output: str) -> list[bytes]:
    return [line for line in os.fsencode(output).split(b"\0") if line]
