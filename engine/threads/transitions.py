"""The transitions of an existing thread. Every move of its head by the engine is in this module or
in `engine.threads.suspension`, but for two, by the same rules: `lifecycle.call` moves the caller's
as it creates the child, and `trust.trust` that of a thread from elsewhere.

Each function is one transaction: nodes and the head that leads to them are published together,
so a thread is at any instant exactly what its head says. A head that another writer has moved is
a Conflict and never overwritten (`casfs.threads.threads` describes the record).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from casfs.agents.secrets import put_structure
from casfs.digest import NodeHash
from casfs.errors import Conflict
from casfs.store.store import Store
from casfs.store.write_batch import Batch
from casfs.system.clock import now_ms
from casfs.threads import sessions, threads
from casfs.threads.state import says
from casfs.threads.threads import CANCELLED, ENDED, RUNNING, SUSPENDED, Thread
from casfs.trees import recorded_state
from casfs.trees.recorded_state import RecordedState
from engine import content
from engine.moderator.decision import Decision, End, Next, RuleFailed
from engine.threads import call_stack, record
from engine.threads.record import (
    BUDGET,
    END_ON_LIMIT,
    ROUNDS,
    RULE,
    UNLIMITED,
    Budget,
)

if TYPE_CHECKING:
    from casfs.payloads import Intent

RETURN_MAX_STEPS = 2
RETURN_CANCELLED = 130


def begin(
    store: Store, thread: Thread, decision: Decision, done: int, rounds: int, attempt: int
) -> Thread:
    """Commits a decision while no step is finished: the next intent, or the end. A repeated
    attempt keeps the children of the one before."""
    head = thread.hash
    with store.batch() as batch:
        return _advance(batch, thread, head, decision, done=done, rounds=rounds, attempt=attempt)


def finish_step(
    batch: Batch,
    thread: Thread,
    payload: Mapping[str, Any],
    decision: Decision,
    rounds: int,
    tokens: int = 0,
    budget: Budget = UNLIMITED,
    state: RecordedState | None = None,
) -> Thread:
    """Adds a finished step, which took `tokens` and left the directory in `state`, the move of the
    head and the decision after it to `batch`. A spent budget suspends the thread before its next
    step."""
    # Its meta is redacted by the schema of the role, which the batch does not know.
    step = recorded_state.put_node(batch, "thread-step", payload, state, put_structure)
    spent = record.spent(thread.record, tokens)
    # Answer, summary and hint were for this step.
    changes: dict[str, Any] = {"spent": spent, "question": None, "answer": None, "compact": None}
    if "hint" in thread.record:
        changes["hint"] = None
    done = payload["index"]
    exceeded = budget.exceeded(spent)
    # A spent budget suspends the thread only where another step would follow. At the step limit
    # `_advance` decides, as that may end the thread (`onLimit`).
    if exceeded is not None and isinstance(decision, Next) and done < rounds:
        changes |= {"status": SUSPENDED, "cause": BUDGET, "reason": exceeded}
        changes |= {"intent": None, "attempts": []}
        return move_head(batch, thread, step.hash, **changes)
    return _advance(batch, thread, step.hash, decision, done=done, rounds=rounds, **changes)


def retry(
    store: Store, thread: Thread, reason: str, failed: Sequence[str] = (), tokens: int = 0
) -> Thread:
    """Begins another attempt at the pending step, with the finished children of the last one."""
    last = thread.intent
    role = last["role"]
    index = last["index"]
    # An equal call of the next attempt gets their results; the failed ones are called anew.
    calls = call_stack.finished_children(store, thread)
    number = last["attempt"] + 1
    with store.batch() as batch:
        entry = attempt_entry(batch, thread, how=f"failed: {reason}", details=failed)
        # Not `record.lost_attempts`: this attempt failed by itself, the daemon went on.
        lost = last.get("lost", 0)
        intent = record.new_intent(role, index, number, calls=calls, lost=lost, last=last)
        attempts = record.add_attempts(thread.record, entry)
        spent = record.spent(thread.record, tokens)
        # An answer is to the question of one attempt, and the next may ask another; a hint is for
        # the step, however many attempts it takes.
        changes = {"intent": intent, "attempts": attempts, "spent": spent, "answer": None}
        return move_head(batch, thread, thread.hash, **changes)


def update_record(store: Store, thread: Thread, **changes: Any) -> Thread:
    """Changes fields of the record; the head keeps its node."""
    with store.batch() as batch:
        return move_head(batch, thread, thread.hash, **changes)


def add_turn(store: Store, thread: Thread, hash: NodeHash) -> Thread:
    """Records a turn of the pending step, a node that is stored already."""
    with store.batch() as batch:
        # A record has room for a few turns: the full list becomes one node.
        keep = partial(content.put, batch, "earlier turns")
        intent = record.with_turn(thread.intent, hash, keep)
        return move_head(batch, thread, thread.hash, intent=intent)


def add_tokens(store: Store, thread: Thread, tokens: int) -> Thread:
    """Counts tokens against the budget that no attempt spent: of a summariser."""
    spent = thread.record["spent"]
    return update_record(store, thread, spent={**spent, "tokens": spent["tokens"] + tokens})


def correct(store: Store, thread: Thread, detail: str, fault: str) -> Thread:
    """Records the detail of an unusable output, and the fault that the agent is told."""
    with store.batch() as batch:
        # In the intent, since the prompt of a pending step is rebuilt from the head
        # (`casfs.threads.prompts`).
        intent = record.changed(thread.intent, correction=content.put(batch, fault))
        attempts = record.add_attempts(thread.record, [detail])
        return move_head(batch, thread, thread.hash, intent=intent, attempts=attempts)


def cancel(
    store: Store,
    thread: Thread,
    interrupted: Sequence[str] = (),
    caller: Thread | None = None,
    summary: str = CANCELLED,
) -> Thread:
    """Ends a thread and its open children with return code 130, and a summary; the failed attempts
    at a pending step stay in its record, with the details of `interrupted` programs. Raises
    Conflict where it has ended already, or the head of `caller` was moved."""
    if thread.record["status"] not in (RUNNING, SUSPENDED):
        raise Conflict(f"thread {thread.id} {says(thread)} already")
    sessions.refuse(thread)
    with store.batch() as batch:
        if caller is not None:
            # Its head stays as it is. The swap tests that the caller was not taken over meanwhile,
            # by another machine, whose run waits for these children.
            batch.swap(caller.name, caller.head, caller.head)
        for child in call_stack.open_children(store, thread):
            _cancel(store, batch, thread=child, summary=f"cancelled with thread {thread.id}")
        return _cancel(store, batch, thread=thread, summary=summary, interrupted=interrupted)


def _cancel(
    store: Store, batch: Batch, thread: Thread, summary: str, interrupted: Sequence[str] = ()
) -> Thread:
    end = End(RETURN_CANCELLED, summary)
    last = threads.last_step(store, thread)
    # No step will carry what was done before a pause, so it goes into the entry.
    details = list(interrupted)
    if thread.pending and (paused := thread.pending.get("paused")):
        details.insert(0, paused)
    entry = attempt_entry(batch, thread, how="was cancelled", details=details, even_if_empty=False)
    attempts = record.add_attempts(thread.record, entry)
    return _end(batch, thread, last=last, end=end, status=CANCELLED, attempts=attempts)


def compact(
    store: Store, thread: Thread, summary: NodeHash, head: NodeHash, tokens: int = 0
) -> Thread:
    """Records a summary (a content node) of all steps up to `head`, which took `tokens`; the next
    step carries it.
    Raises Conflict where the thread has moved on, or has ended."""
    if thread.status in (ENDED, CANCELLED):
        raise Conflict(f"thread {thread.id} {says(thread)}; no step comes after it")
    # A summary of an older history in the newest step would hide the steps between.
    if thread.hash != head:
        raise Conflict(f"thread {thread.id} went on while it was summarised; try again")
    spent = thread.record["spent"]
    counted = {**spent, "tokens": spent["tokens"] + tokens}
    return update_record(store, thread, compact=summary, spent=counted)


def _advance(
    batch: Batch,
    thread: Thread,
    hash: NodeHash,
    decision: Decision,
    done: int,
    rounds: int,
    attempt: int = 1,
    **changes: Any,
) -> Thread:
    """Moves the head to `hash`, the newest of `done` steps, with the decision made there."""
    reason = f"step limit (--max-steps) reached after {done} steps"
    # The attempts are in the step at `hash`: the record holds those at the pending one.
    stop: dict[str, Any] = {"status": SUSPENDED, "intent": None, "attempts": []}
    if isinstance(decision, Next) and done >= rounds:
        if thread.record.get("onLimit") != END_ON_LIMIT:
            return move_head(batch, thread, hash, **stop, reason=reason, cause=ROUNDS, **changes)
        decision = End(RETURN_MAX_STEPS, reason)
    if isinstance(decision, End):
        last_step = hash if done else None
        return _end(batch, thread, last=last_step, end=decision, status=ENDED, **changes)
    if isinstance(decision, RuleFailed):
        reason = record.truncate_reason(decision.reason)
        return move_head(batch, thread, hash, **stop, reason=reason, cause=RULE, **changes)
    last = _inherited_intent(thread, attempt)
    calls = last["calls"] if last else ()
    lost = record.lost_attempts(last) if last else 0
    role = decision.role
    intent = record.new_intent(role, done + 1, attempt, calls=calls, lost=lost, last=last)
    if decision.rule is not None:
        intent["rule"] = decision.rule
    attempts: list[str] = []
    if last:
        # Where a person resumed it, the suspension has recorded how the attempt ended.
        even_if_empty = not last.get("resumed")
        entry = attempt_entry(batch, thread, "was interrupted", even_if_empty=even_if_empty)
        attempts = record.add_attempts(thread.record, entry)
    changes |= {"intent": intent, "attempts": attempts}
    return move_head(batch, thread, hash, **changes)


def _inherited_intent(thread: Thread, attempt: int) -> Intent | None:
    """Returns the pending intent where the next attempt, with this number, inherits from it."""
    # Only an attempt at the same step does: a further one, the first of a fork, or one that goes on
    # after a pause, under the same number. After `finish_step` the pending one is that of the
    # finished step, and this number is 1.
    last = thread.pending
    if last and attempt == 1:
        is_same_step = last.get("begun") is False or last.get("goesOn")
        return last if is_same_step else None
    return last


def attempt_entry(
    batch: Batch, thread: Thread, how: str, details: Sequence[str] = (), even_if_empty: bool = True
) -> list[str]:
    """Puts what an attempt that is over left, as one entry for `attempts`: how it ended, with its
    recorded turns and `details`. Without turns, details that say themselves how it ended are the
    entries. Without both there is an entry only if `even_if_empty`."""
    intent = thread.pending
    if not intent:
        return []
    turns = record.all_turns(intent)
    if not (turns or details or even_if_empty):
        return []
    if details and not turns:
        # All details but a react-session tell how the attempt ended.
        tells_end = not _has_session(batch, details)
        if tells_end:
            return list(details)
    text = f"attempt {intent['attempt']} of {intent['role']} {record.truncate_reason(how)}"
    return [content.put(batch, text, [*turns, *details])]


def paused_intent(batch: Batch, intent: Intent, details: Sequence[str] = ()) -> Intent:
    """Returns the intent of an attempt that goes on later, under the same number: what it left so
    far does not count as a failed attempt; `paused` refers to it."""
    left = [*record.all_turns(intent), *details]
    fresh = record.changed(record.without_turns(intent), goesOn=True)
    if left:
        text = f"{intent['role']}, before it was paused"
        # Each pause refers to the one before: the field holds one hash, however many there are.
        if before := intent.get("paused"):
            left.insert(0, before)
        fresh["paused"] = content.put(batch, text, left)
    return fresh


def _has_session(batch: Batch, details: Sequence[str]) -> bool:
    for detail in details:
        # A detail may be any node, or a blob; its type is known without reading it.
        info = batch.info({detail}).get(detail)
        if info is not None and batch.type_name(info.type) == "react-session":
            return True
    return False


def _end(
    batch: Batch, thread: Thread, last: NodeHash | None, end: End, status: str, **changes: Any
) -> Thread:
    completed_at = now_ms()
    payload = {
        "returnCode": end.return_code,
        "summary": end.summary,
        "start": thread.record["start"],
        "lastStep": last,
        "completedAt": completed_at,
    }
    node = batch.put_node("thread-end", payload)
    # The failed attempts are in the last step; a cancelled thread, whose pending step will never
    # be one, keeps them by `changes`.
    cleared = ("reason", "cause", "question", "answer", "compact")
    changes = {**dict.fromkeys(cleared), "attempts": [], **changes}
    changes |= {"status": status, "intent": None, "returnCode": end.return_code}
    return move_head(batch, thread, node.hash, **changes, updatedAt=completed_at)


def move_head(batch: Batch, thread: Thread, hash: NodeHash, **changes: Any) -> Thread:
    """Moves a head to `hash`, with changes to its record. Raises Conflict."""
    fresh = {**thread.record, "updatedAt": now_ms(), **changes}
    # A batch that redacts may put another record than `fresh`: the next move has to expect that.
    head = batch.move(thread.name, thread.head, hash, fresh)
    return Thread(thread.id, head, fault=None)
