"""Random sessions of an agent and a person in one directory, and a rewind to a random point.

    python -m tests.harness.rewind_interleavings --count 500 --seed 1

The agent changes lines that begin with A, the person those that begin with P; both edit, append,
create, delete and rename files, the person also while a call is open. After a rewind
- every line of the person's that was there is there,
- a line of a call that was taken back is left in files only that the rewind has named,
- an exact rewind holds what was there at that point, byte by byte,
- an undo brings back what was there before the rewind, byte by byte.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from casfs.rewind import rewind_files
from casfs.rewind.rewind_files import Choice, FilePlan
from casfs.sessions.session_steps import Point
from casfs.store.store import Store
from casfs.system.paths import printable
from tests.support.attached_agent import AttachedAgent, contents
from tests.support.following import OwnSessionDirectory
from tests.support.new_store import init_store
from tests.support.restores import take_back_last

MOVED = ".moved"
NAMES = ("a", "b", "c", "d/e", "d/f", "g h")
EDITOR = """
import json, os, random, sys
for line in sys.stdin:
    action, path, mark, seed = json.loads(line)
    chance = random.Random(seed)
    def read(name):
        return open(name).read().splitlines() if os.path.isfile(name) else []
    if action == "delete":
        if os.path.isfile(path): os.unlink(path)
    elif action == "rename":
        if os.path.isfile(path): os.replace(path, path + ".moved")
    else:
        lines = read(path)
        where = chance.randrange(len(lines) + 1)
        if action == "replace" and lines:
            lines[min(where, len(lines) - 1)] = mark
        else:
            lines.insert(where, mark)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        open(path, "w").write("".join(text + "\\n" for text in lines))
    print(flush=True)
"""


class Editor:
    """A process that lives on and edits when it is told."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        argv = [sys.executable, "-c", EDITOR]
        self.process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True)

    def edit(self, action: str, path: Path, mark: str, seed: int) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([action, str(path), mark, seed]) + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "\n"

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@dataclass
class Play:
    """`marks`: by point, the lines of the agent's call there."""

    agent: AttachedAgent
    agents_editor: Editor
    persons_editor: Editor
    chance: random.Random
    points: list[str] = field(default_factory=list)
    marks: dict[str, list[str]] = field(default_factory=dict)
    number: int = 0

    def run(self, length: int) -> None:
        for index in range(length):
            if index == 0 or self.chance.random() < 0.2:
                self.agent.prompt()
            if self.chance.random() < 0.5:
                self._edit(self.persons_editor, "P")
            self._call()
        if self.chance.random() < 0.7:
            self._edit(self.persons_editor, "P")

    def _call(self) -> None:
        marks: list[str] = []

        def act() -> None:
            for _ in range(self.chance.randrange(1, 4)):
                if self.chance.random() < 0.25:
                    self._edit(self.persons_editor, "P")
                marks.append(self._edit(self.agents_editor, "A"))

        point = self.agent.call(act)
        self.points.append(point)
        self.marks[point] = marks

    def _edit(self, editor: Editor, who: str) -> str:
        self.number += 1
        mark = f"{who}{self.number}"
        path = self.agent.directory / self.chance.choice(NAMES)
        # A person's line that somebody deletes or replaces is not lost by a rewind.
        actions = ("insert", "insert", "insert", "replace", "delete", "rename")
        editor.edit(self.chance.choice(actions), path, mark, self.chance.randrange(1 << 30))
        return mark


def lines_of(directory: Path, who: str) -> Counter[str]:
    lines = (line for _, data in contents(directory).values() for line in data.decode().split())
    return Counter(line for line in lines if line.startswith(who))


def check_rewind(play: Play, point: str) -> str:
    """Rewinds, keeping the person's changes; returns what was kept and why, for the summary."""
    agent = play.agent
    directory = agent.directory
    before = contents(directory)
    persons = lines_of(directory, "P")
    steps = agent.steps()
    plan = rewind_files.plan(agent.store, directory, steps, Choice(Point.parse(point)))
    if plan.undone.changed:
        rewind_files.do(agent.store, directory, plan)
    after = lines_of(directory, "P")
    assert persons <= after, f"lost: {persons - after}"
    _check_marks(play, point, plan)
    if plan.undone.changed:
        take_back_last(agent.store, agent.directory)
        assert contents(directory) == before, "an undo differs"
    return "named" if plan.undone.conflicts or plan.undone.kept else "whole"


def _check_marks(play: Play, point: str, plan: FilePlan) -> None:
    undone = {mark for at in play.points[play.points.index(point) :] for mark in play.marks[at]}
    named = {printable(path) for path in (*plan.undone.conflicts, *plan.undone.kept)}
    for path, (_, data) in contents(play.agent.directory).items():
        left = undone & set(data.decode().split())
        # A file that the person has renamed is the person's.
        if left and path not in named and not path.endswith(MOVED):
            raise AssertionError(f"{path} has {left} and is not named")


def check_exact(play: Play, point: str) -> None:
    agent = play.agent
    steps = agent.steps()
    chosen = Point.parse(point)
    plan = rewind_files.plan(agent.store, agent.directory, steps, Choice(chosen, is_exact=True))
    before = contents(agent.directory)
    if plan.undone.changed:
        rewind_files.do(agent.store, agent.directory, plan)
    assert contents(agent.directory) == contents(agent.copy_of(point)), "not as the copy"
    if plan.undone.changed:
        take_back_last(agent.store, agent.directory)
        assert contents(agent.directory) == before, "an undo differs"


def interleaving(seed: int) -> str:
    """Plays one session; returns `whole` or `named`."""
    folder = Path(tempfile.mkdtemp(prefix="casfs-rewind-"))
    agents_editor, persons_editor = Editor(), Editor()
    try:
        with init_store(folder / "store") as store:
            return _interleaving(store, folder, agents_editor, persons_editor, seed)
    finally:
        agents_editor.end()
        persons_editor.end()
        shutil.rmtree(folder)


def _interleaving(
    store: Store, folder: Path, agents_editor: Editor, persons_editor: Editor, seed: int
) -> str:
    chance = random.Random(seed)
    project = folder / "project"
    (project / "d").mkdir(parents=True)
    for name in ("a", "b", "d/e"):
        (project / name).write_text("".join(f"{number}\n" for number in range(12)))
    followed = OwnSessionDirectory(store, project, None)
    try:
        pid = agents_editor.process.pid
        agent = AttachedAgent(store, project, followed, folder / "copies", pid=pid)
        play = Play(agent, agents_editor, persons_editor, chance)
        play.run(chance.randrange(2, 9))
        check_exact(play, chance.choice(play.points))
        return check_rewind(play, chance.choice(play.points))
    finally:
        followed.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    results: Counter[str] = Counter()
    for seed in range(options.seed, options.seed + options.count):
        try:
            results[interleaving(seed)] += 1
        except AssertionError as error:
            results["failed"] += 1
            print(f"seed {seed}: {error}", flush=True)
    print(dict(results))
    sys.exit(bool(results["failed"]))


if __name__ == "__main__":
    main()
