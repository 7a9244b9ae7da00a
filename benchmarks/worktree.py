"""Worktrees: what the first and further ones of a project take, in time and on disk.

    python -m benchmarks.worktree [--dir DIR] [--files 60000] [--tracked 3000] [--scale 1]
                                  [--rounds 10]

The project has so many files in `node_modules`, which git ignores, of 7 kB on average times the
scale, and so many that it tracks. Each further worktree begins after a change of one file. Beside
them `git worktree add` with `cp -a` of what git ignores, and `git status` in a worktree beside that
in the project.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common import machine, table, workplace
from casfs.system import daemon_socket

SEED = 1
IGNORED_BYTES = (300, 2_000, 6_000, 20_000)
TRACKED_BYTES = (500, 3_000, 9_000)
FILES_IN_DIRECTORY = 100
OWNER = ("-c", "user.name=B", "-c", "user.email=b@example.org")
HOUR_S = 3600


def make_project(project: Path, ignored: int, tracked: int, scale: int = 1) -> None:
    chance = random.Random(SEED)

    def write(path: str, size: int) -> None:
        file = project / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(chance.randbytes(size))
        # Git reads those again whose time is that of its index.
        old = time.time() - HOUR_S
        os.utime(file, (old, old))

    for number in range(ignored):
        folder = f"node_modules/p{number // FILES_IN_DIRECTORY}/lib"
        write(f"{folder}/f{number}.js", chance.choice(IGNORED_BYTES) * scale)
    for number in range(tracked):
        write(f"src/d{number // FILES_IN_DIRECTORY}/f{number}.py", chance.choice(TRACKED_BYTES))
    (project / "package.json").write_text("{}")
    (project / ".gitignore").write_text("node_modules/\n")
    for arguments in (("init", "-q"), ("add", "-A"), (*OWNER, "commit", "-qm", "all"), ("status",)):
        run(["git", *arguments], project)


def run(command: Sequence[str], directory: Path) -> float:
    """Returns how many milliseconds a command took."""
    began = time.perf_counter()
    subprocess.run(command, cwd=directory, check=True, capture_output=True)
    return (time.perf_counter() - began) * 1000


def taken_bytes(directory: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in directory.rglob("*"))


def measure(folder: Path, project: Path, rounds: int) -> list[list[str]]:
    casfs = [sys.executable, "-m", "casfs", "--store", str(folder / "store")]
    run([*casfs, "init"], folder)
    chance = random.Random(SEED)
    files = sorted((project / "src").rglob("*.py"))
    rows: list[list[str]] = []

    def add(title: str, count: int) -> None:
        times, sizes = [], []
        for _ in range(count):
            before = taken_bytes(folder / "store")
            chance.choice(files).write_bytes(chance.randbytes(1000))
            times.append(run([*casfs, "worktree", "add"], project))
            sizes.append(taken_bytes(folder / "store") - before)
        size = f"{statistics.median(sizes) / 1e6:.2f}"
        rows.append([title, f"{statistics.median(times):,.0f}", f"{max(times):,.0f}", size])

    try:
        add("the first", 1)
        add("a further one", rounds)
        run([*casfs, "daemon", "start"], folder)
        add("the first with a daemon", 1)
        add("a further one with a daemon", rounds)
        rows.append(_by_git(folder, project))
        for title, directory in (("in the project", project), ("in a worktree", _last(folder))):
            times = [run(["git", "status"], directory) for _ in range(rounds)]
            median = f"{statistics.median(times):,.1f}"
            rows.append([f"git status {title}", median, f"{max(times):,.1f}", ""])
    finally:
        if daemon_socket.runs(folder / "store"):
            daemon_socket.stop(folder / "store")
        for worktree in (folder / "project.worktrees").glob("*"):
            run([*casfs, "worktree", "rm", worktree.name, "--force"], project)
    return rows


def _last(folder: Path) -> Path:
    return max((folder / "project.worktrees").iterdir(), key=lambda path: int(path.name[1:]))


def _by_git(folder: Path, project: Path) -> list[str]:
    other = folder / "by-git"
    spent = run(["git", "worktree", "add", "-q", "-b", "by-git", str(other)], project)
    spent += run(["cp", "-a", "node_modules", str(other)], project)
    size = taken_bytes(other)
    shutil.rmtree(other)
    run(["git", "worktree", "prune"], project)
    return ["git worktree add, cp -a", f"{spent:,.0f}", f"{spent:,.0f}", f"{size / 1e6:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=60_000)
    parser.add_argument("--tracked", type=int, default=3_000)
    parser.add_argument("--scale", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--dir", type=Path, help="where to work")
    options = parser.parse_args()
    with workplace(options.dir) as folder:
        project = folder / "project"
        make_project(project, options.files, options.tracked, options.scale)
        rows = measure(folder, project, options.rounds)
        title = (
            f"{options.files:,} ignored and {options.tracked:,} tracked files,"
            f" {taken_bytes(project / 'node_modules') / 1e9:.1f} GB ignored. {machine(folder)}"
        )
        table(title, ["", "p50, ms", "longest, ms", "disk, MB"], rows)


if __name__ == "__main__":
    main()
