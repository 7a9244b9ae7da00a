"""Threads that called each other, as their heads say: who is below, who waits above.

A thread names those that its step in flight called in its intent, and every called thread its
caller. What rests, goes on and ends together is found by these; only reading.
"""

from __future__ import annotations

from casfs import threads
from casfs.agents import CHILD
from casfs.store import Store
from casfs.threads import RUNNING, SUSPENDED, Thread
from engine.threads.record import BUDGET, CALLER


def open_children(store: Store, thread: Thread) -> list[Thread]:
    """The threads that the step in flight called and that have not ended, and theirs."""
    found: list[Thread] = []
    for id in (thread.record.get("intent") or {}).get("calls", ()):
        child = threads.get(store, id)
        if child.status in (RUNNING, SUSPENDED):
            found += [child, *open_children(store, child)]
    return found


def waiting_callers(store: Store, thread: Thread) -> list[Thread]:
    """Those that rest only because this one does, outermost first."""
    above = thread.record.get("parent")
    if above is None or store.heads.get(threads.HEADS + above) is None:
        return []
    parent = threads.get(store, above)
    intent = parent.record["intent"]
    waits = parent.status == SUSPENDED and parent.record.get("cause") in (CHILD, BUDGET)
    if not waits or intent is None or thread.id not in intent["calls"]:
        return []
    return [*waiting_callers(store, parent), parent]


def awaited_children(store: Store, thread: Thread) -> list[Thread]:
    """The suspended threads that this one waits for: those that rest only because it does, and
    last the one that made it wait, with those that this one waits for."""
    calls = (thread.record.get("intent") or {}).get("calls", ())
    found = [threads.get(store, id) for id in calls]
    resting = [child for child in found if child.status == SUSPENDED]
    paused = [child for child in resting if child.record.get("cause") == CALLER]
    reasons = [child for child in resting if child not in paused]
    first = reasons[:1] if thread.record.get("cause") == CHILD else []
    return [one for child in (*paused, *first) for one in (child, *awaited_children(store, child))]
