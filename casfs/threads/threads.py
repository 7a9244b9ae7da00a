"""Threads (runs of a workflow): chains of immutable nodes, and the head of each.

    thread-start ‹ thread-step 1 ‹ … ‹ thread-step n ‹ thread-end

The head `threads/<ULID>` points to the newest of these. Its record holds the mutable state
(all times in ms since 1970 UTC):

    status      running | suspended | ended | cancelled
    start       the thread-start node, shared by all forks of a thread
    workflow    the workflow's name, for listings
    updatedAt   when the head last moved; of a thread that has ended, when it ended
    reason      why it is suspended, else null
    cause       the same in one word: failure, timeout, budget, human, child (its child is
                suspended), caller (its caller is), unknown (a crash interrupted an attempt), rule,
                rounds (the step limit), session (an outside agent's, which no daemon runs)
    question    of the human agent: a content node, else null
    answer      to that question, until the step that needed it is committed
    hint        for that step, a content node, while it is pending
    intent      the pending step, else null:
                  role, index, attempt, since
                  waitedMs    of that time, in which the agent has waited for a person
                  pid, pidStart  of its process, once that runs, and when it started
                  turns       the newest of its turns
                  turnCount   how many there are
                  earlier     the node that holds the earlier turns
                  calls       its children
                  correction  the fault that its agent is asked to correct
                  resumed     true where a person had it run again
                  lost        the number of earlier attempts that ended with the daemon
                  paused      a content node with what it did before a pause
                  goesOn      true from then on until it goes on
                  rule        index of the one that chose the role, where it has a prompt
                  kept        what its agent keeps from attempt to attempt
                  tree        of the files that the next attempt begins with, where not those
                              before the step
                  local       of the whole directory, where not all of it is work
                  begun       false until the first attempt of a fork within a step
                  prompt      of a session: a turn, whose input is what the person has asked for
                              and whose workspace is the directory then
                  promptId    how the agent names that
    spent       {tokens, wallMs} since it began, or was resumed with its budget spent
    rounds      the step limit, where it is not that of the thread-start
    onLimit     `end` where the thread ends at its limit with return code 2
    allowsSecrets  true where what a scanner of secrets finds in its texts is recorded
    secretMarks  the highest number of a mark that stands for a secret in its texts, or absent
    compact     a summary of all steps so far (a content node) that the next step will carry
    attempts    details of the failed attempts at that step
    parent      the thread that called this one, or null
    children    the newest of its children
    fork        {thread, step} that this thread was forked from, or null
    key         the hash of its idempotency key, or null
    name        given to it by a person, or absent; no other thread has it
    archived    true where listings leave it out, `pinned` where they have it first, or absent
    agents      a thread-agents node: the agents of a thread with replaced ones, else null
    definition  the workflow node, where it is not that of the thread-start (a fork)
    ignored     the token of its copy of ignored files (`casfs.workspaces.ignored_files`), or absent
    project     the directory of the project that it is of, on this machine, or absent
    worktree    the directory of the linked work tree of that, where it is of one
    origin      the remote, or `import`, that brought it, or moved it last, or absent
    trusted     of one with `origin`: true where a person lets it run (`casfs.exchange.arrivals`)
    lease       in a shared store: the number of the lease under which it ran last
    session     of an outside agent's session: `engine.sessions.session_thread`

Only `engine.threads.transitions`, `suspension`, `lifecycle` and `forking` write threads; anything
may read them. Steps link backwards: a step links to its predecessor and up to 10 further ancestors
(seed 000), and some link to one far back (`leap`, as in a skip list), so any step of a long thread
is a few reads away.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from casfs import canonical
from casfs.backend.protocols import Head, HeadName
from casfs.digest import NodeHash
from casfs.digest import ThreadId as ThreadId
from casfs.errors import Corrupt, NotFound
from casfs.store.nodes import head_kinds
from casfs.store.nodes.node import Node
from casfs.store.store import Store

if TYPE_CHECKING:
    from casfs import payloads
    from casfs.payloads import Intent, ThreadRecord

HEADS = head_kinds.THREADS
StartNode: TypeAlias = "Node[payloads.ThreadStart]"
StepNode: TypeAlias = "Node[payloads.ThreadStep]"
EndNode: TypeAlias = "Node[payloads.ThreadEnd]"
RUNNING = "running"
SUSPENDED = "suspended"
ENDED = "ended"
CANCELLED = "cancelled"
BROKEN = "broken"  # the record is damaged
SESSION = "session"  # the cause of a session's suspension
MAX_ANCESTORS = 10
PROJECT_FIELDS = (PROJECT, WORKTREE) = ("project", "worktree")  # see `casfs.directories.projects`
NAME = "name"
FLAGS = (ARCHIVED, PINNED) = ("archived", "pinned")
FIELDS_OF_THIS_STORE = (*PROJECT_FIELDS, *FLAGS)  # which never leave it
MAX_CHILDREN = 6  # that a record names
ID_LENGTH = 26


@dataclass(frozen=True)
class Thread:
    """A snapshot of a thread's head. `head`: the expected pair of the next compare-and-swap;
    `fault`: why its record is damaged."""

    id: ThreadId
    head: Head
    fault: str | None

    @property
    def hash(self) -> NodeHash:
        return self.head.hash

    @property
    def record(self) -> ThreadRecord:
        """Raises Corrupt where it is damaged."""
        if self.fault is not None:
            raise Corrupt(f"thread {self.id} is broken: {self.fault}; `casfs thread rm` removes it")
        return self.head.record  # type: ignore[return-value]  # the kind of head has these fields

    @property
    def pending(self) -> Intent | None:
        """The pending step, if there is one. Raises Corrupt."""
        return self.record.get("intent")

    @property
    def intent(self) -> Intent:
        """The pending step of a thread that has one. Raises Corrupt, also where it has none."""
        intent = self.record.get("intent")
        if intent is None:
            raise Corrupt(f"thread {self.id} has no pending step")
        return intent

    @property
    def called(self) -> Sequence[ThreadId]:
        """The threads that the pending step has called. Raises Corrupt."""
        intent = self.record.get("intent")
        return () if intent is None else intent.get("calls", ())

    @property
    def fields(self) -> Mapping[str, Any]:
        """The record for listings: empty where it is damaged."""
        return {} if self.fault is not None else self.head.record

    @property
    def status(self) -> str:
        return str(self.fields.get("status", BROKEN))

    @property
    def is_archived(self) -> bool:
        return self.fields.get(ARCHIVED) is True

    @property
    def is_pinned(self) -> bool:
        return self.fields.get(PINNED) is True

    @property
    def name(self) -> HeadName:
        """The head's name."""
        return head_name(self.id)


