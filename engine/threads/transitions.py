"""The transitions of an existing thread: every move of its head is in this module and in
`engine.threads.suspension`; `engine.threads.lifecycle` creates threads, by the same rules.

Each function is one transaction: nodes and the head that leads to them are published together,
so a thread is at any instant exactly what its head says. A head that another writer has moved is
a Conflict and never overwritten (`casfs.threads.threads` describes the record).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from casfs.digest import NodeHash
from casfs.errors import Conflict
from casfs.payloads import Intent
from casfs.store.store import Store
from casfs.store.write_batch import Batch
from casfs.system.clock import now_ms
from casfs.threads import threads
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

RETURN_MAX_STEPS = 2
RETURN_CANCELLED = 130


def begin(
    store: Store, thread: Thread, decision: Decision, done: int, rounds: int, attempt: int
) -> Thread:
    """Commits a decision while no step is finished: the next intent, or the end. A repeated
    attempt keeps the children of the one before."""
    with store.batch() as batch:
        return _advance(
            batch,
            thread,
            hash=thread.hash,
            decision=decision,
            done=done,
            rounds=rounds,
            attempt=attempt,
        )


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
    step = recorded_state.put_node(batch, "thread-step", payload=payload, state=state)
    spent = record.spent(thread.record, tokens)
    clear_hint: dict[str, Any] = {"hint": None} if "hint" in thread.record else {}
    out = budget.exceeded(spent)
    if out is not None and isinstance(decision, Next) and payload["index"] < rounds:
        stop = {"status": SUSPENDED, "cause": BUDGET, "reason": out}
        clear: dict[str, Any] = {"intent": None, "attempts": [], "answer": None, "compact": None}
        return move_head(batch, thread, step.hash, spent=spent, **stop, **clear, **clear_hint)
    return _advance(
        batch,
        thread,
        hash=step.hash,
        decision=decision,
        done=payload["index"],
        rounds=rounds,
        spent=spent,
        answer=None,
        compact=None,
        **clear_hint,
    )


def retry(
    store: Store, thread: Thread, reason: str, failed: Sequence[str] = (), tokens: int = 0
) -> Thread:
    """Begins another attempt at the pending step, with the finished children of the last one."""
    intent = thread.intent
    calls = call_stack.finished_children(store, thread)
    number = intent["attempt"] + 1
    with store.batch() as batch:
        details = attempt_entry(batch, thread, how=f"failed: {reason}", details=failed)
        return move_head(
            batch,
            thread,
            thread.hash,
            intent=record.new_intent(
                intent["role"],
                intent["index"],
                attempt=number,
                calls=calls,
                lost=intent.get("lost", 0),
                last=intent,
            ),
            attempts=record.add_attempts(thread.record, details),
            spent=record.spent(thread.record, tokens),
            answer=None,
        )


def update_record(store: Store, thread: Thread, **changes: Any) -> Thread:
    """Changes fields of the record; the head keeps its node."""
    with store.batch() as batch:
        return move_head(batch, thread, thread.hash, **changes)


def add_turn(store: Store, thread: Thread, hash: NodeHash) -> Thread:
    """Records a turn of the pending step, a node that is stored already."""
    with store.batch() as batch:
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
        intent = record.changed(thread.intent, correction=content.put(batch, fault))
        attempts = record.add_attempts(thread.record, [detail])
        return move_head(batch, thread, thread.hash, intent=intent, attempts=attempts)


def cancel(
    store: Store, thread: Thread, interrupted: Sequence[str] = (), caller: Thread | None = None
) -> Thread:
    """Ends a thread and its open children with return code 130; the failed attempts at a pending
    step stay in its record, with the details of `interrupted` programs. Raises Conflict where it
    has ended already, or the head of `caller` was moved."""
    if thread.record["status"] not in (RUNNING, SUSPENDED):
        raise Conflict(f"thread {thread.id} {says(thread)} already")
    with store.batch() as batch:
        if caller is not None:
            batch.swap(caller.name, caller.head, caller.head)
        for child in call_stack.open_children(store, thread):
            _cancel(store, batch, thread=child, summary=f"cancelled with thread {thread.id}")
        return _cancel(store, batch, thread=thread, summary="cancelled", interrupted=interrupted)


def _cancel(
    store: Store, batch: Batch, thread: Thread, summary: str, interrupted: Sequence[str] = ()
) -> Thread:
    end = End(RETURN_CANCELLED, summary)
    last = threads.last_step(store, thread)
    paused = thread.pending and thread.pending.get("paused")
    held = [*([paused] if paused else []), *interrupted]
    entry = attempt_entry(batch, thread, how="was cancelled", details=held, is_told=False)
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
    stop: dict[str, Any] = {"status": SUSPENDED, "intent": None, "attempts": []}
    if isinstance(decision, Next) and done >= rounds:
        if thread.record.get("onLimit") != END_ON_LIMIT:
            return move_head(batch, thread, hash, **stop, reason=reason, cause=ROUNDS, **changes)
        decision = End(RETURN_MAX_STEPS, reason)
    if isinstance(decision, End):
        return _end(
            batch, thread, last=hash if done else None, end=decision, status=ENDED, **changes
        )
    if isinstance(decision, RuleFailed):
        reason = record.truncate_reason(decision.reason)
        return move_head(batch, thread, hash, **stop, reason=reason, cause=RULE, **changes)
    last = thread.pending
    is_again = attempt > 1 or (last and (last.get("begun") is False or last.get("goesOn")))
    last = last if is_again else None
    calls, lost = (last["calls"], record.lost_attempts(last)) if last else ((), 0)
    intent = record.new_intent(
        decision.role, done + 1, attempt=attempt, calls=calls, lost=lost, last=last
    )
    intent |= {} if decision.rule is None else {"rule": decision.rule}
    attempts: list[str] = []
    if last:
        is_told = not last.get("resumed")
        entry = attempt_entry(batch, thread, "was interrupted", is_told=is_told)
        attempts = record.add_attempts(thread.record, entry)
    return move_head(
        batch, thread, hash, intent=intent, attempts=attempts, question=None, **changes
    )


def attempt_entry(
    batch: Batch, thread: Thread, how: str, details: Sequence[str] = (), is_told: bool = True
) -> list[str]:
    """Puts what an attempt that is over left, as one entry for `attempts`: how it ended, with its
    recorded turns and `details`. A detail alone that says itself how it ended is the entry. Without
    turns and details there is an entry only if `is_told`."""
    intent = thread.pending
    if not intent:
        return []
    turns = record.all_turns(intent)
    if not (turns or details or is_told):
        return []
    if details and not turns and not any(_is_session(batch, detail) for detail in details):
        return list(details)
    text = f"attempt {intent['attempt']} of {intent['role']} {record.truncate_reason(how)}"
    return [content.put(batch, text, [*turns, *details])]


def paused_intent(batch: Batch, intent: Intent, details: Sequence[str] = ()) -> Intent:
    """Returns the intent of an attempt that goes on later, under the same number: what it left so
    far does not count as a failed attempt; `paused` refers to it."""
    before = intent.get("paused")
    left = [*record.all_turns(intent), *details]
    fresh = record.changed(record.without_turns(intent), goesOn=True)
    if left:
        text = f"{intent['role']}, before it was paused"
        fresh["paused"] = content.put(batch, text, [*([before] if before else []), *left])
    return fresh


def _is_session(batch: Batch, hash: str) -> bool:
    info = batch.info({hash}).get(hash)
    return info is not None and batch.type_name(info.type) == "react-session"


def _end(
    batch: Batch, thread: Thread, last: NodeHash | None, end: End, status: str, **changes: Any
) -> Thread:
    payload = {
        "returnCode": end.return_code,
        "summary": end.summary,
        "start": thread.record["start"],
        "lastStep": last,
        "completedAt": now_ms(),
    }
    node = batch.put_node("thread-end", payload)
    cleared = ("reason", "cause", "question", "answer", "compact")
    defaults: dict[str, Any] = {**dict.fromkeys(cleared), "attempts": []}
    return move_head(
        batch,
        thread,
        node.hash,
        **{**defaults, **changes},
        status=status,
        intent=None,
        updatedAt=payload["completedAt"],
        returnCode=end.return_code,
    )


def move_head(batch: Batch, thread: Thread, hash: NodeHash, **changes: Any) -> Thread:
    """Moves a head to `hash`, with changes to its record. Raises Conflict."""
    fresh = {**thread.record, "updatedAt": now_ms(), **changes}
    return Thread(thread.id, batch.move(thread.name, thread.head, hash, fresh), fault=None)
