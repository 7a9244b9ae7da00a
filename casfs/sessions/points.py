"""What a person chooses from: the prompts and calls of a session, newest first."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from casfs.sessions.session_steps import CallRecord, Point, StepRecord
from casfs.store.store import Store
from casfs.system.paths import printable
from casfs.threads.summary import first_line
from casfs.trees import tree

MAX_CHANGED = 20  # paths of a row
PROMPT = "prompt"
TELLING = (
    "command",
    "file_path",
    "filePath",
    "notebook_path",
    "path",
    "pattern",
    "url",
    "description",
)


@dataclass(frozen=True)
class PointRow:
    """`tool`: `prompt` for one; `text`: the prompt, or what the call was given, in a line;
    `changed`: printable paths, at most MAX_CHANGED and then how many more."""

    point: Point
    tool: str
    text: str
    reported_ms: int
    changed: list[str]


def rows(store: Store, directory: str, steps: list[StepRecord]) -> Iterator[PointRow]:
    """Yields the points of a session in `directory`, newest first: the calls of a prompt, then it.
    Raises NotFound, Corrupt."""
    for step in reversed(steps):
        for call in reversed(step.calls):
            point = Point(step.index, call.number)
            changed = _changed(store, call)
            yield PointRow(point, call.tool, _given(call, directory), call.reported_ms, changed)
        prompt = first_line(step.prompt)
        yield PointRow(Point(step.index), PROMPT, prompt, step.reported_ms, [])


def _given(call: CallRecord, directory: str) -> str:
    """Returns the argument of a call that tells most, in a line."""
    arguments = json.loads(call.arguments)
    if isinstance(arguments, dict):
        for name in TELLING:
            if isinstance(arguments.get(name), str):
                return first_line(arguments[name].removeprefix(f"{directory}/"))
    return first_line(call.arguments)


def _changed(store: Store, call: CallRecord) -> list[str]:
    if call.before is None or call.after is None:
        return []
    changes = tree.changes(store, call.before.full, call.after.full)
    paths = [printable(change.path) for change in changes]
    paths = [path for path in paths if path not in call.foreign and not _is_in_git(path)]
    if len(paths) > MAX_CHANGED:
        return [*paths[:MAX_CHANGED], f"and {len(paths) - MAX_CHANGED} more"]
    return paths


def _is_in_git(path: str) -> bool:
    return ".git" in path.split("/")
