"""The picker of `casfs rewind`: the prompts and calls of a session, and what a rewind would do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from urllib.parse import quote, urlencode

from starlette.responses import RedirectResponse, Response

from casfs.errors import Failed
from casfs.rewind import rewind_files
from casfs.rewind.rewind_files import Choice, FilePlan
from casfs.rewind.undo_calls import EVERYTHING, UndoOptions
from casfs.sessions import find_session, points, session_steps
from casfs.sessions.session_steps import Point
from casfs.system.paths import printable
from casfs.threads import sessions
from casfs.trees import tree
from casfs.trees.tree import Change
from casfs.web import compare
from casfs.web.actions import ask
from casfs.web.compare import Diff
from casfs.web.site import Call

MAX_ROWS = 500
MAX_CHANGES = 1000
MAX_LINES = 1000  # of their diffs


@dataclass(frozen=True)
class PlannedChange:
    """`diff`: None of what is private, or no file."""

    letter: str
    name: str
    diff: Diff | None = None


@dataclass(frozen=True)
class Plan:
    """What a rewind would do. `stays`: what is not brought back, with the reason; `total`: of the
    changes, of which the first are listed; `mark`: of the directory as it was looked at; `path`:
    of the file that goes back alone, if one does."""

    point: str
    is_exact: bool
    changes: list[PlannedChange]
    total: int
    stays: Mapping[str, str]
    mark: str
    path: bytes


def show(call: Call) -> Response:
    """Stores nothing: the directory is only looked at."""
    # Private files come back as well; without them a plan would delete these.
    store = call.store.whole
    thread = find_session.named(store, call.path["id"])
    directory = sessions.about(store, thread)["directory"]
    steps = session_steps.load(store, thread)
    plan = None
    if point := call.query.get("to"):
        path = call.octets("path")
        options = UndoOptions((path,)) if path else EVERYTHING
        choice = Choice(Point.parse(point), is_exact="exact" in call.query, options=options)
        planned = rewind_files.plan(store, Path(directory), steps, choice)
        plan = _shown(planned)
    rows = list(islice(points.rows(store, directory, steps), MAX_ROWS))
    return call.page(
        "rewind.html",
        id=thread.id,
        directory=directory,
        rows=rows,
        plan=plan,
        is_done="done" in call.query,
    )


def _shown(plan: FilePlan) -> Plan:
    undone = plan.undone
    stays = {printable(path): reason for path, reason in undone.conflicts.items()}
    stays |= {
        printable(path): f"not known to be the agent's: {reason}"
        for path, reason in undone.kept.items()
    }
    stays |= {
        f"{call.step}.{call.number} {call.tool}": call.fault for call in plan.lost if call.fault
    }
    files = undone.changed_files
    commits = [
        PlannedChange("G", f"{printable(top)}: {line}")
        for top, lines in undone.repositories.items()
        for line in lines
    ]
    changes = [*_with_diffs(plan, files[:MAX_CHANGES]), *commits][:MAX_CHANGES]
    (path,) = plan.choice.options.paths or (b"",)
    return Plan(
        str(plan.point),
        plan.choice.is_exact,
        changes,
        total=len(files) + len(commits),
        stays=stays,
        mark=plan.mark,
        path=path,
    )


def _with_diffs(plan: FilePlan, files: Sequence[Change]) -> Iterator[PlannedChange]:
    """Yields what changes, with its lines while there is room for them."""
    left = MAX_LINES
    for change in files:
        diff = None
        if left > 0 and _is_work(plan, change):
            diff = compare.diff(plan.store, change.old, change.new, left)
            left -= sum(map(len, diff.hunks))
        yield PlannedChange(change.letter, printable(change.path), diff)


def _is_work(plan: FilePlan, change: Change) -> bool:
    """Whether both sides of a change are work, with this content: that of a private file is in no
    page, and a file may have become private."""
    sides = (plan.current, change.old), (plan.undone.like, change.new)
    return all(
        entry is None
        or (state is not None and tree.find(plan.store, state.tree, change.path) == entry)
        for state, entry in sides
    )


def send(call: Call) -> Response:
    """Has the daemon do it; shows the session that goes on from there, if there is one."""
    id = call.path["id"]
    fields = {name: call.form.get(name, "") for name in ("point", "what", "seen")}
    fields["path"] = call.form.get("file", "")
    answer = ask(call, "session_rewind", id=id, exact="exact" in call.form, **fields)
    if answer["failed"]:
        path, reason = next(iter(answer["failed"].items()))
        raise Failed(f"{path}: {reason}, and {len(answer['failed']) - 1} more; the rest is back")
    if answer["thread"] is not None:
        return RedirectResponse(f"/threads/{quote(answer['thread'])}", 303)
    return RedirectResponse(f"/threads/{quote(id)}/rewind?{urlencode({'done': 1})}", 303)
