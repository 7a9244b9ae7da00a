"""Cuts the power under worktrees: what was synced in them is there, the rest is named.

    python tests/harness/power_cuts.py --cuts 50 [--seed N]

A project, the store and its worktrees are on a disk that loses what was not flushed
(`tests/support/volatile_disk.py`). In each worktree a program replaces and deletes files, and says
of each when it is synced; it commits with a git that syncs. A further worktree is being made when
the power is cut. Afterwards `casfs worktree list` must mount all of them, each file must be as it
was synced last, or as it was being written, each commit on its branch, and every file of the
project that was not touched as it is there. Exit 1 with the seed on any fault. Needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.volatile_disk import VolatileDisk

SIZE = 1 << 30
CUTS_A_DISK = 10
MAX_WORKTREES = 4
FIRST_S = 0.3
LONGEST_S = 2.5
GIT_SYNCS = ("-c", "core.fsync=all", "-c", "core.fsyncMethod=fsync")
OWNER = ("-c", "user.name=T", "-c", "user.email=t@example.org")
# Prints `name number` when the file has that content for good, 0 for a deleted one.
WRITER = """
import os, random, subprocess, sys
from power_cuts import content
chance = random.Random(int(sys.argv[1]))
number = int(sys.argv[2])
def sync(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
while True:
    number += 1
    name = f"src/d{chance.randrange(3)}/f{chance.randrange(8)}"
    folder = os.path.dirname(name)
    if not os.path.isdir(folder):
        os.mkdir(folder)
        sync("src")
    if chance.random() < 0.2 and os.path.exists(name):
        os.unlink(name)
        done = 0
    else:
        with open(name + ".new", "w") as file:
            file.write(content(number))
            file.flush()
            os.fsync(file.fileno())
        os.rename(name + ".new", name)
        done = number
    sync(folder)
    print(name, done, flush=True)
    with open(f"unsynced{chance.randrange(9)}", "w") as file:
        file.write(content(number))
    if chance.random() < 0.1:
        git = ["git", *GIT]
        subprocess.run([*git, "add", "-A", "src"], check=True)
        subprocess.run([*git, "commit", "-qm", str(number), "--allow-empty"], check=True)
        head = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True)
        # Git syncs its files, and not their names.
        sync(REFS)
        print("commit", head.strip(), flush=True)
