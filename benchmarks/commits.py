"""Measure everyday commands of two commits of casfs, in pairs; prints Markdown.

    .venv/bin/python -m benchmarks.commits COMMIT [--dir DIR] [--tree DIR] [--rounds N]

COMMIT, an earlier one, is unpacked from the repository; the other is the working tree. In a round
each command runs once with each, in an order that alternates; the table has the medians of the
rounds, and that of the ratio of each pair. Both run in the environment of the working tree, each
with a store and a directory of its own, in which nothing is deleted: ext4 looks through the inodes
that were freed in the last seconds whenever a file is made.
"""

from __future__ import annotations

import argparse
import compileall
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import NamedTuple

from benchmarks import common
from benchmarks.mount_passes import GREP

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("casfs", "engine", "schemas")
DIRECTORIES = ("casfs", "engine", "tests", "docs", "benchmarks")  # what is recorded by default
NAME = "work"  # of the checkpoints


class Version:
    """The program of a commit, with a store, a directory and a mount of its own. `latest`: the path
    that `new_path` has returned last."""

    def __init__(self, source: Path, work: Path, tree: Path | None) -> None:
        self._source = source
        self._numbers = count(1)
        self._work = work
        self.latest = self.store = work / "store"
        self.remote = work / "remote"
        self.directory = work / "directory"
        self.mount_point = work / "mount"
        self.mount_point.mkdir(parents=True)
        (work / "run").mkdir(mode=0o700)
        parts = {ROOT / name: name for name in DIRECTORIES} if tree is None else {tree: "tree"}
        for part, name in parts.items():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(part, self.directory / name, symlinks=True, ignore=ignored)

    def run(self, *words: object, store: Path | None = None) -> None:
        """Raises CalledProcessError."""
        env = {
            **os.environ,
            "CASFS_STORE": str(store or self.store),
            "PYTHONPATH": str(self._source),
            "XDG_RUNTIME_DIR": str(self._work / "run"),
        }
        command = [sys.executable, "-P", "-m", "casfs", *map(str, words)]
        subprocess.run(command, env=env, stdout=subprocess.DEVNULL, check=True)

    def set_up(self) -> None:
        """Makes the store with a checkpoint, and a remote of it."""
        self.change_a_file()
        self.run("init")
        self.run("checkpoint", "create", NAME, self.directory)
        self.run("remote", "add", "origin", self.remote.as_uri())
        self.run("push", "origin", "--all")

    def new_path(self) -> Path:
        self.latest = self._work / str(next(self._numbers))
        return self.latest

    def change_a_file(self) -> None:
        (self.directory / "changed").write_text(str(random.random()))

    def walk(self, command: str) -> None:
        """Runs a shell command in the newest checkpoint of the mount."""
        checkpoints = self.mount_point / "trees" / NAME
        # Not through `latest`: for each path through it the kernel asks where it leads.
        common.timed(command, top=checkpoints / (checkpoints / "latest").readlink())

    def unmount(self) -> None:
        common.end_mount(self.mount_point)

    def remount(self) -> None:
        self.unmount()
        self.run("mount", self.mount_point)


Action = Callable[[Version], object]


class Case(NamedTuple):
    """`prepare` is not measured."""

    name: str
    command: Action
    prepare: Action = lambda version: None


CHECKPOINT = "checkpoint", "create", NAME
CASES = (
    Case("`--version`", lambda version: version.run("--version")),
    Case("`init`", lambda version: version.run("init", store=version.new_path())),
    Case(
        "first checkpoint",
        lambda version: version.run(*CHECKPOINT, version.directory, store=version.latest),
        lambda version: version.run("init", store=version.new_path()),
    ),
    Case(
        "checkpoint, nothing changed", lambda version: version.run(*CHECKPOINT, version.directory)
    ),
    Case(
        "checkpoint, a file changed",
        lambda version: version.run(*CHECKPOINT, version.directory),
        Version.change_a_file,
    ),
    Case("restore", lambda version: version.run("checkpoint", "restore", NAME, version.new_path())),
    Case("`ls -R`", lambda version: version.run("ls", "-R", NAME)),
    Case("`cat`", lambda version: version.run("cat", f"{NAME}:changed")),
    Case("`log` of a path", lambda version: version.run("log", f"{NAME}:changed")),
    Case("`diff`", lambda version: version.run("diff", NAME, version.directory)),
    Case("`status`", lambda version: version.run("status")),
    Case("`checkpoint list`", lambda version: version.run("checkpoint", "list")),
    Case("`search`", lambda version: version.run("search", "nothing")),
    Case("`gc --dry-run`", lambda version: version.run("gc", "--dry-run")),
    Case("`fsck`", lambda version: version.run("fsck")),
    Case(
        "`push`",
        lambda version: version.run("push", f"r{version.latest.name}", "--all"),
        lambda version: version.run(
            "remote", "add", f"r{version.new_path().name}", version.latest.as_uri()
        ),
    ),
    Case(
        "`clone`",
        lambda version: version.run("clone", version.remote.as_uri(), version.new_path()),
    ),
    Case("`mount`", lambda version: version.run("mount", version.mount_point), Version.unmount),
    Case("mount: first `ls -lR`", lambda version: version.walk("ls -lR | cat"), Version.remount),
    Case("mount: next `ls -lR`", lambda version: version.walk("ls -lR | cat")),
    Case("mount: first `grep -r`", lambda version: version.walk(GREP), Version.remount),
    Case("mount: next `grep -r`", lambda version: version.walk(GREP)),
)


def measure(case: Case, versions: Sequence[Version], rounds: int) -> list[str]:
    """Returns a row: the medians of both in ms, and that of the ratios of the pairs."""
    seconds: list[list[float]] = [[] for _ in versions]
    for turn in range(rounds):
        for index in (0, 1) if turn % 2 else (1, 0):
            case.prepare(versions[index])
            start = time.perf_counter()
            case.command(versions[index])
            seconds[index].append(time.perf_counter() - start)
    ratios = [after / before for before, after in zip(*seconds, strict=True)]
    medians = [f"{statistics.median(values) * 1000:,.0f} ms" for values in seconds]
    return [case.name, *medians, f"{statistics.median(ratios):.2f} ×"]


def unpack(commit: str, target: Path) -> None:
    target.mkdir()
    archive = subprocess.run(
        ["git", "archive", commit, *SOURCES], cwd=ROOT, stdout=subprocess.PIPE, check=True
    )
    subprocess.run(["tar", "x"], cwd=target, input=archive.stdout, check=True)
    # Else each command of it compiles what it imports.
    compileall.compile_dir(target, quiet=2)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit", metavar="COMMIT")
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--tree", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    common.unwind_on_signals()
    with common.workplace(options.dir) as work:
        print(common.machine(work), flush=True)
        unpack(options.commit, work / "earlier-source")
        compileall.compile_dir(ROOT / "casfs", quiet=2)
        versions = [
            Version(source, work / name, options.tree)
            for name, source in (("earlier", work / "earlier-source"), ("here", ROOT))
        ]
        for version in versions:
            version.set_up()
        rows = [measure(case, versions, options.rounds) for case in CASES]
    common.table("Everyday commands", ["", options.commit, "here", "of a pair"], rows)


if __name__ == "__main__":
    main()
