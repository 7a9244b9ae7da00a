"""Threads that are sessions of outside agents (`engine.sessions` records them)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from casfs.errors import CasfsError, Conflict
from casfs.store.store import Store
from casfs.threads import threads
from casfs.threads.threads import SESSION, Thread


def is_session(thread: Thread) -> bool:
    return thread.fields.get("cause") == SESSION


def refuse(thread: Thread) -> None:
    """Raises Conflict for a session, which casfs records and does not run."""
    if is_session(thread):
        agent = thread.fields["workflow"]
        raise Conflict(f"thread {thread.id} is a session of {agent}, which runs outside casfs")


def newest_first(store: Store) -> Iterator[Thread]:
    """Yields the sessions, newest first."""
    return threads.with_field(store, "cause", [SESSION])


def readable(store: Store) -> Iterator[tuple[Thread, Mapping[str, Any]]]:
    """Yields the sessions of this store that can be read with what `about` says of each, newest
    first. The directories of one from elsewhere are of another machine."""
    for thread in newest_first(store):
        is_whole = thread.fault is None and thread.fields.get("session")
        if not is_whole or "origin" in thread.fields:
            continue
        try:
            described = about(store, thread)
        except CasfsError:  # one damaged node must not hide the others
            continue
        yield thread, described


def last_in(store: Store, directory: str) -> Thread | None:
    """Returns the session that began last in a directory and has done a step; None where none
    has."""
    for thread, described in readable(store):
        if described["directory"] == directory and threads.last_step(store, thread) is not None:
            return thread
    return None


def about(store: Store, thread: Thread) -> Mapping[str, Any]:
    """Returns `agent`, `id`, `directory`, `transcript` of a session. Raises NotFound, Corrupt."""
    begun: Mapping[str, Any] = threads.start(store, thread).payload["session"]
    # One that goes on from a point of another shares its start.
    own: Mapping[str, Any] = thread.fields.get("session") or {}
    return {**begun, **{name: own[name] for name in ("id", "transcript") if name in own}}
