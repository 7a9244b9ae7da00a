"""The git side of a worktree: a linked work tree of the project's repository, made by git itself.

Git makes an empty one, locked, so that nothing prunes it while its directory is not mounted. Once
the files are there, its index is the project's own: what was changed or staged is so here, too.
What the repository shares stays shared: refs, stashes, configuration, hooks.

What is asked about a work tree is asked by the directory that the record has of it in the
repository, never by its `.git` file: whatever runs in there may have replaced that.

Format: Documentation/gitrepository-layout of git.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from casfs.errors import Conflict, Failed, Refused
from casfs.system import rmtree
from casfs.system.files import os_errors, replacing
from casfs.system.git_program import NO_HOOKS, git
from casfs.trees.git import index_stats
from casfs.trees.git.index import GIT, pointed_to

# Of a merge or the like that has begun: git in the worktree can end it. A rebase goes on in the
# project alone, as it moves the branch that is checked out there.
UNFINISHED = ("MERGE_HEAD", "MERGE_MSG", "MERGE_MODE", "CHERRY_PICK_HEAD", "REVERT_HEAD")
# Before an object id in a record: a text of 64 digits alone would be one of ours.
COMMIT = "commit "
HEAD = "HEAD^{commit}"
LOCKED = "locked"
LOCK_REASON = "casfs worktree "
INDEX = "index"
SYNCED = "core.fsync=all"
ORDINARY_TAG = "H"  # of `git ls-files -v`: in the index, and compared with its file


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

    @property
    def current_branch(self) -> str:
        """The branch that is checked out: another one, or none, after a switch or a rename."""
        try:
            head = (self.admin / "HEAD").read_text().strip()
        except (OSError, ValueError):
            return self.branch
        return head.removeprefix("ref: refs/heads/") if head.startswith("ref: ") else ""

    @property
    def repository(self) -> Path:
        return self.admin.parent.parent


@dataclass(frozen=True, slots=True)
class GitSource:
    """A work tree as a worktree begins with it. `own`: its directory in the repository; `commit`:
    that is checked out; `index`: None where there is none yet."""

    top: Path
    own: Path
    commit: str
    index: bytes | None
    index_written_s: int


def is_in_git(project: Path) -> bool:
    return (project / GIT).exists()


def read_source(top: Path, env: Mapping[str, str]) -> GitSource:
    """Raises Refused for a repository without a commit, and where git takes the directory for
    another work tree; Failed."""
    where = ("--show-toplevel", "--absolute-git-dir")
    # Without a commit the second one fails, with the answer of the first.
    answer = git(_in(top, "rev-parse", *where, "--verify", "--quiet", HEAD), env, expected=(0, 1))
    shown_top, directory, *commits = answer.splitlines()
    _check_same(top, shown_top)
    own = Path(directory)
    if not commits:
        raise Refused(f"{top} has no commit yet; make one first (git commit)")
    with suppress(FileNotFoundError), (own / INDEX).open("rb") as file:
        return GitSource(top, own, commits[0], file.read(), int(os.fstat(file.fileno()).st_mtime))
    return GitSource(top, own, commits[0], None, 0)


def _check_top(directory: Path, env: Mapping[str, str]) -> None:
    """Raises Refused where git takes a directory for another work tree: what it does there it would
    do to that one."""
    _check_same(directory, git(_in(directory, "rev-parse", "--show-toplevel"), env).rstrip("\n"))


def _check_same(directory: Path, top: str) -> None:
    if os.path.realpath(top) != os.path.realpath(directory):
        raise Refused(
            f"git takes {directory} for the work tree {top}; mend its .git, or core.worktree"
        )


def add(source: GitSource, path: Path, name: str, branch: str, env: Mapping[str, str]) -> GitLink:
    """Makes the linked work tree for the directory `path`, which is not there afterwards. Raises
    Failed with git's reason; then nothing is left of it."""
    before = _linked(source.own, path)
    is_there = has_branch(source.top, branch, env)
    # A branch that is there is checked out once the files are there, as git does it.
    how = ("--detach",) if is_there else ("--no-track", "-b", branch)
    locked = ("--lock", "--reason", f"{LOCK_REASON}{name}")
    adding = ("worktree", "add", "--quiet", "--no-checkout", *locked, *how)
    try:
        settings = (NO_HOOKS, SYNCED)
        git(_in(source.top, *adding, str(path), source.commit), env, settings=settings)
        admin = pointed_to(path / GIT)
        link = GitLink(admin, branch, source.commit, made_branch=not is_there)
        with os_errors(f"cannot prepare {path}"):
            _write(admin / LOCKED, _lock_text(name))
            # The files come by a mount, which needs an empty directory.
            (path / GIT).unlink()
            path.rmdir()
        return link
    except BaseException:
        # Not what was there before: a person may have a work tree of git at this path.
        for admin in _linked(source.own, path) - before:
            rmtree.delete(admin)
        # Git makes the branch before all else.
        if not is_there and has_branch(source.top, branch, env):
            git(_in(source.top, "branch", "--quiet", "-D", branch), env)
        raise


