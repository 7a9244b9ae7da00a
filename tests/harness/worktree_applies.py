"""Applies the results of many worktrees in any order, and compares with `git merge-file`.

    python tests/harness/worktree_applies.py --sets 500 [--seed N]

A set is one project in git and 2 to 20 worktrees of it, in each of which files are edited, made,
deleted and made executable at random. Each is applied to the project, some twice with edits
between. A model does the same path by path, and texts by `git merge-file`; after each apply the
project must be as the model, and the conflicts that were named must be its conflicts. Where lines
repeat, as empty ones do, git may align texts in another way: then no line may be lost. After each
apply a person resolves the marked conflicts by taking the lines of both. Exit 1 with the seed on
any difference.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from casfs.cli.worktree.creating import create
from casfs.store.store import Store
from casfs.workspaces import strategies, strategy_choice
from casfs.worktrees import applying, removal, worktree
from casfs.worktrees.applying import Applying
from casfs.worktrees.creation import Wanted

Content = tuple[bytes, bool]  # and its x bit
State = dict[str, Content]
MAX_WORKTREES = 20
GIT_FAILED = 128  # else its exit code is the number of conflicts
OWNER = ("-c", "user.name=T", "-c", "user.email=t@example.org")
MARKERS = (b"<<<<<<< ", b"=======", b">>>>>>> ")


class Different(Exception):
    """The project is not as the model says."""


def backend() -> str:
    """Of the quick ones; what applies is the same for all."""
    native = strategies.STRATEGIES[strategies.NATIVE]
    return strategies.COPY if strategy_choice.unavailable(native) else strategies.NATIVE


def state_of(directory: Path) -> State:
    return {
        str(path.relative_to(directory)): (path.read_bytes(), os.access(path, os.X_OK))
        for path in directory.rglob("*")
        if ".git" not in path.relative_to(directory).parts and path.is_file()
    }


def is_other_merge(merged: State, sides: tuple[State, State, State], path: str) -> bool:
    """Returns whether a text, in which lines repeat, has every line that one of both sides has
    added, or both have kept, and no others."""
    if any(path not in side for side in (merged, *sides)):
        return False
    texts = [side[path][0].splitlines() for side in sides]
    if all(len(lines) == len(set(lines)) for lines in texts):
        return False
    base, ours, theirs = map(set, texts)
    text = set(merged[path][0].splitlines())
    wanted = (ours - (base - theirs)) | (theirs - (base - ours))
    return wanted <= text and text <= ours | theirs | {
        line for line in text if line.startswith(MARKERS)
    }


def run_git(directory: Path, *arguments: str) -> None:
    subprocess.run(["git", *OWNER, *arguments], cwd=directory, check=True, capture_output=True)


class Set:
    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.folder = folder
        self.count = 0
        self.has_empty_lines = self.chance.random() < 0.3
        self.project = folder / "project"
        self.store = Store.init(folder / "store")

    def run(self) -> int:
        """Returns how many applies there were. Raises Different."""
        with self.store:
            self._make_project()
            base = state_of(self.project)
            count = self.chance.randint(2, self.chance.choice([3, 6, MAX_WORKTREES]))
            names = [f"w{number}" for number in range(count)]
            for name in names:
                created = create(self.store, self.project, Wanted(name), backend())
                self._edit(created.path)
            # What each has had applied: the base of its next merge.
            bases = {name: dict(base) for name in names}
            try:
                turns = names + self.chance.choices(names, k=count // 3)
                self.chance.shuffle(turns)
                for name in turns:
                    self._apply(name, bases[name])
            finally:
                for listed in worktree.listing(self.store):
                    removal.remove(self.store, listed, os.environ, force=True)
        return len(turns)

    def _line(self) -> bytes:
        if self.has_empty_lines and self.chance.random() < 0.2:
            return b"\n"
        self.count += 1
        return b"line %d\n" % self.count

    def _make_project(self) -> None:
        self.project.mkdir()
        for number in range(6):
            lines = [self._line() for _ in range(self.chance.randint(0, 25))]
            path = self.project / self.chance.choice(["", "src/"]) / f"f{number}"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"".join(lines))
        (self.project / "binary").write_bytes(b"\0" + self._line())
        run_git(self.project, "init", "-q")
        run_git(self.project, "add", "-A")
        run_git(self.project, "commit", "-qm", "first")

    def _edit(self, directory: Path) -> None:
        chance = self.chance
        for _ in range(chance.randint(1, 5)):
            files = sorted(state_of(directory))
            path = directory / chance.choice(files)
            what = chance.choice(["lines"] * 6 + ["new", "delete", "mode", "binary"])
            if what == "lines":
                self._edit_lines(path)
            elif what == "new":
                (directory / f"new{chance.randint(0, 3)}").write_bytes(self._line())
            elif what == "delete" and len(files) > 3:
                path.unlink()
            elif what == "mode":
                path.chmod(path.stat().st_mode ^ 0o111)
            elif what == "binary":
                (directory / "binary").write_bytes(b"\0" + self._line())

    def _edit_lines(self, path: Path) -> None:
        lines = path.read_bytes().splitlines(keepends=True)
        for _ in range(self.chance.randint(1, 3)):
            start = self.chance.randint(0, len(lines))
            end = min(len(lines), start + self.chance.choice([0, 0, 1, 3]))
            lines[start:end] = [self._line() for _ in range(self.chance.choice([0, 1, 2]))]
        path.write_bytes(b"".join(lines))

    def _apply(self, name: str, base: State) -> None:
        source = worktree.find(self.store, name, self.project)
        if self.chance.random() < 0.3:
            self._edit(source.path)
        ours, theirs = state_of(self.project), state_of(source.path)
        expected, conflicts = self._merged(base, ours, theirs=theirs, label=f"worktree {name}")
        options = Applying(self.project, check=False, with_ignored=False, actor="a person")
        done = applying.apply(self.store, source, options, os.environ)
        named = {os.fsdecode(path) for path, _ in done.merged.conflicts}
        holds = state_of(self.project)
        differing = named ^ conflicts
        differing |= {path for path in holds | expected if holds.get(path) != expected.get(path)}
        sides = (base, ours, theirs)
        differing = {path for path in differing if not is_other_merge(holds, sides, path)}
        if differing or done.failed:
            raise Different(f"{name}: {sorted(differing)} are not as git has them")
        for path in base | theirs:  # a conflict is named once, and then resolved by a person
            base.pop(path, None)
            if path in theirs:
                base[path] = theirs[path]
        self._resolve(named)

    def _resolve(self, conflicts: set[str]) -> None:
        for name in conflicts:
            path = self.project / name
            if path.exists():
                lines = path.read_bytes().splitlines(keepends=True)
                path.write_bytes(b"".join(line for line in lines if not line.startswith(MARKERS)))

    def _merged(
        self, base: State, ours: State, theirs: State, label: str
    ) -> tuple[State, set[str]]:
        merged, conflicts = dict(ours), set()
        for path in base.keys() | theirs.keys():
            old, mine, new = base.get(path), ours.get(path), theirs.get(path)
            if new in (old, mine):
                continue
            if mine == old:
                result = new
            elif mine is None or new is None:
                conflicts.add(path)
                result = new if mine is None else mine
            else:
                result, is_conflict = self._merged_file(old, mine, new=new, label=label)
                if is_conflict or (old is None and mine[1] != new[1]):
                    conflicts.add(path)
            merged.pop(path, None)
            if result is not None:
                merged[path] = result
        return merged, conflicts

    def _merged_file(
        self, old: Content | None, mine: Content, *, new: Content, label: str
    ) -> tuple[Content, bool]:
        """Returns the merged file, and whether it is a conflict."""
        content = old[0] if old else b""
        mode = mine[1] if old is None or mine[1] != old[1] else new[1]
        if mine[0] == new[0] or (old and new[0] == content):
            return (mine[0], mode), False
        if old and mine[0] == content:
            return (new[0], mode), False
        if b"\0" in content + mine[0] + new[0]:
            return (mine[0], mode), True
        files = []
        for name, text in (("ours", mine[0]), ("base", content), ("theirs", new[0])):
            files.append(str(self.folder / name))
            Path(files[-1]).write_bytes(text)
        labels = ("-L", "ours", "-L", "base", "-L", label)
        done = subprocess.run(["git", "merge-file", "-p", *labels, *files], capture_output=True)
        if not 0 <= done.returncode < GIT_FAILED:
            raise Different(f"git merge-file: {done.stderr.decode()}")
        return (done.stdout, mode), done.returncode > 0


def run_set(folder: Path, seed: int) -> int:
    """Runs a set in a folder, deleted at the end; returns how many applies it had."""
    folder.mkdir()
    try:
        return Set(folder, seed).run()
    finally:
        shutil.rmtree(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--sets", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options = parser.parse_args()
    applies = 0
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(options.seed, options.seed + options.sets):
            try:
                applies += run_set(Path(folder, "set"), seed)
            except Different as error:
                sys.exit(f"--sets 1 --seed {seed}: {error}")
    print(f"{options.sets} sets, {applies} applies: all as git has them; 0 lost")


if __name__ == "__main__":
    main()
