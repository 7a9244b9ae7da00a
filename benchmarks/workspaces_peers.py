"""The tools that `benchmarks.workspaces` compares: casfs, cp, git, borg, restic, with their durable
defaults, and how all benchmarks run a program.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

CASFS = [sys.executable, "-m", "casfs"]
NULL = subprocess.DEVNULL
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else every start compiles all modules again
ENV = {
    **os.environ,
    "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes",
    "BORG_RELOCATED_REPO_ACCESS_IS_OK": "yes",
    "RESTIC_PASSWORD": "x",
    "GIT_AUTHOR_NAME": "b",
    "GIT_AUTHOR_EMAIL": "b@example.org",
    "GIT_COMMITTER_NAME": "b",
    "GIT_COMMITTER_EMAIL": "b@example.org",
    "GIT_CONFIG_GLOBAL": "/dev/null",
}


def run(*command: object, cwd: Path | None = None, **more: str) -> None:
    argv = [str(part) for part in command]
    subprocess.run(argv, check=True, cwd=cwd, env={**ENV, **more}, stdout=NULL, stderr=NULL)


class Tool:
    """One way to keep a directory; `place` is its own. `needs`: programs."""

    name = ""
    needs: tuple[str, ...] = ()

    def __init__(self, place: Path, tree: Path) -> None:
        self.place, self.tree = place, tree

    def prepare(self) -> None: ...

    def record(self) -> None: ...


class Casfs(Tool):
    name = "casfs"

    def prepare(self) -> None:
        run(*CASFS, "--store", self.place, "init")

    def record(self) -> None:
        create = ("checkpoint", "create", "b", self.tree, "--no-default-excludes")
        run(*CASFS, "--store", self.place, *create)

    def restore(self, target: Path) -> None:
        run(*CASFS, "--store", self.place, "checkpoint", "restore", "b", target)


class Copy(Tool):
    name = "cp -a + sync"

    def record(self) -> None:
        run("cp", "-a", self.tree, self.place)
        os.sync()


class Git(Tool):
    name = "git add + commit"
    needs = ("git",)

    def prepare(self) -> None:
        run("git", "init", "-q", "--bare", self.place)
        run("git", "-C", self.place, "config", "gc.auto", "0")  # else it works on while others do

    def record(self) -> None:
        where = {"GIT_DIR": str(self.place), "GIT_WORK_TREE": str(self.tree)}
        run("git", "add", "-A", cwd=self.tree, **where)
        run("git", "commit", "-q", "--allow-empty", "-m", "b", cwd=self.tree, **where)


class Borg(Tool):
    name = "borg create"
    needs = ("borg",)
    count = 0

    def prepare(self) -> None:
        run("borg", "init", "-e", "none", self.place)

    def record(self) -> None:
        Borg.count += 1
        run("borg", "create", f"{self.place}::a{Borg.count}", ".", cwd=self.tree)


class Restic(Tool):
    name = "restic backup"
    needs = ("restic",)

    def prepare(self) -> None:
        run("restic", "init", "-r", self.place)

    def record(self) -> None:
        run("restic", "backup", "-q", "-r", self.place, ".", cwd=self.tree)


TOOLS: tuple[type[Tool], ...] = (Casfs, Copy, Git, Borg, Restic)
T = TypeVar("T", bound=Tool)


def installed(kinds: Sequence[type[T]]) -> list[type[T]]:
    """Those whose programs are here; who lacks one is left out with the reason."""
    usable = []
    for kind in kinds:
        if lacking := [name for name in kind.needs if shutil.which(name) is None]:
            print(f"\nLeft out: {kind.name}: no {', '.join(lacking)}", flush=True)
        else:
            usable.append(kind)
    return usable
