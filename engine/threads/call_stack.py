"""The call stack of threads, read from their heads: open children below, waiting callers above.

A thread's intent names the children of its pending step, and every child's record its caller.
Suspend, resume and cancel find by these what they apply to together. Read-only.
"""

from __future__ import annotations

from casfs.agents import CHILD
from casfs.backend.capabilities import Leasing
from casfs.errors import NotFound
from casfs.store.store import Store
from casfs.threads import threads
from casfs.threads.threads import ENDED, RUNNING, SUSPENDED, Thread, ThreadId
from engine.threads import record
from engine.threads.record import BUDGET, CALLER


def open_children(store: Store, thread: Thread) -> list[Thread]:
    """Returns the pending step's children that have not ended, each followed by its own."""
    children: list[Thread] = []
    for id in thread.called:
        child = threads.get(store, id)
        if child.status in (RUNNING, SUSPENDED):
            children += [child, *open_children(store, child)]
    return children


def finished_children(store: Store, thread: Thread) -> list[ThreadId]:
    """Returns the pending step's children whose result another attempt gets for an equal call."""
    children = [threads.get(store, id) for id in thread.called]
    return [
        child.id
        for child in children
        if child.status == ENDED and child.record.get("returnCode") == 0
    ]


def lost_reason(store: Store, thread: Thread, suspends_unknown: bool) -> str | None:
    """Returns the reason to suspend a thread whose last attempts ended with the daemon; None where
    another one may begin (`suspends_unknown`: not even a second one). A step with open children may
    have twice as many: the step of a child is suspended first. So may one of a shared store, whose
    machines end for reasons of their own."""
    intent = thread.intent
    lost = record.lost_attempts(intent)
    limit = record.MAX_LOST_ATTEMPTS
    if suspends_unknown:
        limit = 1
    elif isinstance(store.backend, Leasing) or open_children(store, thread):
        limit *= 2
    if lost < limit:
        return None
    times = f"{lost} attempts" if lost > 1 else f"attempt {intent['attempt']}"
    return f"{intent['role']}: outcome unknown: the daemon ended during {times}"


def waiting_callers(store: Store, thread: Thread) -> list[Thread]:
    """Returns the callers that are suspended only because of this thread, outermost first."""
    above = thread.record.get("parent")
    if above is None or store.heads.get(threads.head_name(above)) is None:
        return []
    parent = threads.get(store, above)
    intent = parent.pending
    waits = parent.status == SUSPENDED and parent.record.get("cause") in (CHILD, BUDGET)
    if not waits or intent is None or thread.id not in intent["calls"]:
        return []
    return [*waiting_callers(store, parent), parent]


def is_awaited(store: Store, thread: Thread, *, running: bool = False) -> bool:
    """Returns whether the pending step of its caller called the thread; `running`: and will run
    it."""
    if not thread.fields.get("parent"):
        return False
    try:
        caller = threads.get(store, thread.fields["parent"])
    except NotFound:
        return False
    calls = (caller.fields.get("intent") or {}).get("calls", ())
    return thread.id in calls and (caller.status == RUNNING or not running)


def awaited_children(store: Store, thread: Thread) -> list[Thread]:
    """Returns the suspended children that this thread waits for, each followed by those that it
    waits for: first those suspended with this thread, last the one that suspended it."""
    calls = thread.called
    children = [threads.get(store, id) for id in calls]
    suspended = [child for child in children if child.status == SUSPENDED]
    paused = [child for child in suspended if child.record.get("cause") == CALLER]
    reasons = [child for child in suspended if child not in paused]
    first = reasons[:1] if thread.record.get("cause") == CHILD else []
    return [
        awaited
        for child in (*paused, *first)
        for awaited in (child, *awaited_children(store, child))
    ]
