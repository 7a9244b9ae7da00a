"""Random sequences of what a person, two agents and commands do in one directory, against a model
that is a plain copy of the directory before and after each operation (`cp -a`).

    python -m tests.harness.taken_back --sequences 2000 --seed 1

A person edits, renames, deletes, commits, stashes, looks with git, has git pack; two agents call
tools, alone, at once, interrupted, with a person's edits meanwhile; commands record, restore (by
every kind of checkpoint, by force, single paths), apply, rewind in each form, undo, redo, and are
killed in the middle. After each command
- each path is what three plain copies say: as before the operation where it is as after it, as it
  is where it was changed since and cannot be merged (and then it is named), untouched otherwise,
- no path differs that the command did not name,
- what no checkpoint looks at (`.git`, `node_modules`) is as it was after a restore,
- `git fsck` finds nothing, and git sees the repository that it saw then.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from casfs.checkpoints import checkpoint
from casfs.checkpoints.create import CreateOptions, create
from casfs.directories import operations
from casfs.directories.operations import PERSON, Intent, Operation, Verb
from casfs.errors import CasfsError, NotFound, Refused
from casfs.rewind import rewind_files, take_back
from casfs.rewind.rewind_files import Choice
from casfs.rewind.take_back import Reversal
from casfs.rewind.undo_calls import Undone
from casfs.sessions.session_steps import Point
from casfs.store.store import Store
from casfs.trees.recorded_state import RecordedState
from casfs.trees.restore.apply import apply
from casfs.trees.restore.incremental import IncrementalRestore
from casfs.trees.restore.options import RestoreOptions
from casfs.trees.restore.restore import restore
from tests.harness.directory_model import (
    EMPTY,
    Seen,
    changed,
    has_directory,
    has_mode_in,
    is_above,
    is_merge,
    look,
    paths_of,
)
from tests.harness.random_commands import GIT, NAMES, Commands, Shell
from tests.support.attached_agent import AttachedAgent
from tests.support.following import OwnSessionDirectory
from tests.support.new_store import init_store
from tests.support.repositories import git

LENGTH = 30
KILLED_AT = ("_restore_entry", "_place", "directory", "rename")


class Wrong(Exception):
    """What a command did is not what the copies say."""


@dataclass
class Operations:
    """What was done by commands, in order. `before`, `after`: the directory around each."""

    seen: dict[int, tuple[Seen, Seen]] = field(default_factory=dict)


class Sequence:
    """One directory with a store, two agents and a person."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.commands = Commands(self.chance)
        self.directory = folder / "project"
        self.store = init_store(folder / "store")
        self.said: list[str] = []
        self.counts: Counter[str] = Counter()
        self.done = Operations()
        self.calls: dict[tuple[int, str], tuple[Seen, Seen]] = {}
        self.points: dict[tuple[int, str], Seen] = {}
        self.begun: set[int] = set()  # agents that have a prompt

    @contextmanager
    def played(self) -> Iterator[None]:
        self._make_project()
        followed = OwnSessionDirectory(self.store, self.directory, None)
        self.shells = [Shell(self.directory) for _ in range(2)]
        self.agents = [
            AttachedAgent(
                self.store,
                self.directory,
                followed,
                session=f"session-{number}",
                pid=shell.process.pid,
            )
            for number, shell in enumerate(self.shells)
        ]
        try:
            yield
        finally:
            for shell in self.shells:
                shell.end()
            followed.close()
            self.store.close()

    def _make_project(self) -> None:
        self.directory.mkdir()
        for number, name in enumerate(NAMES):
            path = self.directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = [f"{name} {line}" for line in range(4 + number * 3)]
            path.write_text("".join(f"{line}\n" for line in lines))
        (self.directory / ".env").write_text("API_SECRET=a-word-that-is-long\n")
        (self.directory / ".gitignore").write_text("node_modules/\n.env\n")
        (self.directory / "package.json").write_text("{}\n")
        git(self.directory, "init", "-q", "-b", "main")
        self._person(f"{GIT} add -A; {GIT} commit -qm first; {GIT} commit -q --allow-empty -m 2")

    def run(self, length: int) -> None:
        acts: list[tuple[int, Callable[[], None]]] = [
            (8, self.person),
            (10, self.call),
            (2, self.calls_at_once),
            (2, self.interrupted),
            (1, self.background),
            (2, self.record),
            (3, self.restore),
            (2, self.apply),
            (3, self.rewind_last),
            (3, self.rewind_to),
            (1, self.rewind_exactly),
            (4, self.undo),
            (3, self.redo),
            (1, self.undo_any),
            (1, self.killed),
            (1, self.killed_undo),
            (1, self.moved),
        ]
        self.record()
        for _ in range(length):
            act = self.chance.choices([act for _, act in acts], [weight for weight, _ in acts])[0]
            self.said.append(act.__name__)
            act()
            self.counts[act.__name__] += 1

    # -- a person and agents --------------------------------------------------------------

    def person(self) -> None:
        for _ in range(self.chance.randint(1, 3)):
            self._person(self.commands.any("P"))

    def _person(self, command: str) -> None:
        self.said.append(f"  person: {command}")
        subprocess.run(["sh", "-c", command], cwd=self.directory, capture_output=True)

    def _agent(self) -> int:
        number = self.chance.randrange(2)
        if number not in self.begun or self.chance.random() < 0.2:
            self.agents[number].prompt()
            self.begun.add(number)
        return number

    def _act(self, number: int) -> None:
        command = self.commands.any("A")
        self.said.append(f"  agent {number}: {command}")
        self.shells[number].run(command)

    def call(self) -> None:
        number = self._agent()

        def act() -> None:
            for _ in range(self.chance.randint(1, 2)):
                self._act(number)
            if self.chance.random() < 0.15:
                self._person(self.commands.any("P"))

        self.agents[number].call(act)

    def background(self) -> None:
        """What an agent's process does between calls is not known to be its, and stays."""
        self._act(self.chance.randrange(2))

    def calls_at_once(self) -> None:
        number = self._agent()
        other = number if self.chance.random() < 0.6 else 1 - number
        if other not in self.begun:
            self.agents[other].prompt()
            self.begun.add(other)
        ids = [self.commands.line("call"), self.commands.line("call")]
        self.agents[number].begin(ids[0])
        self._act(number)
        self.agents[other].begin(ids[1])
        self._act(self.chance.choice([number, other]))
        self.agents[number].end(ids[0])
        if self.chance.random() < 0.5:
            self._act(other)
        self.agents[other].end(ids[1])

    def interrupted(self) -> None:
        number = self._agent()
        self.agents[number].begin(self.commands.line("call"))
        self._act(number)
        if self.chance.random() < 0.3:
            self._person(self.commands.any("P"))
        getattr(self.agents[number], self.chance.choice(["stop", "quit", "resume"]))()
        self.begun.discard(number)

    # -- commands -------------------------------------------------------------------------

    def record(self) -> None:
        options = self.chance.choice(
            [CreateOptions()] * 4
            + [CreateOptions(with_derived=True), CreateOptions(defaults=False)]
        )
        create(self.store, "work", self.directory, options=options)

    def restore(self) -> None:
        chosen = self.chance.choice(checkpoint.listing(self.store, "work"))
        state = checkpoint.recorded(self.store, chosen)
        paths: list[bytes] = []
        if self.chance.random() < 0.2:
            paths = [os.fsencode(self.chance.choice(NAMES[:5]))]
        options = RestoreOptions(
            force=self.chance.random() < 0.8,
            delete_untracked=not paths and self.chance.random() < 0.2,
            paths=paths,
            leaves_out_failed=True,
            operation=Intent(Verb.RESTORE, chosen.id),
        )
        before = look(self.directory)
        try:
            result = restore(self.store, state, self.directory, options)
        except (Refused, NotFound) as error:
            self._expect_untouched(before, str(error))
            return
        after = look(self.directory)
        self._note(result.operation, before, after)
        self._expect_only(before, after, result.operation)
        for side in (before, after):
            if side.git is None:
                return
        is_whole = any(name == ".git" for name in self._top_names(state))
        if not is_whole:
            if before.git != after.git:
                raise Wrong("a restore changed a repository that its tree does not have")
            gone = {
                path
                for path in before.files.keys() - after.files.keys()
                if path.startswith("node_modules/")
            }
            if gone and "node_modules" not in self._top_names(state):
                raise Wrong(f"a restore deleted {sorted(gone)}, which its tree never looked at")

    def _top_names(self, state: RecordedState) -> set[str]:
        from casfs.trees import tree

        return {os.fsdecode(name) for name in tree.load(self.store, state.full)}

    def apply(self) -> None:
        """What changed between two checkpoints is brought to the directory."""
        old, new = self._recorded(), self._recorded()
        before = look(self.directory)
        try:
            done = apply(self.store, old, new, self.directory, label="theirs")
        except CasfsError as error:
            self._expect_untouched(before, str(error))
            return
        after = look(self.directory)
        self._note(done.operation, before, after)
        self._expect_only(before, after, done.operation)
        if before.git != after.git:
            raise Wrong("an apply changed the repository")

    def rewind_last(self) -> None:
        number = self._of_begun()
        if number is None:
            return
        steps = self.agents[number].steps()
        try:
            plan = rewind_files.plan_last(self.store, self.directory, steps)
        except NotFound:
            return
        self._rewind(number, plan)

    def rewind_to(self, *, is_exact: bool = False) -> None:
        number = self._of_begun()
        if number is None:
            return
        steps = self.agents[number].steps()
        points = [Point(step.index) for step in steps]
        points += [Point(call.step, call.number) for step in steps for call in step.calls]
        point = self.chance.choice(points)
        try:
            plan = rewind_files.plan(
                self.store, self.directory, steps, Choice(point, is_exact=is_exact)
            )
        except NotFound:  # the directory was not looked at there
            return
        self._rewind(number, plan)

    def rewind_exactly(self) -> None:
        self.rewind_to(is_exact=True)

    def _rewind(self, number: int, plan: rewind_files.FilePlan) -> None:
        steps = self.agents[number].steps()
        before = look(self.directory)
        self.said.append(f"  of {number} to {plan.point}")
        if not plan.undone.changed:
            return
        done = rewind_files.do(self.store, self.directory, plan)
        after = look(self.directory)
        self._note(done.operation, before, after)
        self._expect_named(before, after, plan.undone)
        if plan.undone.repositories == {} and before.git != after.git:
            raise Wrong("a rewind changed the repository and did not say so")
        again = rewind_files.plan(self.store, self.directory, steps, plan.choice)
        left = again.undone.changed
        # What stayed may be in the way of something, which comes once it is gone.
        if left and not plan.undone.conflicts:
            raise Wrong(f"a rewind left {[change.path for change in left][:5]} to be taken back")

    def _of_begun(self) -> int | None:
        known = [number for number, agent in enumerate(self.agents) if agent.has_session]
        return self.chance.choice(known) if known else None

    def undo(self) -> None:
        operation = operations.log_of(self.store, self.directory).to_undo(PERSON)
        if operation is not None:
            self._reverse(operation, is_again=False)

    def undo_any(self) -> None:
        known = operations.log_of(self.store, self.directory).operations
        known = tuple(operation for operation in known if not operation.is_taken_back)
        if known:
            log = operations.log_of(self.store, self.directory)
            operation, is_again = log.meant(self.chance.choice(known).number)
            self._reverse(operation, is_again=is_again)

    def redo(self) -> None:
        operation = operations.log_of(self.store, self.directory).to_redo(PERSON)
        if operation is not None:
            self._reverse(operation, is_again=True)

    def _reverse(self, operation: Operation, *, is_again: bool) -> None:
        self.said.append(f"  of {operation.number}, a {operation.verb.value}")
        present = look(self.directory)
        plan = take_back.plan(self.store, self.directory, operation, is_again=is_again)
        done = take_back.do(self.store, plan, PERSON)
        after = look(self.directory)
        if done is None:
            if present != after:
                raise Wrong("an undo that does nothing has changed something")
            return
        self._note(done.operation, present, after)
        self._expect_named(present, after, plan.undone)
        if (sides := self._overwritten(plan)) is not None:
            self._expect_merged(*sides, present, after, plan.undone)

    def _overwritten(self, plan: Reversal) -> tuple[Seen, Seen] | None:
        """Returns the directory before and after the operation that is overwritten; None where it
        was killed."""
        if plan.written.number not in self.done.seen:
            return None
        before, after = self.done.seen[plan.written.number]
        is_finished = plan.is_again and plan.written == plan.operation
        return (after, before) if is_finished else (before, after)

    def killed(self) -> None:
        """A command in another process that ends in the middle; its undo takes back all of it."""
        command = self.chance.choice([self._restoring, self._applying, self._rewinding])()
        if command is None:
            return
        before = look(self.directory)
        newest = operations.log_of(self.store, self.directory).operations[:1]
        if not self._is_killed(command):
            return
        begun = operations.log_of(self.store, self.directory).operations[:1]
        if begun == newest:
            self._expect_untouched(before, "a kill before the first write")
            return
        self.said.append(f"  operation {begun[0].number}, {begun[0].verb.value}")
        plan = take_back.plan(self.store, self.directory, begun[0], is_again=False)
        if plan.undone.conflicts:
            raise Wrong(f"what was interrupted is not taken back: {plan.undone.conflicts}")
        take_back.do(self.store, plan, PERSON)
        self._expect_untouched(before, f"a killed {begun[0].verb.value} was taken back")

    def killed_undo(self) -> None:
        """An undo that ends in the middle is done by the next one."""
        operation = operations.log_of(self.store, self.directory).to_undo(PERSON)
        if operation is None:
            return
        number = operation.number
        present = look(self.directory)

        def undo(store: Store) -> None:
            undone = operations.log_of(store, self.directory).numbered(number)
            plan = take_back.plan(store, self.directory, undone, is_again=False)
            take_back.do(store, plan, PERSON)

        first = take_back.plan(self.store, self.directory, operation, is_again=False)
        if (sides := self._overwritten(first)) is None or not self._is_killed(undo):
            return
        half_done = look(self.directory)
        again = operations.log_of(self.store, self.directory).numbered(number)
        plan = take_back.plan(self.store, self.directory, again, is_again=False)
        take_back.do(self.store, plan, PERSON)
        after = look(self.directory)
        self.done.seen[self._newest().number] = half_done, after
        self._expect_merged(*sides, present, after, first.undone)

    def _newest(self) -> Operation:
        return operations.log_of(self.store, self.directory).operations[0]

    def _restoring(self) -> Callable[[Store], object]:
        state = self._recorded()
        options = RestoreOptions(force=True, operation=Intent(Verb.RESTORE, "killed"))
        return lambda store: restore(store, state, self.directory, options)

    def _applying(self) -> Callable[[Store], object]:
        old, new = self._recorded(), self._recorded()
        return lambda store: apply(store, old, new, self.directory, label="killed")

    def _rewinding(self) -> Callable[[Store], object] | None:
        number = self._of_begun()
        if number is None:
            return None
        steps = self.agents[number].steps()
        point = Point(self.chance.choice(steps).index)
        choice = Choice(point, is_exact=self.chance.random() < 0.3)

        def rewind(store: Store) -> None:
            plan = rewind_files.plan(store, self.directory, steps, choice)
            if plan.undone.changed:
                rewind_files.do(store, self.directory, plan)

        return rewind

    def _recorded(self) -> RecordedState:
        chosen = self.chance.choice(checkpoint.listing(self.store, "work"))
        return checkpoint.recorded(self.store, chosen)

    def _is_killed(self, command: Callable[[Store], object]) -> bool:
        """Runs a command in another process that may end at one of its steps."""
        step, count = self.chance.choice(KILLED_AT), self.chance.randrange(5)
        self.said.append(f"  at {step} {count}")
        pid = os.fork()
        if pid == 0:
            self._end_at(step, count, command)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9

    def _end_at(self, step: str, count: int, command: Callable[[Store], object]) -> None:
        # Of `rename` the temporary entry is there.
        owner = os if step == "rename" else IncrementalRestore
        original, left = getattr(owner, step), [count]

        def wrapped(*arguments: Any, **options: Any) -> Any:
            if step != "rename" or "src_dir_fd" in options:  # else it is of the store
                if left[0] == 0:
                    os._exit(9)
                left[0] -= 1
            return original(*arguments, **options)

        setattr(owner, step, wrapped)
        try:
            with Store.open(self.store.root) as own:
                command(own)
        except BaseException:
            os._exit(1)
        os._exit(0)

    def moved(self) -> None:
        """The project is moved, what was done last is taken back there, and it comes back."""
        original = self.directory
        self.directory = original.with_name("moved")
        original.rename(self.directory)
        try:
            self.undo()
        finally:
            self.directory.rename(original)
            self.directory = original

    def _note(self, operation: Operation | None, before: Seen, after: Seen) -> None:
        if operation is not None:
            self.done.seen[operation.number] = before, after
        elif before != after:
            raise Wrong(f"{sorted(changed(before.files, after.files))} changed, and no log has it")

    def _expect_untouched(self, before: Seen, why: str) -> None:
        after = look(self.directory)
        if before != after:
            paths = sorted(changed(before.files, after.files))
            raise Wrong(f"{why}: yet {paths[:5]} differ{'; git, too' * (before.git != after.git)}")

    def _expect_only(self, before: Seen, after: Seen, operation: Operation | None) -> None:
        """No path differs but those that the log names."""
        if operation is None:
            return
        from casfs.trees import tree

        written = {
            os.fsdecode(path)
            for side in (operation.before.tree, operation.after.tree)
            for path, _ in tree.walk(self.store, side)
        }
        stray = paths_of(changed(before.files, after.files)) - written
        if stray:
            raise Wrong(f"{sorted(stray)[:5]} changed, and the log does not name them")

    def _expect_named(self, before: Seen, after: Seen, undone: Undone) -> None:
        named = {os.fsdecode(change.path) for change in undone.changed}
        # A directory that was filled or emptied is named by what came or went.
        above = {parent for path in named for parent in map(str, Path(path).parents)}
        stray = paths_of(changed(before.files, after.files)) - named - above
        if stray:
            raise Wrong(f"{sorted(stray)[:5]} changed, and the command does not name them")

    def _expect_merged(
        self, before: Seen, left: Seen, present: Seen, after: Seen, undone: Undone
    ) -> None:
        """`before`, `left`: around the operation; `present`, `after`: around its undo."""
        excused = {os.fsdecode(path) for path in (*undone.conflicts, *undone.kept)}
        for path in changed(before.files, left.files) | changed(present.files, after.files):
            was, became = before.files.get(path), left.files.get(path)
            there, result = present.files.get(path), after.files.get(path)
            if path.endswith("/") and not has_mode_in(path, present, after):
                continue
            wanted = {there}
            if was != became and there == became:
                wanted = {was}
            elif was != became and there != was:
                # Both have changed it: merged by lines, or as it is and named.
                is_named = any(f"{path}/".startswith(f"{top}/") for top in excused)
                if is_named or (there and there == EMPTY) or is_merge(was, there, result):
                    continue
            is_in_the_way = any(
                f"{path}/".startswith(f"{top}/") or f"{top}/".startswith(f"{path}/")
                for top in excused
            )
            # A directory that had only what is not of the operation, and is empty by now, stays.
            is_emptied = result == EMPTY and has_directory(path, before)
            is_deleted = was == EMPTY and result is None and not has_directory(path, present)
            if is_emptied or is_deleted or is_in_the_way or is_above(path, after):
                continue
            if result not in wanted:
                raise Wrong(f"{path}: {result!r}, and not one of {wanted!r}")
        is_as_left = present.git == left.git
        if is_as_left and not excused and after.git != before.git:
            raise Wrong(f"git sees {after.git}, and saw {before.git}")


def play(seed: int, length: int = LENGTH) -> Counter[str]:
    """Plays one sequence; returns how often each thing was done. Raises Wrong."""
    folder = Path(tempfile.mkdtemp(prefix="casfs-taken-back-"))
    sequence = Sequence(folder, seed)
    try:
        with sequence.played():
            sequence.run(length)
    except Exception as error:
        said = "\n".join(sequence.said)
        raise Wrong(f"seed {seed}, {folder}:\n{said}\n{error!r}") from error
    shutil.rmtree(folder)
    return sequence.counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--length", type=int, default=LENGTH)
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    faults = 0
    for seed in range(options.seed, options.seed + options.sequences):
        try:
            counts += play(seed, options.length)
        except Wrong as error:
            faults += 1
            print(error, flush=True)
    print(f"{options.sequences} sequences, {faults} wrong; {dict(counts)}")
    sys.exit(faults > 0)


if __name__ == "__main__":
    main()
