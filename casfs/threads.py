"""Threads: chains of immutable nodes, and the head that says where each one stands.

    thread-start ‹ thread-step 1 ‹ … ‹ thread-step n ‹ thread-end

The head `threads/<ULID>` points to the newest of these. Its record holds what is mutable
(all times in ms since 1970 UTC):

    status      running | suspended | ended | cancelled
    start       the thread-start node, shared by all forks of a thread
    workflow    the workflow's name, for listings
    updatedAt   when the head last moved; of a thread that has ended, when it ended
    reason      why it is suspended, else null; `cause` is that in one word: failure, timeout,
                budget, human, child (a thread that it called rests), caller (the one that
                called it does), unknown (a crash broke a try off), rule
    question    what a human is to answer: a content node, else null; `answer` is what was
                said, until the step that needed it is recorded
    intent      the step in flight, else null: role, index, attempt, since; once its process
                runs: pid and the process's start time; the newest of its `turns` so far, how
                many there are (`turnCount`) and the node that holds those before (`earlier`);
                the threads that it called (`calls`); `resumed` where somebody wants it run
                again
    spent       {tokens, wallMs} since it began, or was resumed with its budget spent
    compact     a summary of all steps so far (a content node) that the next step is to carry
    attempts    details of the tries at that step that failed
    parent      the thread that spawned this one, or null
    children    the newest of the threads that it called
    fork        {thread, step} that this thread was forked from, or null
    key         the hash of the idempotency key that it was started with, or null
    agents      a thread-agents node: who plays the roles of a fork that was given others
                than its thread-start says; else null

Only `engine.threads.transitions` and `engine.threads.lifecycle` write threads; everybody may read
them. Reading pages backwards: a step knows up to 10 ancestors besides its predecessor (seed 000),
and some know one far back (`leap`), so that any step of a long thread is a few reads away.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from casfs.backend.protocols import Head
from casfs.errors import Conflict, Corrupt, NotFound
from casfs.nodes.node import Node
from casfs.store import Store

HEADS = "threads/"
RUNNING, SUSPENDED, ENDED, CANCELLED = "running", "suspended", "ended", "cancelled"
MAX_ANCESTORS = 10
MAX_CHILDREN = 16  # that a record names
ID_LENGTH = 26


@dataclass(frozen=True, slots=True)
class Thread:
    """A thread as its head was at one moment. `head`: the pair a writer must present."""

    id: str
    head: Head

    @property
    def hash(self) -> str:
        return self.head.hash

    @property
    def record(self) -> Mapping[str, Any]:
        return self.head.record

    @property
    def status(self) -> str:
        return str(self.record.get("status", "broken"))

    @property
    def name(self) -> str:
        """The head's name."""
        return HEADS + self.id


@dataclass(frozen=True, slots=True)
class StepRef:
    """A step without its content: its place, its role and its node."""

    index: int
    role: str
    hash: str


def new_id() -> str:
    """A fresh ULID: ids sort by the time they were made."""
    from ulid import ULID  # 12 ms, and most who look at threads make none

    return str(ULID())


def list_threads(store: Store, newest_first: bool = False) -> list[Thread]:
    """All threads, oldest first. A thread whose nodes are damaged is still listed."""
    found = [Thread(name[len(HEADS) :], head) for name, head in store.heads.list(HEADS)]
    return found[::-1] if newest_first else found


def get(store: Store, id: str) -> Thread:
    """Raises NotFound."""
    head = store.heads.get(HEADS + id)
    if head is None:
        raise NotFound(f"no thread {id!r}; see `casfs thread list`")
    return Thread(id, head)


def expand(store: Store, text: str) -> Thread:
    """The thread that `text` is the id, or a unique prefix of the id, of (any case)."""
    prefix = text.upper()
    if len(prefix) == ID_LENGTH:
        return get(store, prefix)
    found = [name[len(HEADS) :] for name, _ in store.heads.list(HEADS + prefix)] if prefix else []
    if len(found) > 1:
        raise Conflict(f"{text} is ambiguous: {found[0]}, {found[1]}; give more of the id")
    if not found:
        raise NotFound(f"no thread {text!r}; see `casfs thread list`")
    return get(store, found[0])


def start(store: Store, thread: Thread) -> Node:
    """The thread-start node."""
    return store.node(thread.record["start"], "thread-start")


def agents(store: Store, thread: Thread) -> Mapping[str, str]:
    """Who plays each role from now on: role name to agent node."""
    other = thread.record.get("agents")
    node = start(store, thread) if other is None else store.node(other, "thread-agents")
    found: Mapping[str, str] = node.payload["agents"]
    return found


