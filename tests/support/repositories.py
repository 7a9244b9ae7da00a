"""A git repository of a test: git's commands in it, and what git sees there."""

from __future__ import annotations

import subprocess
from pathlib import Path

IDENTITY = ["-c", "user.name=x", "-c", "user.email=x@y"]
OPTIONS = [*IDENTITY, "-c", "gc.auto=0", "-c", "core.hooksPath=/dev/null"]
UNFINISHED = ("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "rebase-merge", "rebase-apply")


def git(directory: Path, *arguments: str) -> str:
    argv = ["git", *OPTIONS, "-C", directory, *arguments]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def seen_by_git(directory: Path) -> tuple[str, ...]:
    """All that git knows of the repository, but how it keeps it, and its files outside of it."""
    git(directory, "fsck", "--strict", "--no-dangling")
    return (
        git(directory, "for-each-ref"),
        (directory / ".git/HEAD").read_text(),
        git(directory, "ls-files", "--stage"),
        git(directory, "stash", "list", "--format=%H"),
        git(directory, "config", "--list", "--local"),
        str([name for name in UNFINISHED if (directory / ".git" / name).exists()]),
    )