def locked_by_us(repository: Path) -> list[Path]:
    """Returns the directories of the linked work trees of a repository that were made here, for any
    store."""
    paths: list[Path] = []
    for admin in sorted((repository / "worktrees").glob("*")):
        with suppress(OSError):
            if (admin / LOCKED).read_text().startswith(LOCK_REASON):
                paths.append(Path((admin / "gitdir").read_text().strip()).parent)
    return paths


def _linked(own: Path, path: Path) -> set[Path]:
    """Returns the directories in the repository of the linked work trees at a path; `own`: of any
    work tree."""
    shared = own
    with suppress(FileNotFoundError):
        shared = own / (own / "commondir").read_text().strip()
    linked: set[Path] = set()
    for admin in (shared / "worktrees").glob("*"):
        with suppress(OSError):
            if Path((admin / "gitdir").read_text().strip()) == path / GIT:
                linked.add(admin)
    return linked


def forget_interrupted(source: GitSource, path: Path, env: Mapping[str, str]) -> None:
    """Deletes what an `add` that was killed has left in the repository for this directory, and the
    branch that it has made. Raises Failed."""
    # Where the directory is there, it may be the mount point of a worktree of another store.
    if path.exists():
        return
    for admin in _linked(source.own, path):
        with suppress(OSError):
            if (admin / LOCKED).read_text().startswith(LOCK_REASON):
                head = (admin / "HEAD").read_text().strip()
                rmtree.delete(admin)
                # Of a branch that was there before it is detached until the files are there.
                _delete_unused(source.top, head.removeprefix("ref: "), env)


def _delete_unused(top: Path, reference: str, env: Mapping[str, str]) -> None:
    """Deletes a branch whose commit another branch or tag has."""
    branch = reference.removeprefix("refs/heads/")
    if branch == reference or not has_branch(top, branch, env):
        return
    containing = ("for-each-ref", "--format=%(refname)", "--contains", reference)
    if {*git(_in(top, *containing), env).splitlines()} - {reference}:
        git(_in(top, "branch", "--quiet", "-D", branch), env)


def fill(link: GitLink, source: GitSource, path: Path, env: Mapping[str, str]) -> None:
    """Makes the directory `path`, which holds the files of the source, the work tree of `link`.
    Raises Refused where the branch cannot be checked out there, Failed."""
    with os_errors(f"cannot write {path / GIT}"):
        _write(path / GIT, _leading_to(link))
        _copy_index(link, source, path, env)
        for name in UNFINISHED:
            with suppress(FileNotFoundError):
                shutil.copyfile(source.own / name, link.admin / name)
    _check_top(path, env)
    if not link.made_branch:
        try:
            git(_in(path, "switch", "--quiet", "--no-guess", link.branch), env)
        except Failed as error:
            reason = str(error).removeprefix("git: ").removesuffix(":")
            raise Refused(f"branch {link.branch} cannot be checked out: {reason}") from None


def is_linked(link: GitLink, path: Path) -> bool:
    """Returns whether git finds the repository of a directory, and that the directory."""
    return all(_holds(file, text) for file, text in _links(link, path).items())


def mend(link: GitLink, name: str, path: Path, env: Mapping[str, str]) -> list[str]:
    """Makes a directory the work tree again that it was, or was to be: `add` was interrupted, or a
    power cut has taken what git had not synced, or a person what git had of it. Returns what was
    mended, and not as it was. Raises Failed."""
    if not (link.repository / "objects").is_dir():
        raise Failed(f"its repository {link.repository} is gone")
    mended: list[str] = []
    files = {**_links(link, path), link.admin / LOCKED: _lock_text(name)}
    with os_errors(f"cannot mend {link.admin}"):
        link.admin.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            if not _holds(file, text):
                _write(file, text)
    # It may have another branch by now, or none.
    if _fails(link, path, env, "rev-parse", "--verify", HEAD):
        with os_errors(f"cannot mend {link.admin}"):
            _write(link.admin / "HEAD", f"ref: refs/heads/{link.branch}\n")
        if _fails(link, path, env, "rev-parse", "--verify", HEAD):
            # Git replaces no reference that it cannot read.
            (link.repository / "refs/heads" / link.branch).unlink(missing_ok=True)
            making = ("update-ref", f"refs/heads/{link.branch}", link.start)
            git(_of(link, path, *making), env, settings=(SYNCED,))
        mended.append(f"it is on branch {link.branch}")
    if not (link.admin / INDEX).exists() or _fails(link, path, env, "ls-files", "--", GIT):
        (link.admin / INDEX).unlink(missing_ok=True)
        git(_of(link, path, "reset", "--quiet"), env, settings=(SYNCED,))
        mended.append("what was staged is not any more")
    return mended


def _links(link: GitLink, path: Path) -> dict[Path, str]:
    """Returns the files by which the work tree and its repository find each other."""
    return {
        path / GIT: _leading_to(link),
        link.admin / "gitdir": f"{path / GIT}\n",
        link.admin / "commondir": "../..\n",
    }