def turns(store: Store, intent: Mapping[str, Any]) -> list[str]:
    """The turns of a step in flight so far, oldest first. Those before the ones that the intent
    names are the artifacts of a content node, behind such a node for those before them."""
    found = list(intent.get("turns") or ())
    hash = intent.get("earlier")
    while hash is not None:
        held: list[str] = store.node(hash, "content").payload["artifacts"]
        more = len(held) < intent["turnCount"] - len(found)
        hash, held = (held[0], held[1:]) if more else (None, held)
        found = held + found
    return found


def end(store: Store, thread: Thread) -> Node | None:
    """The thread-end node; None while the thread has not ended."""
    node = store.node(thread.hash)
    return node if node.type == "thread-end" else None


def last_step(store: Store, thread: Thread) -> str | None:
    """The hash of the newest step; None before the first."""
    node = store.node(thread.hash)
    if node.type == "thread-end":
        last: str | None = node.payload["lastStep"]
        return last
    return node.hash if node.type == "thread-step" else None


def backwards(store: Store, thread: Thread) -> Iterator[Node]:
    """The steps from the newest to the first, loaded as they are asked for."""
    hash = last_step(store, thread)
    while hash is not None:
        node = store.node(hash, "thread-step")
        yield node
        hash = node.payload["previous"]


def last_steps(store: Store, thread: Thread, count: int | None, after: int = 0) -> list[Node]:
    """The newest `count` steps (all for None) with an index above `after`, oldest first. Loads
    these and one more at most, however long the thread is."""
    found: list[Node] = []
    for node in backwards(store, thread) if count != 0 else ():
        if node.payload["index"] <= after:
            break
        found.append(node)
        if len(found) == count:
            break
    return found[::-1]


def step_at(store: Store, thread: Thread, index: int) -> Node:
    """The step with that index. Raises NotFound where there is none."""
    hash = last_step(store, thread)
    node = None if hash is None else store.node(hash, "thread-step")
    if node is None or not 1 <= index <= node.payload["index"]:
        raise NotFound(f"thread {thread.id} has no step {index}")
    while (back := node.payload["index"] - index) > 0:
        node = store.node(_nearer(node.payload, back), "thread-step")
    return node


def _nearer(step: Mapping[str, Any], back: int) -> str:
    """The next step on the way to the one that is `back` before this: there by a leap, or to
    the step from where one goes on the farthest."""
    near = [step["previous"], *step["ancestors"]]
    if back <= len(near):
        return str(near[back - 1])
    if len(near) < leap(step["index"]) <= back:
        return str(step.get("leap", near[-1]))

    def reached(way: int) -> int:
        far = leap(step["index"] - way)
        return way + (far if len(near) < far <= back - way else len(near))

    return str(near[max(range(1, len(near) + 1), key=reached) - 1])


def steps(store: Store, thread: Thread) -> list[StepRef]:
    """All steps, first to newest. What was read before is remembered: a thread that grew by
    one step costs one node. Raises Corrupt when the indices do not count from 1."""
    known: list[StepRef] = store.cache.get(_cache_key(thread)) or []
    if known and known[-1].hash == last_step(store, thread):
        return known
    places = {ref.hash: place for place, ref in enumerate(known)}
    fresh: list[StepRef] = []
    base = 0
    for node in backwards(store, thread):
        if node.hash in places:
            base = places[node.hash] + 1
            break
        fresh.append(StepRef(node.payload["index"], node.payload["role"], node.hash))
    found = known[:base] + fresh[::-1]
    if fresh and any(ref.index != place for place, ref in enumerate(found, start=1)):
        raise Corrupt(f"thread {thread.id}: its steps do not count from 1")
    if fresh or len(found) != len(known):
        store.cache.put(_cache_key(thread), found, len(found) + 1)
    return found


def links(hashes: Sequence[str]) -> dict[str, Any]:
    """What a new step says of the ones before it, whose hashes are these, the first one first:
    `previous`, up to 10 `ancestors`, newest first, and where that is farther a `leap`."""
    back = leap(len(hashes) + 1)
    found: dict[str, Any] = {
        "previous": hashes[-1] if hashes else None,
        "ancestors": list(hashes[-2 : -2 - MAX_ANCESTORS : -1]),
    }
    if 1 + MAX_ANCESTORS < back <= len(hashes):
        found["leap"] = hashes[-back]
    return found


def leap(index: int) -> int:
    """How many steps the one with this index leaps back: the least part when it is written as
    a sum of numbers 2^n - 1, each as large as can be. So any earlier step is some logarithms of
    the distance away: 40 reads at 100,000 steps."""
    part = index
    while index:
        part = (1 << (index + 1).bit_length() - 1) - 1
        index -= part
    return part


def _cache_key(thread: Thread) -> str:
    return f"steps of {thread.id}"
