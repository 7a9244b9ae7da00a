"""A rewind that a person has chosen in the web interface, done by the daemon."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from casfs.errors import CasfsError, Conflict, Failed, Invalid
from casfs.rewind import conversations, rewind_files
from casfs.rewind.conversations import CONVERSATION, FILES, WHAT
from casfs.rewind.rewind_files import Choice
from casfs.sessions import find_session, session_steps
from casfs.sessions.session_steps import Point
from casfs.store.store import Store
from casfs.system.paths import printable
from casfs.threads import sessions
from engine.sessions import session_fork


def rewind(store: Store, id: str, point: str, what: str, exact: bool, seen: str) -> dict[str, Any]:
    """Rewinds the session `id` to before a point. `seen`: the mark of the directory for which a
    person was shown the plan. Returns `failed`, what could not be written with the reason, and
    `thread`, that of the cut conversation. Raises Conflict where the directory has changed since,
    NotFound, Invalid, Refused, Failed."""
    if what not in WHAT:
        raise Invalid(f"rewind what? One of {', '.join(WHAT)}, not {what!r}")
    thread = find_session.named(store, id)
    steps = session_steps.load(store, thread)
    target = Point.parse(point)
    directory = Path(sessions.about(store, thread)["directory"])
    plan = None
    if what != CONVERSATION:
        choice = Choice(target, is_exact=exact)
        plan = rewind_files.plan(store, directory, steps, choice)
        if plan.mark != seen:
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
