"""A rewind that a person has chosen in the web interface, done by the daemon."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

from casfs.errors import CasfsError, Conflict, Failed, Invalid
from casfs.rewind import conversations, rewind_files
from casfs.rewind.conversations import CONVERSATION, FILES, WHAT
from casfs.rewind.rewind_files import Choice
from casfs.rewind.undo_calls import EVERYTHING, UndoOptions
from casfs.sessions import find_session, session_steps
from casfs.sessions.session_steps import Point
from casfs.store.store import Store
from casfs.system.paths import printable
from casfs.threads import sessions
from engine.sessions import session_fork


@dataclass(frozen=True)
class RewindRequest:
    """The session `id` goes back to before a point. `what`: one of WHAT; `path`: of a file or
    directory that goes back alone, quoted as in a URL, empty for all; `seen`: the mark of the
    directory for which a person was shown the plan."""

    id: str
    point: str
    what: str
    exact: bool
    seen: str
    path: str = ""

    @property
    def options(self) -> UndoOptions:
        return UndoOptions((unquote_to_bytes(self.path),)) if self.path else EVERYTHING


def rewind(store: Store, request: RewindRequest) -> dict[str, Any]:
    """Does what a person has chosen. Returns `failed`, what could not be written with the reason,
    and `thread`, that of the cut conversation. Raises Conflict where the directory has changed
    since, NotFound, Invalid, Refused, Failed."""
    what = request.what
    if what not in WHAT:
        raise Invalid(f"rewind what? One of {', '.join(WHAT)}, not {what!r}")
    if request.path and what != FILES:
        raise Invalid("a conversation goes back as a whole, not a file of it")
    thread = find_session.named(store, request.id)
    steps = session_steps.load(store, thread)
    target = Point.parse(request.point)
    directory = Path(sessions.about(store, thread)["directory"])
    plan = None
    if what != CONVERSATION:
        choice = Choice(target, is_exact=request.exact, options=request.options)
        plan = rewind_files.plan(store, directory, steps, choice)
        if plan.mark != request.seen:
            raise Conflict(f"{os.fspath(directory)} has changed since it was shown; look again")
    answer: dict[str, Any] = {"failed": {}, "thread": None}
    # Before the files are written: where it cannot be cut, nothing is done.
    if what != FILES:
        conversation = conversations.cut(store, thread, steps, target)
        copy = conversation.transcript
        fork = session_fork.fork(store, thread, target, conversation.id, copy)
        answer["thread"] = fork.id
    if plan is not None and plan.undone.changed:
        try:
            done = rewind_files.do(store, directory, plan)
        except CasfsError as error:
            if answer["thread"] is None:
                raise
            raise Failed(
                f"{error}; the conversation is cut already, as thread {answer['thread']}"
            ) from None
        answer["failed"] = {printable(path): reason for path, reason in done.failed.items()}
    return answer
