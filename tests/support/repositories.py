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


def make_lender(folder: Path) -> Path:
    """Makes a repository with one commit, of which others are clones or submodules."""
    folder.mkdir()
    (folder / "f").write_text("f\n")
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "f")
    git(folder, "commit", "-qm", "first")
    return folder


def make_repository(project: Path) -> None:
    """Makes a repository of a directory with the files a and b: two commits, a branch, a change
    and a file that are in none."""
    git(project, "init", "-q", "-b", "main")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "first")
    (project / "b").write_text("second\n")
    git(project, "commit", "-qam", "second")
    git(project, "branch", "side", "HEAD~1")
    (project / "a").write_text("uncommitted\n")
    (project / "untracked").write_text("untracked\n")


COMMIT = "git -c user.name=x -c user.email=x@y commit -q"
DESTRUCTIVE = [
    "git reset -q --hard HEAD~1",
    "git checkout -q -- .",
    "git checkout -q -f side",
    "git clean -qfdx",
    "git stash -q -u",
    "git stash -q && git stash drop -q",
    "git branch -q -D side",
    "git rm -rqf . ",
    f"git add -A && {COMMIT} --amend -m amended",
    f"git add -A && {COMMIT} -m third",
    "git update-ref refs/heads/main HEAD~1",
    "git reset -q --hard HEAD~1 && git reflog expire --expire=now --all && git gc -q --prune=now",
    "git checkout -q -B side",
    "git tag v1; git tag -a -m m v2 2>/dev/null; git switch -q -c new",
    "git rebase -q --root --exec true -i 2>/dev/null; git rebase --abort",
    "git config user.name other; git remote add origin /nowhere",
    "rm -rf .git",
    "git gc -q && git reset -q --hard HEAD~1",
    "git pack-refs --all && git branch -q -D side",
    "rm -rf .git && git init -q -b other && git add -A",
    "rm -rf .git/objects/*",
    "git gc -q && rm -f .git/objects/pack/*",
]
