"""Threads from elsewhere: none runs before a person has seen which agents it has.

`casfs.exchange.arrivals` says which: those that a pull or an import has brought or moved. The
functions of this package that set a thread running, or fork it, call `check`.
"""

from __future__ import annotations

from collections.abc import Iterable

from casfs.errors import Refused
from casfs.exchange import arrivals
from casfs.store.store import Store
from casfs.threads import threads
from casfs.threads.threads import Thread
from engine.threads import call_stack
from engine.workflow import registry as workflows


def check(store: Store, candidates: Iterable[Thread]) -> None:
    """Raises Refused for a thread from elsewhere that is not trusted yet."""
    for thread in candidates:
        if not arrivals.is_trusted(thread.head):
            text = workflows.in_one_line(runs(store, thread))
            raise Refused(
                f"thread {thread.id} is from {thread.record['origin']}, and {text};"
                f" `casfs thread trust {thread.id}` lets it run"
            )


def runs(store: Store, thread: Thread) -> list[str]:
    """Returns which agents a thread has, that of its summaries among them, a line each."""
    agents = dict(threads.agents(store, thread))
    compact = threads.start(store, thread).payload.get("compact")
    if compact is not None:
        agents["--compact-by"] = compact["agent"]
    return workflows.describe(
        {role: workflows.agent_spec(store, hash) for role, hash in agents.items()}
    )


def all_runs(store: Store, thread: Thread) -> list[str]:
    """Returns what `trust` lets run, a line each."""
    return [
        f"{resumed.id}: {line}"
        for resumed in _resumed(store, thread)
        for line in runs(store, resumed)
    ]


def _resumed(store: Store, thread: Thread) -> list[Thread]:
    """Returns a thread with the callers and callees that are resumed with it."""
    callers = call_stack.waiting_callers
    children = call_stack.open_children
    return [*callers(store, thread), thread, *children(store, thread)]


def trust(store: Store, thread: Thread) -> None:
    """Lets a thread run, with the callers and callees that are resumed with it. Raises Conflict."""
    with store.batch() as batch:
        for resumed in _resumed(store, thread):
            if not arrivals.is_trusted(resumed.head):
                record = dict(arrivals.trusted(resumed.head).record)
                batch.move(resumed.name, resumed.head, resumed.hash, record)
