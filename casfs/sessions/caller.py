"""Who calls a command: a person, an agent that is attached, or a step of a thread.

An agent's `undo` takes back what that agent did, a person's what the person did. An attached agent
is known by its process, which is above that of the command; a step's program by its environment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import islice

from casfs.attach import spool
from casfs.directories.operations import PERSON
from casfs.store.store import Store
from casfs.system import processes
from casfs.threads import sessions

MAX_ANCESTORS = 64
MAX_SESSIONS = 200  # the newest are searched


def actor(store: Store, env: Mapping[str, str]) -> str:
    """Returns the name of the caller in a log of operations."""
    if thread := env.get("CASFS_THREAD"):
        return f"thread {thread}"
    above = _ancestors()
    boot = spool.current_boot()
    for thread_of_session in islice(sessions.newest_first(store), MAX_SESSIONS):
        session = thread_of_session.fields.get("session") or {}
        is_here = session.get("boot") == boot and session.get("pidStart") is not None
        if is_here and above.get(session.get("pid", 0)) == session["pidStart"]:
            return f"{thread_of_session.fields['workflow']} {thread_of_session.id}"
    return PERSON


def _ancestors() -> dict[int, int | None]:
    """Returns the processes above this one, and when each started."""
    above: dict[int, int | None] = {}
    pid: int | None = os.getppid()
    while pid is not None and pid > 1 and len(above) < MAX_ANCESTORS:
        above[pid] = processes.start_time(pid)
        pid = processes.parent(pid)
    return above
