"""Make the demo's starting point: `prepare.py DEST` copies `project/` to DEST, as a git repository.

The first commit has a fixed author and fixed dates, so it has the same id on every machine. The
user's git configuration is neither read nor written.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parent / "project"
DATE = "2026-01-01T00:00:00+00:00"
IDENTITY = {
    f"GIT_{who}_{field}": value
    for who in ("AUTHOR", "COMMITTER")
    for field, value in (("NAME", "tally"), ("EMAIL", "tally@example.org"), ("DATE", DATE))
}
NO_CONFIG = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}


def prepare(destination: Path) -> None:
    """Copy the project to a new directory and commit it there."""
    shutil.copytree(PROJECT, destination, ignore=shutil.ignore_patterns("__pycache__"))
    git(destination, "init", "--quiet", "--initial-branch=main", "--template=")
    git(destination, "add", "--all")
    git(destination, "commit", "--quiet", "--message=Add tally")


def git(directory: Path, *arguments: str) -> None:
    """Run git there, with nothing of the caller's git settings."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    environment = inherited | NO_CONFIG | IDENTITY
    subprocess.run(["git", *arguments], cwd=directory, env=environment, check=True)


def main(arguments: list[str]) -> int:
    """Run the command; return the exit code."""
    if len(arguments) != 1:
        print("usage: prepare.py DEST", file=sys.stderr)
        return 2
    destination = Path(arguments[0])
    if destination.exists():
        print(f"{destination}: exists already; name a new directory", file=sys.stderr)
        return 4
    if shutil.which("git") is None:
        print("git: not found; install git", file=sys.stderr)
        return 1
    prepare(destination)
    print(destination.resolve())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