"""


def content(number: int) -> str:
    return f"{number} " * (1, 50, 3000)[number % 3]


class WrittenWorktree:
    """A worktree, and what is known to be synced in it."""

    def __init__(self, path: Path, branch: str) -> None:
        self.path, self.branch = path, branch
        self.files: dict[str, int] = {}
        self.commits: list[str] = []
        self.last = 0

    def start(self, seed: int, repository: Path) -> None:
        refs = str(repository / "refs/heads")
        script = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        script += f"GIT = {[*GIT_SYNCS, *OWNER]!r}\nREFS = {refs!r}\n{WRITER}"
        self.writer = subprocess.Popen(
            [sys.executable, "-c", script, str(seed), str(self.last)],
            cwd=self.path,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def stop(self) -> None:
        self.writer.kill()
        said, _ = self.writer.communicate()
        for line in said.splitlines():
            name, value = line.split()
            if name == "commit":
                self.commits.append(value)
            else:
                self.files[name] = int(value)
                self.last = max(self.last, int(value))

    def faults(self, base: dict[str, bytes]) -> list[str]:
        faults: list[str] = []
        if not self.path.is_dir():
            return [f"{self.path} is gone"]
        for name, number in self.files.items():
            try:
                text = (self.path / name).read_text()
            except FileNotFoundError:
                text = ""
            # What was being done is as good.
            later = int(text.split()[0]) if text else 0
            if (later < number and text) or (not text and number and not self._may_delete(name)):
                faults.append(f"{self.path.name}: {name} is {text[:20]!r}, not {number}")
            elif text and text != content(later):
                faults.append(f"{self.path.name}: {name} has half of {later}")
            self.files[name] = later
            self.last = max(self.last, later)
        for name, data in base.items():
            path = self.path / name
            if name not in self.files and not (path.exists() and path.read_bytes() == data):
                faults.append(f"{self.path.name}: {name} is not as in the project")
        for commit in self.commits:
            done = git(self.path, "merge-base", "--is-ancestor", commit, self.branch)
            if done.returncode:
                faults.append(f"{self.path.name}: commit {commit} is lost: {done.stderr.strip()}")
        status = git(self.path, "status", "--porcelain")
        if status.returncode:
            faults.append(f"{self.path.name}: git status: {status.stderr.strip()}")
        return faults

    def _may_delete(self, name: str) -> bool:
        """The one that was being deleted: at most one is, after the last that was said."""
        missing = [other for other, number in self.files.items() if number and not self._has(other)]
        return missing == [name]

    def _has(self, name: str) -> bool:
        return (self.path / name).exists()


def git(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", *GIT_SYNCS, *OWNER, *arguments], cwd=directory, capture_output=True, text=True
    )


class Machine:
    """A disk and what is on it."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.disk = VolatileDisk(folder, SIZE)
        self.project = self.disk.path / "project"
        self.store = self.disk.path / "store"
        self.worktrees: dict[str, WrittenWorktree] = {}
        self.faults: list[str] = []
        self.synced = 0

    def casfs(self, *arguments: str, code: int | None = 0) -> str:
        command = [sys.executable, "-m", "casfs", "--store", str(self.store), *arguments]
        done = subprocess.run(command, cwd=self.project, capture_output=True, text=True)
        if code is not None and done.returncode != code:
            said = f"{done.stdout} {done.stderr}".strip()
            self.faults.append(f"casfs {' '.join(arguments)}: {said[:500]}")
        return done.stdout

    def prepare(self) -> None:
        self.disk.power_on(self.chance.randrange(1 << 30))
        self.project.mkdir()
        files = {".gitignore": "node_modules/\nunsynced*\n", "package.json": "{}"}
        files |= {f"src/s{number}.py": f"{number}\n" for number in range(20)}
        files |= {f"node_modules/p{n % 9}/m{n}.js": f"{n}\n" * n for n in range(200)}
        for name, text in files.items():
            (self.project / name).parent.mkdir(parents=True, exist_ok=True)
            (self.project / name).write_text(text)
        self.base = {name: text.encode() for name, text in files.items()}
        for arguments in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "first")):
            assert git(self.project, *arguments).returncode == 0
        self.casfs("init")
        os.sync()

    def cut_once(self) -> None:
        for name in list(self.worktrees)[: len(self.worktrees) - MAX_WORKTREES + 1]:
            if len(self.worktrees) >= MAX_WORKTREES:
                self.casfs("worktree", "rm", name, "--force")
                del self.worktrees[name]
        self._add(f"w{self.chance.randrange(1 << 30)}")
        for written in self.worktrees.values():
            written.start(self.chance.randrange(1 << 30), self.project / ".git")
        unfinished = f"u{self.chance.randrange(1 << 30)}"
        command = [sys.executable, "-m", "casfs", "--store", str(self.store)]
        adding = subprocess.Popen(
            [*command, "worktree", "add", unfinished, "--json"],
            cwd=self.project,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(self.chance.uniform(FIRST_S, LONGEST_S))
        self.disk.cut()
        for written in self.worktrees.values():
            written.stop()
            self.synced += len(written.files) + len(written.commits)
        adding.kill()
        said, _ = adding.communicate()
        if said:
            self._note(unfinished, json.loads(said))
        self._power_on_again()
        self._check(unfinished)

    def _add(self, name: str) -> None:
        said = self.casfs("worktree", "add", name, "--json")
        if said:
            self._note(name, json.loads(said))

    def _note(self, name: str, added: dict[str, str]) -> None:
        self.worktrees[name] = WrittenWorktree(Path(added["directory"]), added["branch"])

    def unmount(self) -> None:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        for point in reversed([line.split()[4] for line in lines]):
            if point.startswith(f"{self.disk.path}/"):
                subprocess.run(["umount", "-l", point], capture_output=True)
        self.disk.unmount()

    def _power_on_again(self) -> None:
        self.unmount()
        self.disk.power_on(self.chance.randrange(1 << 30))
        # Git leaves its locks behind, and says that a person is to delete them.
        for lock in (self.project / ".git").rglob("*.lock"):
            lock.unlink()

    def _check(self, unfinished: str) -> None:
        listed = json.loads(self.casfs("worktree", "list", "--json") or "[]")
        states = {value["name"]: value["state"] for value in listed}
        for name, written in self.worktrees.items():
            if states.get(name) != "open":
                self.faults.append(f"{name} is {states.get(name, 'not there')}")
            else:
                self.faults += written.faults(self.base)
        self.casfs("fsck")
        # One that was being made can be made, or is there.
        if unfinished not in self.worktrees:
            if unfinished not in states:
                self._add(unfinished)
            else:
                value = next(value for value in listed if value["name"] == unfinished)
                self._note(unfinished, value)
                if value["state"] != "open":
                    self.faults.append(f"{unfinished} is {value['state']}")
            if unfinished in self.worktrees:
                self.faults += self.worktrees[unfinished].faults(self.base)
        self.casfs("doctor")
        fsck = git(self.project, "fsck", "--no-dangling")
        if fsck.returncode:
            self.faults.append(f"git fsck: {fsck.stderr.strip()[:300]}")


def run(cuts: int, seed: int) -> tuple[int, list[str]]:
    """Returns how many synced files and commits were looked for, and the faults."""
    synced = 0
    for first in range(0, cuts, CUTS_A_DISK):
        with tempfile.TemporaryDirectory() as folder:
            machine = Machine(Path(folder), seed + first)
            try:
                machine.prepare()
                for _ in range(min(CUTS_A_DISK, cuts - first)):
                    machine.cut_once()
                    if machine.faults:
                        break
            finally:
                machine.unmount()
        synced += machine.synced
        if machine.faults:
            return synced, [f"seed {seed + first}: {fault}" for fault in machine.faults]
    return synced, []


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cuts", type=int, default=10)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options = parser.parse_args()
    synced, faults = run(options.cuts, options.seed)
    if faults:
        sys.exit("\n".join(faults))
    print(f"{options.cuts} cuts, {synced} synced files and commits looked for: 0 lost")


if __name__ == "__main__":
    main()