@dataclass(frozen=True, slots=True)
class StepRef:
    """A step's index, role and node, without its content."""

    index: int
    role: str
    hash: NodeHash


def head_name(id: ThreadId) -> HeadName:
    return HeadName(HEADS + id)


def thread_id(name: HeadName) -> ThreadId:
    return ThreadId(name[len(HEADS) :])


def new_id() -> ThreadId:
    """Returns a fresh ULID: ids sort by the time of creation."""
    from ulid import ULID  # 12 ms; most commands create no thread

    text = str(ULID())
    return ThreadId(text)


def list_threads(store: Store) -> list[Thread]:
    """Returns all threads, oldest first, also those with damaged nodes."""
    return [of_head(name, head) for name, head in store.heads.list(HEADS)]


def newest_first(store: Store, containing: Collection[str] = ()) -> Iterator[Thread]:
    """Yields the threads as `list_threads` has them, newest first, as they are read. `containing`:
    as of `Heads.list`."""
    for name, head in store.heads.list(HEADS, reverse=True, containing=containing):
        yield of_head(name, head)


def field_text(field: str, value: str) -> str:
    """Returns what a record with this value in a field contains, for `newest_first`."""
    return f'"{field}":{canonical.encode(value).decode()}'


def with_field(store: Store, field: str, values: Collection[str]) -> Iterator[Thread]:
    """Yields the threads whose record has one of these values in this field, newest first. Reads no
    others where the backend can tell."""
    texts = [field_text(field, value) for value in values]
    # A second look: the text may stand in a nested object, and some backends yield all threads.
    return (thread for thread in newest_first(store, texts) if thread.fields.get(field) in values)


def listed_first(store: Store, containing: Collection[str] = ()) -> Iterator[Thread]:
    """Yields the pinned threads and then all others, each newest first. `containing`: as of
    `Heads.list`, for the others."""
    pinned = (thread for thread in newest_first(store, [f'"{PINNED}":true']) if thread.is_pinned)
    unpinned = (thread for thread in newest_first(store, containing) if not thread.is_pinned)
    return chain(pinned, unpinned)