def _leading_to(link: GitLink) -> str:
    return f"gitdir: {link.admin}\n"


def _lock_text(name: str) -> str:
    return f"{LOCK_REASON}{name}\n"


def _holds(file: Path, text: str) -> bool:
    try:
        return file.read_text() == text
    except (OSError, ValueError):
        return False


def _write(file: Path, text: str) -> None:
    """Git itself syncs none of these: after a power cut they would be empty."""
    with replacing(file, durable=True) as out:
        out.write(text.encode())


def _fails(link: GitLink, path: Path, env: Mapping[str, str], *arguments: str) -> bool:
    try:
        git(_of(link, path, *arguments), env)
    except Failed:
        return True
    return False


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
            git(_in(path, "update-index", "-q", "--refresh"), env)
        return
    with replacing(link.admin / INDEX, durable=True) as out:
        out.write(data)


def remove(link: GitLink, env: Mapping[str, str]) -> bool:
    """Removes the linked work tree, whose directory is gone, and its branch where that was made
    with it and has no commit of its own. Returns whether the branch is gone. Raises Failed."""
    is_unused = link.made_branch and not has_own_commits(link, env)
    rmtree.delete(link.admin)
    with suppress(OSError):  # others are in it
        link.admin.parent.rmdir()
    if is_unused and has_branch(link.repository, link.branch, env):
        git(_in(link.repository, "branch", "--quiet", "-D", link.branch), env)
    return not has_branch(link.repository, link.branch, env)


def has_own_commits(link: GitLink, env: Mapping[str, str]) -> bool:
    """Returns whether a branch that was made with it is another commit than that with which it
    began. Raises Failed."""
    if not link.made_branch or not has_branch(link.repository, link.branch, env):
        return False
    tip = git(_in(link.repository, "rev-parse", f"refs/heads/{link.branch}"), env).strip()
    return tip != link.start


def has_lost_commits(link: GitLink, path: Path, env: Mapping[str, str]) -> bool:
    """Returns whether no branch or tag has the commit that is checked out. Raises Failed."""
    containing = ("for-each-ref", "--count=1", "--contains", "HEAD")
    return not git(_of(link, path, *containing), env).strip()


def has_submodules_of_its_own(link: GitLink) -> bool:
    """Returns whether git has cloned submodules for this work tree alone."""
    modules = link.admin / "modules"
    return modules.is_dir() and any(modules.iterdir())


def committed(link: GitLink, path: Path, env: Mapping[str, str]) -> set[bytes]:
    """Returns the paths that are in the index of a work tree, with their files as they are there,
    and no other than in its commit. Raises Failed."""
    tagged = _lines(git(_of(link, path, "ls-files", "-v", "-z"), env))
    # Others are not compared with their files, as one told git to ignore its changes.
    compared = {line[2:] for line in tagged if line.startswith(ORDINARY_TAG.encode())}
    listed = ("status", "--porcelain", "-z", "--no-renames", "--untracked-files=no")
    changed = {line[3:] for line in _lines(git(_of(link, path, *listed), env))}
    return compared - changed


def ignored(
    link: GitLink, path: Path, paths: Iterable[bytes], env: Mapping[str, str]
) -> Collection[bytes]:
    """Returns those paths in a work tree that git ignores. Raises Failed."""
    return _ignored(_of(link, path), paths, env)


def ignored_in(top: Path, paths: Iterable[bytes], env: Mapping[str, str]) -> Collection[bytes]:
    """As `ignored`, in the work tree that git finds at a directory."""
    return _ignored(_in(top), paths, env)


def _ignored(
    where: tuple[str, ...], paths: Iterable[bytes], env: Mapping[str, str]
) -> Collection[bytes]:
    # It takes pathspecs, in which a leading colon is magic.
    sent = b"\0".join(b"./" + name for name in paths)
    check = ("check-ignore", "-z", "--stdin")
    output = git((*where, *check), env, sent=sent, expected=(0, 1))  # 1: none is
    return {line.removeprefix(b"./") for line in _lines(output)}


def has_branch(directory: Path, branch: str, env: Mapping[str, str]) -> bool:
    try:
        git(_in(directory, "show-ref", "--verify", "--quiet", f"refs/heads/{branch}"), env)
    except Failed:
        return False
    return True


def check_new_branch(directory: Path, branch: str, env: Mapping[str, str]) -> None:
    """Raises Conflict for a branch that is there."""
    if has_branch(directory, branch, env):
        raise Conflict(f"there is a branch {branch} already; take it by --branch, or another name")


def _lines(output: str) -> list[bytes]:
    return [line for line in os.fsencode(output).split(b"\0") if line]


def _in(directory: Path, *arguments: str) -> tuple[str, ...]:
    return ("-C", str(directory), *arguments)


def _of(link: GitLink, path: Path, *arguments: str) -> tuple[str, ...]:
    where = (f"--git-dir={link.admin}", f"--work-tree={path}")
    return ("-C", str(path), *where, *arguments)
