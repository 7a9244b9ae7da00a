"""A linked work tree of git, as the record of a worktree has it, and the small files by which it
and its repository find each other.

What is asked about a work tree is asked by the directory that the record has of it in the
repository, never by its `.git` file: whatever runs in there may have replaced that.

Format: Documentation/gitrepository-layout of git.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from casfs.system.files import replacing
from casfs.system.paths import small_text
from casfs.trees.git.index import GIT

# Before an object id in a record: a text of 64 digits alone would be one of ours.
COMMIT = "commit "
LOCK_REASON = "casfs worktree "
LOCKED = "locked"
INDEX = "index"
SYNCED = "core.fsync=all"
BRANCH_HEAD = re.compile(r"ref: refs/heads/(.+)\n")


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
        head = small_text(self.admin / "HEAD")
        match = BRANCH_HEAD.fullmatch(head)
        # In a repository with a reftable HEAD is elsewhere.
        if not head or (match and match[1] == ".invalid"):
            return self.branch
        return match[1] if match else ""

    @property
    def repository(self) -> Path:
        return self.admin.parent.parent


@dataclass(frozen=True, slots=True)
class Lock:
    """Why git must not prune a work tree: it is the worktree `name` of the store at a path. Another
    store, of another machine or container, may have the repository at the same path."""

    store: Path
    name: str

    @property
    def text(self) -> str:
        return f"{LOCK_REASON}{self.name} of {self.store} {self._inode(self.store)}\n"

    @classmethod
    def is_of(cls, store: Path, text: str) -> bool:
        """Whether it is the text of a lock of that store."""
        is_ours = text.startswith(LOCK_REASON)
        return is_ours and text.endswith(f" of {store} {cls._inode(store)}\n")

    @staticmethod
    def _inode(store: Path) -> int:
        return store.stat().st_ino


def is_linked(link: GitLink, path: Path) -> bool:
    """Returns whether git finds the repository of a directory, and that the directory; and not as a
    power cut leaves it, empty."""
    has_head = bool(small_text(link.admin / "HEAD").strip("\0\n"))
    return has_head and all(holds(file, text) for file, text in links(link, path).items())


def is_of_another(link: GitLink, path: Path) -> bool:
    """Returns whether git has given the directory of a removed work tree to another one."""
    leads = small_text(link.admin / "gitdir")
    return bool(leads.strip("\0\n")) and leads != f"{path / GIT}\n"


def links(link: GitLink, path: Path) -> dict[Path, str]:
    """Returns the files by which the work tree and its repository find each other."""
    return {
        path / GIT: leading_to(link),
        link.admin / "gitdir": f"{path / GIT}\n",
        link.admin / "commondir": "../..\n",
    }


def leading_to(link: GitLink) -> str:
    return f"gitdir: {link.admin}\n"


def holds(file: Path, text: str) -> bool:
    return small_text(file) == text


def write_synced(file: Path, text: str) -> None:
    """Git itself syncs none of these: after a power cut they would be empty."""
    with replacing(file, durable=True) as out:
        out.write(os.fsencode(text))


def in_directory(directory: Path, *arguments: str) -> tuple[str, ...]:
    return ("-C", str(directory), *arguments)


def of_link(link: GitLink, path: Path, *arguments: str) -> tuple[str, ...]:
    where = (f"--git-dir={link.admin}", f"--work-tree={path}")
    return ("-C", str(path), *where, *arguments)