def with_caller(store: Store) -> Iterator[Thread]:
    """Yields the threads that another one called, newest first."""
    # With the quote of the value: the parent of others is null.
    return (thread for thread in newest_first(store, ['"parent":"']) if thread.fields.get("parent"))


def get(store: Store, id: ThreadId) -> Thread:
    """Returns a thread. Raises NotFound."""
    head = store.heads.get(head_name(id))
    if head is None:
        raise NotFound(f"no thread {id!r}; see `casfs thread list`")
    return of_head(head_name(id), head)


def of_head(name: HeadName, head: Head) -> Thread:
    # Not raised: one damaged record must not break every listing; `record` raises.
    fault = head_kinds.record_fault(name, head)
    return Thread(thread_id(name), head, fault)


def project_fields(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a record that say of which project of this machine the thread is."""
    return {name: record[name] for name in PROJECT_FIELDS if name in record}


def start(store: Store, thread: Thread) -> StartNode:
    """Returns the thread-start node."""
    return store.node(thread.record["start"], "thread-start")


def agents(store: Store, thread: Thread) -> Mapping[str, NodeHash]:
    """Returns the agents of the next steps: role name to agent node."""
    # In the record, as all forks of a thread share its start.
    other = thread.record.get("agents")
    node = start(store, thread) if other is None else store.node(other, "thread-agents")
    agent_hashes: Mapping[str, NodeHash] = node.payload["agents"]
    return agent_hashes


def workflow(store: Store, thread: Thread) -> NodeHash:
    """Returns the workflow node that decides the next steps."""
    definition: NodeHash | None = thread.record.get("definition")
    return definition or start(store, thread).payload["workflow"]


def turns(store: Store, intent: Mapping[str, Any]) -> list[NodeHash]:
    """Returns the turns of a pending step, oldest first. Those that the intent does not list are
    the artifacts of a content node, whose first artifact may be such a node again."""
    newest: Sequence[NodeHash] = intent.get("turns") or ()
    turn_hashes = list(newest)
    # A record has room for a few (MAX_RECORD_BYTES).
    hash = intent.get("earlier")
    while hash is not None:
        held = cast(list[NodeHash], store.node(hash, "content").payload["artifacts"])
        # Held and known turns add up to `turnCount`, unless the first of `held` is a node that
        # stands for several earlier turns.
        has_earlier = len(held) < intent["turnCount"] - len(turn_hashes)
        hash = None
        if has_earlier:
            hash = held[0]
            held = held[1:]
        turn_hashes = held + turn_hashes
    return turn_hashes


def end(store: Store, thread: Thread) -> EndNode | None:
    """Returns the thread-end node; None while the thread has not ended."""
    node = store.node(thread.hash)
    return node if node.type == "thread-end" else None


def last_step(store: Store, thread: Thread) -> NodeHash | None:
    """Returns the hash of the newest step; None before the first."""
    node = store.node(thread.hash)
    if node.type == "thread-end":
        last: NodeHash | None = node.payload["lastStep"]
        return last
    return node.hash if node.type == "thread-step" else None


def backwards(store: Store, thread: Thread) -> Iterator[StepNode]:
    """Yields the steps from the newest to the first, loaded one by one."""
    yield from backwards_from(store, last_step(store, thread))


def backwards_from(store: Store, hash: NodeHash | None) -> Iterator[StepNode]:
    """Yields a step and those before it, as `backwards`; nothing for None."""
    while hash is not None:
        node = store.node(hash, "thread-step")
        yield node
        hash = node.payload["previous"]


def last_steps(store: Store, thread: Thread, count: int | None, after: int = 0) -> list[StepNode]:
    """Returns the newest `count` steps (all for None) with an index above `after`, oldest first.
    Loads these and at most one more, however long the thread is."""
    nodes: list[StepNode] = []
    if count == 0:
        return nodes
    for node in backwards(store, thread):
        if node.payload["index"] <= after:
            break
        nodes.append(node)
        if len(nodes) == count:
            break
    return nodes[::-1]


def steps_between(store: Store, thread: Thread, first: int, last: int) -> list[StepNode]:
    """Returns the steps with the indices from `first` to `last`, by a few reads for the way there
    and one for each, however long the thread is."""
    if last < first:
        return []
    newest = step_at(store, thread, last).hash
    return list(islice(backwards_from(store, newest), last - first + 1))[::-1]


def length(store: Store, thread: Thread) -> int:
    """Returns the number of steps."""
    last = last_step(store, thread)
    if last is None:
        return 0
    node = store.node(last, "thread-step")
    return int(node.payload["index"])


def step_at(store: Store, thread: Thread, index: int) -> StepNode:
    """Returns the step with this index. Raises NotFound."""
    hash = last_step(store, thread)
    node = None if hash is None else store.node(hash, "thread-step")
    if node is None or not 1 <= index <= node.payload["index"]:
        raise NotFound(f"thread {thread.id} has no step {index}")
    while (back := node.payload["index"] - index) > 0:
        node = store.node(_nearer(node.payload, back), "thread-step")
    return node


def _nearer(step: Mapping[str, Any], back: int) -> NodeHash:
    """Returns the next hop towards the step that is `back` before this one: by a leap, or to the
    linked step from which one hop leads farthest."""
    near: list[NodeHash] = [step["previous"], *step["ancestors"]]
    if back <= len(near):
        return near[back - 1]
    if len(near) < leap(step["index"]) <= back:
        # Optional in the schema: of a step without one the farthest ancestor leads on.
        return NodeHash(step.get("leap", near[-1]))

    # Only some steps leap far, and an index tells how far: so no step is read to choose.
    def reached(hop: int) -> int:
        """Returns how far two moves lead: this hop, and the longest one from there."""
        # Every step this far in has as many links as this one; `leap` (below) tells how far the
        # step after the first move jumps.
        far = leap(step["index"] - hop)
        second_hop = far if len(near) < far <= back - hop else len(near)
        return hop + second_hop

    hops = range(1, len(near) + 1)
    best = max(hops, key=reached)
    return near[best - 1]


def steps(store: Store, thread: Thread) -> list[StepRef]:
    """Returns all steps, oldest first. Cached in the store: a thread that grew by one step costs
    one node. Raises Corrupt where the indices do not count from 1."""
    cached = store.cache.get(_cache_key(thread))
    known: list[StepRef] = cached or []
    if known and known[-1].hash == last_step(store, thread):
        return known
    positions = {ref.hash: position for position, ref in enumerate(known)}
    fresh: list[StepRef] = []
    base = 0
    for node in backwards(store, thread):
        if node.hash in positions:
            # Not always the last one: `thread` may be an older snapshot than that of the cache.
            base = positions[node.hash] + 1
            break
        fresh.append(StepRef(node.payload["index"], node.payload["role"], node.hash))
    # A new list: other callers hold the cached one.
    step_refs = known[:base] + fresh[::-1]
    if fresh:
        # Callers find the step with an index by its position.
        for position, ref in enumerate(step_refs, start=1):
            if ref.index != position:
                raise Corrupt(f"thread {thread.id}: its steps do not count from 1")
    if fresh or len(step_refs) != len(known):
        store.cache.put(_cache_key(thread), step_refs, len(step_refs) + 1)
    return step_refs


def links(hashes: Sequence[NodeHash]) -> dict[str, Any]:
    """Returns the links of a new step to the earlier ones, whose hashes are given oldest first:
    `previous`, up to 10 `ancestors`, newest first, and `leap` where that is farther."""
    back = leap(len(hashes) + 1)
    previous = hashes[-1] if hashes else None
    ancestors = list(hashes[-2 : -2 - MAX_ANCESTORS : -1])
    link_fields: dict[str, Any] = {"previous": previous, "ancestors": ancestors}
    # What is nearer is `previous` or an ancestor already; what is farther is before the first.
    if 1 + MAX_ANCESTORS < back <= len(hashes):
        link_fields["leap"] = hashes[-back]
    return link_fields


def leap(index: int) -> int:
    """Returns how many steps the one with this index leaps back: the least term when the index is
    written greedily as a sum of numbers 2^n - 1: of 12 = 7 + 3 + 1 + 1 it is 1, of 10 = 7 + 3 it
    is 3. So any earlier step is O(log distance) reads away: 40 at 100,000 steps."""
    part = index
    while index:
        # The greatest 2^n - 1 that fits.
        exponent = (index + 1).bit_length() - 1
        part = (1 << exponent) - 1
        index -= part
    return part


def _cache_key(thread: Thread) -> str:
    return f"steps of {thread.id}"
