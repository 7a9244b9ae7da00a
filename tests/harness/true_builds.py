"""Edit, build, record and restore at random, and look whether the programs tell the truth.

    python tests/harness/true_builds.py --sequences 200 [--seed N] [--tool make]

A sequence is one project of one tool, with its outputs recorded or ignored. After each build, what
the program says must be what a clean build of the same sources says. After a restore into nothing
of what was recorded right after a build, there must be nothing to build; after one over the
directory too, where the tool trusts the order of times. Exit 1 with the seed on any difference.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from casfs.trees.restore.options import RestoreOptions

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from casfs.checkpoints import checkpoint, create
from casfs.errors import Refused
from casfs.store.store import Store
from casfs.trees import tree
from casfs.trees.recorded_state import RecordedState
from casfs.trees.restore.apply import apply
from casfs.trees.restore.restore import restore
from tests.support.builds import TOOLS, Tool

STEPS = 14
WEIGHTS = {"edit": 5, "build": 4, "record": 3, "over": 3, "anew": 1, "apply": 2}


class Recorded(NamedTuple):
    """`is_built`: it has what was built, and there was nothing to build."""

    state: RecordedState
    is_built: bool


class Untrue(Exception):
    """A program does not say what its sources say."""


class Sequence:
    """One project, its store and what was recorded of it."""

    def __init__(self, folder: Path, tool: Tool, rng: random.Random, *, ignored: bool) -> None:
        self.tool, self.rng, self.folder = tool, rng, folder
        self.store = Store.init(folder / "store")
        self.project = tool.create(folder / "project")
        if ignored:
            names = "\n".join(["*.o", "prog", ".ninja*", "target", "out", "*.tsbuildinfo"])
            (self.project / ".casfsignore").write_text(f"{names}\n__pycache__\n")
        self.ignored = ignored
        self.is_built = False
        self.recorded: list[Recorded] = []
        self.said: list[str] = []  # what was done, for the report
        self.record()

    def run(self) -> None:
        for _ in range(STEPS):
            name = self.rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
            self.said.append(name)
            getattr(self, name)()
        self.build()

    def edit(self) -> None:
        name = self.rng.choice(self.tool.edited)
        value = self.rng.choice("abcdefghij")
        self.said[-1] += f" {name}={value}"
        self.tool.edit(self.project, name, value)
        self.is_built = False

    def build(self) -> None:
        self.tool.make(self.project)
        self.is_built = True
        here = self.tool.says(self.project)
        clean = self.tool.says_when_clean(self.project, self.folder / "clean")
        if here != clean:
            raise Untrue(f"says {here}, and {clean} when it is built clean")

    def record(self) -> None:
        made = create.create(self.store, "p", self.project).checkpoint
        state = checkpoint.recorded(self.store, made)
        is_recorded = tree.find(self.store, state.tree, self.tool.output.encode()) is not None
        self.recorded.append(Recorded(state, self.is_built and is_recorded))

    def over(self) -> None:
        """Restores over the directory, as a person does who lets her edits be overwritten."""
        one = self._chosen()
        restore(
            self.store,
            one.state,
            self.project,
            RestoreOptions(force=True),
        )
        self._look(one, is_idle=one.is_built and self.tool.trusts_order)

    def anew(self) -> None:
        """Goes on in another directory, as a fork does."""
        one = self._chosen()
        self.project = self.folder / f"project-{len(self.said)}"
        restore(self.store, one.state, self.project)
        self._look(one, is_idle=one.is_built)

    def apply(self) -> None:
        """Applies the changes between two states. Outputs that are work are merged as any file, so
        what they were built from is not what is there: then there is nothing to compare."""
        if not self.ignored:
            return
        old, new = self._chosen(), self._chosen()
        try:
            apply(self.store, old.state, new.state, self.project, label="new")
        except Refused:  # conflicts of an earlier apply
            return
        self._resolve()
        self.is_built = False

    def _chosen(self) -> Recorded:
        number = self.rng.randrange(len(self.recorded))
        self.said[-1] += f" {number}"
        return self.recorded[number]

    def _resolve(self) -> None:
        """Takes what was there where both sides changed a line, or a whole output."""
        for name in self.tool.sources:
            lines, ours, theirs = [], True, False
            for line in (self.project / name).read_text().splitlines(keepends=True):
                if line.startswith("<<<<<<<"):
                    theirs = False
                elif line.startswith("======="):
                    ours, theirs = False, True
                elif line.startswith(">>>>>>>"):
                    ours, theirs = True, False
                elif ours and not theirs:
                    lines.append(line)
            text = "".join(lines)
            if text != (self.project / name).read_text():
                (self.project / name).write_text(text)

    def _look(self, one: Recorded, *, is_idle: bool) -> None:
        self.is_built = one.is_built
        if is_idle and self.tool.make(self.project):
            raise Untrue("something was built again that did not change")


def run(tool: Tool, seed: int) -> str | None:
    """Returns what is untrue, with the way there; None where all is well."""
    rng = random.Random(seed)
    folder = Path(tempfile.mkdtemp(prefix="casfs-builds-"))
    sequence = Sequence(folder, tool, rng, ignored=rng.random() < 0.4)
    try:
        sequence.run()
    except Untrue as error:
        way = "; ".join(sequence.said)
        return f"{tool.name}, seed {seed}, {folder}, ignored {sequence.ignored}: {error}: {way}"
    finally:
        sequence.store.close()
    shutil.rmtree(folder)
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sequences", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tool", choices=[tool.name for tool in TOOLS])
    options = parser.parse_args()
    tools = [tool for tool in TOOLS if options.tool in (None, tool.name)]
    bad = 0
    for number in range(options.sequences):
        tool = tools[number % len(tools)]
        if error := run(tool, options.seed + number):
            print(error, flush=True)
            bad += 1
    print(f"sequences {options.sequences}, untrue {bad}")
    return min(bad, 1)


if __name__ == "__main__":
    sys.exit(main())
