"""What a person chooses from: the prompts and calls of a session, newest first."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from casfs.digest import TreeHash
from casfs.sessions import session_steps
from casfs.sessions.session_steps import AMBIGUOUS, NOT_KEPT, UNSEEN, CallRecord, Point, StepRecord
from casfs.store.store import Store
from casfs.system import foreign_json
from casfs.system.paths import printable
from casfs.threads.summary import first_line
from casfs.trees import tree
from casfs.trees.git import repository_state
from casfs.trees.git.repository_paths import RepositoryPaths

MAX_CHANGED = 20  # paths of a row
PROMPT = "prompt"
TELLING = (
    "command",
    "file_path",
    "filePath",
    "notebook_path",
    "pattern",
    "path",
    "url",
    "description",
)


@dataclass(frozen=True)
class PointRow:
    """`tool`: `prompt` for one; `text`: the prompt, or what the call was given, in a line;
    `changed`: printable paths, at most MAX_CHANGED and then how many more; `repositories`: what
    became of git repositories, in words; `marks`: what is to be known before it is taken back."""

    point: Point
    tool: str
    text: str
    reported_ms: int
    changed: list[str] = field(default_factory=list)
    repositories: list[str] = field(default_factory=list)
    marks: list[str] = field(default_factory=list)

    @property
    def outcome(self) -> str:
        """All of these in a line."""
        marks = [f"[{', '.join(self.marks)}]"] if self.marks else []
        return " ".join([*marks, *self.changed, *self.repositories])


def rows(store: Store, directory: str, steps: list[StepRecord]) -> Iterator[PointRow]:
    """Yields the points of a session in `directory`, newest first: the calls of a prompt, then it.
    Raises NotFound, Corrupt."""
    for step in reversed(steps):
        groups = [group.members for group in session_steps.grouped(step.calls[::-1])]
        for call in reversed(step.calls):
            at_once = next((group for group in groups if call.number in group), ())
            yield PointRow(
                Point(step.index, call.number),
                call.tool,
                subject(call, directory),
                call.reported_ms,
                *_changed(store, call),
                marks=list(marks(call, at_once)),
            )
        prompt = first_line(step.prompt)
        yield PointRow(Point(step.index), PROMPT, prompt, step.reported_ms)


def marks(call: CallRecord, at_once: tuple[int, ...]) -> Iterator[str]:
    """Yields what is to be known of a call before it is taken back. `at_once`: the numbers of those
    that ran at the same time."""
    if call.is_interrupted:
        yield "interrupted"
    if call.is_running:
        yield "not over"
    if names := [f"{call.step}.{number}" for number in at_once if number != call.number]:
        yield f"with {', '.join(names)}"
    ambiguous = [path for path, reason in call.foreign.items() if reason.startswith(AMBIGUOUS)]
    if call.is_unseen:
        yield AMBIGUOUS
    elif ambiguous:
        yield f"{len(ambiguous)} {AMBIGUOUS}"
    if call.is_late:
        yield "late"
    if call.is_torn:
        yield "torn"
    if call.fault == NOT_KEPT:
        yield "not kept"
    elif call.fault is not None and call.fault != UNSEEN:
        yield "not recorded"


def subject(call: CallRecord, directory: str) -> str:
    """Returns the argument of a call that tells most, in a line."""
    known = arguments(call)
    for name in TELLING:
        if isinstance(known.get(name), str):
            return first_line(known[name].removeprefix(f"{directory}/"))
    return first_line(call.arguments)


def arguments(call: CallRecord) -> Mapping[str, Any]:
    """Returns the named arguments of a call; none where it has others, such as a patch."""
    try:
        known = foreign_json.parse(call.arguments)
    except ValueError:  # a session from elsewhere may hold anything
        return {}
    return known if isinstance(known, dict) else {}


def _changed(store: Store, call: CallRecord) -> tuple[list[str], list[str]]:
    """Returns the changed paths, and what became of repositories."""
    if call.before is None or call.after is None:
        return [], []
    return changed(store, call.before.full, call.after.full, call.foreign)


def changed(
    store: Store, before: TreeHash, after: TreeHash, foreign: Collection[str] = ()
) -> tuple[list[str], list[str]]:
    """Returns what differs between two whole directories: printable paths but for the `foreign`
    ones, and what became of repositories, in words."""
    sides = before, after
    paths = []
    repositories = set()
    git = RepositoryPaths(store, sides)
    for change in tree.changes(store, *sides):
        top = git.of(change.path)
        if top is not None and top != change.path:
            repositories.add(top)
        elif (path := printable(change.path)) not in foreign:
            paths.append(path)
    words = [
        f"{printable(top)}: {line}"
        for top in sorted(repositories)
        for line in repository_state.words(
            *(repository_state.read(store, side, top) for side in sides)
        )
    ]
    words += [
        f"{printable(top)}: {id} {message}"
        for top in sorted(repositories)
        for id, message in repository_state.logged(store, *sides, top)
    ]
    if len(paths) > MAX_CHANGED:
        paths = [*paths[:MAX_CHANGED], f"and {len(paths) - MAX_CHANGED} more"]
    return paths, words
