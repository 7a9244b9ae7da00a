"""Brings the directory of a session back to a point: without the agent's changes since, or exactly.

A plan looks at the directory and stores nothing, but what a daemon that follows it records of it.
When it is carried out, each path is stored before it is written, as before a restore, so
`casfs undo` takes a rewind back, and no file is deleted that no record has.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from casfs.digest import hash_bytes
from casfs.directories.operations import PERSON, Intent, Verb
from casfs.errors import CasfsError, NotFound, Refused
from casfs.rewind import write_undone
from casfs.rewind.repositories import UndoneRepository
from casfs.rewind.undo_calls import (
    ELSEWHERE,
    EVERYTHING,
    IGNORED,
    PURGED,
    Undone,
    UndoOptions,
    conflicts_of,
    undo_calls,
)
from casfs.sessions import session_steps
from casfs.sessions.session_steps import AMBIGUOUS, CallRecord, Point, StepRecord
from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.system.paths import printable
from casfs.trees import tree
from casfs.trees.git import repository_state
from casfs.trees.git.repository_paths import RepositoryPaths
from casfs.trees.recorded_state import RecordedState
from casfs.trees.restore.options import RestoreOptions, RestoreResult
from casfs.trees.restore.write import Progress
from casfs.trees.scratch_store import ScratchStore
from casfs.trees.snapshot import exclusions, policy, working_tree
from casfs.trees.snapshot.ignore import IgnoredPaths
from casfs.trees.snapshot.report import SnapshotOptions, SnapshotReport
from casfs.trees.snapshot.working_tree import Earlier

MARK_CHARS = 32
DAEMON_S = 30.0  # for its look


@dataclass(frozen=True)
class Choice:
    """What of a session is taken back. `is_exact`: the directory becomes what it was at the point,
    changes of a person included; `is_only`: the calls of the point alone, those after it stay."""

    point: Point
    is_exact: bool = False
    is_only: bool = False
    options: UndoOptions = EVERYTHING


@dataclass(frozen=True)
class FilePlan:
    """What a rewind would do. `store`: in which its trees are, a view of the store until it is
    done; `current`: the directory as it is; `late`: calls that had begun when the directory before
    them was looked at, so that their first changes may stay; `lost`: calls whose changes are not
    known; `running`: calls that are not over; what these have changed stays."""

    store: Store
    choice: Choice
    current: RecordedState
    undone: Undone
    late: tuple[CallRecord, ...] = ()
    lost: tuple[CallRecord, ...] = ()
    running: tuple[CallRecord, ...] = ()

    @property
    def point(self) -> Point:
        return self.choice.point

    @property
    def is_whole(self) -> bool:
        """Whether nothing stays of what was to be taken back."""
        undone = self.undone
        return not (undone.conflicts or undone.marked or self.lost or self.running)

    @property
    def mark(self) -> str:
        """Equal for equal directories. Not the root itself: what names private files is in no
        page."""
        return hash_bytes(f"rewind\0{self.current.full}".encode())[:MARK_CHARS]


def plan(store: Store, directory: Path, steps: list[StepRecord], choice: Choice) -> FilePlan:
    """Returns what a choice means for the files of a directory. Raises NotFound, Refused,
    Failed."""
    scratch = ScratchStore(store)
    current = _current(scratch, directory, steps)
    calls = session_steps.calls_from(steps, choice.point, is_only=choice.is_only)
    begun = session_steps.find_step(steps, choice.point.step).before
    states = [begun, *(side for call in calls for side in (call.before, call.after))]
    _check_request(scratch, directory, current, states=states, paths=choice.options.paths)
    if choice.point.call is not None:  # from before a group, where it is of one
        choice = replace(choice, point=Point(calls[-1].step, calls[-1].number))
    if choice.is_exact:
        state = session_steps.state_at(steps, choice.point)
        undone = _exact(scratch, current, state, choice.options, directory)
    else:
        undone = undo_calls(scratch, current.full, calls, choice.options, directory=directory)
    return _plan(scratch, choice, current, undone, calls)


def plan_last(
    store: Store, directory: Path, steps: list[StepRecord], options: UndoOptions = EVERYTHING
) -> FilePlan:
    """Returns the plan for the newest call that has still something to take back. Raises NotFound
    where there is none."""
    scratch = ScratchStore(store)
    current = _current(scratch, directory, steps)
    calls = session_steps.grouped([call for step in steps for call in step.calls][::-1])
    states = [side for call in calls for side in (call.before, call.after)]
    _check_request(scratch, directory, current, states=states, paths=options.paths)
    kept: dict[bytes, str] = {}  # of the calls after it
    ambiguous = ""
    for number, call in enumerate(calls, 1):
        undone = undo_calls(scratch, current.full, [call], options, directory=directory)
        if undone.changed or undone.conflicts:
            undone.kept = kept | undone.kept
            choice = Choice(Point(call.step, min(call.numbers)), options=options)
            return _plan(scratch, choice, current, undone, calls[:number])
        kept |= undone.kept
        if not ambiguous and any(reason.startswith(AMBIGUOUS) for reason in undone.kept.values()):
            ambiguous = f"; --ambiguous takes back what may be of {call.step}.{call.number}"
    raise NotFound(
        f"no call of this session has changed a file that is still as it left it{ambiguous}"
    )


def _check_request(
    store: Store,
    directory: Path,
    current: RecordedState,
    *,
    states: Sequence[RecordedState | None],
    paths: Sequence[bytes],
) -> None:
    """Raises NotFound for a path that is in none of the states, Refused for one that is not taken
    back by itself, and for a bare repository."""
    if RepositoryPaths(store, [current.full]).is_top:
        raise Refused(f"{directory} is a git repository itself: what is in it is not taken back")
    roots = list({current.full, *(state.full for state in states if state is not None)})
    git = RepositoryPaths(store, roots)
    for path in paths:
        top = git.of(path)
        if top is not None and git.is_inside(path):
            whole = printable(top)
            raise Refused(f"{printable(path)}: a repository goes back as a whole; give {whole}")
        if all(tree.find(store, root, path) is None for root in roots):
            raise NotFound(f"{printable(path)} is not there, and was not before or after a call")


def _plan(
    store: Store,
    choice: Choice,
    current: RecordedState,
    undone: Undone,
    calls: Sequence[CallRecord],
) -> FilePlan:
    return FilePlan(
        store,
        choice,
        current,
        undone,
        late=tuple(call for call in calls if call.is_late),
        lost=tuple(call for call in calls if call.fault and not choice.is_exact),
        running=tuple(call for call in calls if call.is_running),
    )


def do(
    store: Store,
    directory: Path,
    planned: FilePlan,
    actor: str = PERSON,
    progress: Progress | None = None,
) -> RestoreResult:
    """Carries out a plan on behalf of `actor`. Raises Conflict where a path of it has changed since
    the plan was made, Refused, Failed."""
    extent = "only" if planned.choice.is_only else "to before"
    intent = Intent(Verb.REWIND, f"{extent} {planned.point}", actor)
    options = RestoreOptions(
        force=True, leaves_out_failed=True, operation=intent, progress=progress
    )
    return write_undone.write(store, planned.store, directory, planned.undone, options)


def _current(store: Store, directory: Path, steps: list[StepRecord]) -> RecordedState:
    """Returns a session's directory as it is now, by the rules of its trees. Raises NotFound,
    Refused, Failed."""
    # A daemon that follows it reads what has changed since its last look alone.
    with suppress(CasfsError):
        path = os.fspath(directory)
        answer = daemon_socket.request(
            store.root, "session_state", timeout=DAEMON_S, directory=path
        )
        if answer:
            return RecordedState.of_fields(answer["tree"], answer["fields"])
    return _look(store, directory, session_steps.newest_state(steps))


def _look(store: Store, directory: Path, base: RecordedState | None) -> RecordedState:
    report = SnapshotReport()
    rules = exclusions.ignore_rules(store, directory, report, keeps_derived=True)
    options = SnapshotOptions(scanner=policy.load(store).scanner())
    with store.batch() as batch:
        return working_tree.snapshot(
            store,
            batch,
            directory,
            rules,
            report=report,
            options=options,
            earlier=Earlier(base),
        )


def _exact(
    store: Store,
    current: RecordedState,
    state: RecordedState,
    options: UndoOptions,
    directory: Path,
) -> Undone:
    """Returns how a directory that holds `current` comes to hold `state`, but for what one of both
    looks has left out."""
    roots = [current.full, state.full]
    git = RepositoryPaths(store, roots)
    undone = Undone(git, like=state)
    ignored = IgnoredPaths(store, roots, directory)
    repositories: dict[bytes, UndoneRepository] = {}
    for change in tree.changes(store, current.full, state.full):
        top = git.of(change.path)
        if not options.includes(change.path if top is None else top):
            continue
        ignored_top = ignored.topmost(change.path)
        if ignored_top is not None:
            undone.kept[ignored_top] = IGNORED
        elif tree.is_purged(store, state.full, change.path):
            undone.conflicts[change.path] = PURGED
        elif top is None or top == change.path:
            undone.changed.append(change)
        elif repository_state.is_of_work_tree_elsewhere(store, top, current.full, [state.full]):
            undone.kept[top] = ELSEWHERE
        elif top not in repositories:
            repositories[top] = UndoneRepository(store, current.full, top, git)
    for top, repository in repositories.items():
        repository.bring_to(state.full)
        undone.conflicts |= conflicts_of(repository)
        if repository.has_gone_on:
            continue
        repository.bring_back_lost(state.full)
        undone.changed += [
            tree.Change(path, tree.find(store, current.full, path), entry)
            for path, entry in repository.edits().items()
        ]
        if words := repository.words:
            undone.repositories[top] = words
    undone.changed.sort(key=lambda change: change.path)
    return undone
