"""Which session a rewind is of."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from casfs.directories.identity import Identity
from casfs.errors import Conflict, NotFound
from casfs.store.store import Store
from casfs.system.paths import real_path
from casfs.threads import lookup, sessions
from casfs.threads.threads import Thread

MAX_SEARCHED = 1000


def named(store: Store, text: str) -> Thread:
    """Returns the session with a thread's id, a part of it or its name, or with the agent's own id.
    Raises NotFound, Conflict for a thread that is none."""
    for _, (thread, about) in zip(range(MAX_SEARCHED), sessions.readable(store), strict=False):
        if about["id"] == text:
            return thread
    thread = lookup.find(store, text)
    if not sessions.is_session(thread):
        raise Conflict(f"thread {thread.id} was run by casfs; restore a step of it instead")
    if "origin" in thread.fields:
        raise Conflict(f"session {thread.id} came from elsewhere: its directory is not one here")
    return thread


def latest_in(store: Store, directory: Path) -> Thread:
    """Returns the session that was active last, of those whose directory holds this one, wherever
    it was moved to. Raises NotFound."""
    latest = None
    above = [identity for _, identity in Identity.above(directory)]
    for _, (thread, about) in zip(range(MAX_SEARCHED), sessions.readable(store), strict=False):
        identity = _identity(thread)
        is_moved_here = identity is not None and any(map(identity.is_same, above))
        if is_moved_here or directory.is_relative_to(about["directory"]):
            is_later = latest is None or thread.fields["updatedAt"] > latest.fields["updatedAt"]
            # One that was cut, and that no agent has gone on with, has done nothing by itself.
            is_unused = "fork" in thread.fields and not thread.fields["session"]["pid"]
            if is_later and not is_unused:
                latest = thread
    if latest is None:
        raise NotFound(
            f"no session of an attached agent in {directory}: one begins when an agent that is"
            " attached there (`casfs attach --list`) gets its first prompt"
        )
    return latest


def directory_of(store: Store, thread: Thread, working: Path) -> Path:
    """Returns where the directory of a session is: where it was recorded, or, where it was moved,
    the one that holds `working`, or is it. Raises NotFound, Corrupt."""
    recorded = Path(sessions.about(store, thread)["directory"])
    identity = _identity(thread)
    if identity is None:
        return recorded
    with suppress(OSError):
        if Identity.at(recorded).is_same(identity):
            return real_path(recorded)  # a link may lead to where it was moved
    candidates = Identity.above(working)
    return next((path for path, other in candidates if other.is_same(identity)), recorded)


def _identity(thread: Thread) -> Identity | None:
    text = thread.fields["session"].get("identity")
    return None if text is None else Identity.parse(text)
