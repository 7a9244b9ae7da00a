"""The only writer of threads that exist: every move of a thread's head is in this module
(`engine.threads.lifecycle` makes threads, by the same rules).

Each function is one transaction. Nodes and the head that leads to them are published
together, so a thread is at any instant exactly what its head says; a head that somebody
else has moved is a Conflict and never overwritten (see `casfs.threads` for the record).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from casfs import threads
from casfs.agents import HUMAN
from casfs.errors import Conflict
from casfs.store import Store
from casfs.threads import CANCELLED, ENDED, RUNNING, SUSPENDED, Thread
from casfs.write_batch import Batch, retried
from engine import content
from engine.moderator.decision import Decision, End, Next, RuleFailed
from engine.threads import call_stack, record
from engine.threads.record import (
    BUDGET,
    CALLER,
    FAILURE,
    RULE,
    TIMEOUT,
    UNKNOWN,
    UNLIMITED,
    Budget,
    now,
)

RETURN_MAX_ROUNDS, RETURN_CANCELLED = 2, 130


def begin(
    store: Store, thread: Thread, decision: Decision, done: int, rounds: int, attempt: int
) -> Thread:
    """Make a decision durable while no step is in flight: the next intent, or the end. The
    threads that an earlier try called stay its own."""
    with store.batch() as batch:
        return _advance(batch, thread, thread.hash, decision, done, rounds, attempt)


def commit_step(
    batch: Batch,
    thread: Thread,
    payload: Mapping[str, Any],
    decision: Decision,
    rounds: int,
    tokens: int = 0,
    budget: Budget = UNLIMITED,
) -> Thread:
    """Publish a finished step, which took `tokens`, and what was decided after it; commits
    `batch`. Where the budget is spent the thread rests before the next step begins."""
    step = batch.put_node("thread-step", payload)
    spent = record.spent(thread.record, tokens)
    out = budget.exceeded(spent)
    if out is not None and isinstance(decision, Next) and payload["index"] < rounds:
        rest = {"status": SUSPENDED, "cause": BUDGET, "reason": out}
        clear: dict[str, Any] = {"intent": None, "attempts": [], "answer": None, "compact": None}
        moved = _move(batch, thread, step.hash, spent=spent, **rest, **clear)
    else:
        moved = _advance(
            batch,
            thread,
            step.hash,
            decision,
            payload["index"],
            rounds,
            spent=spent,
            answer=None,
            compact=None,
        )
    batch.commit()
    return moved


def retry(
    store: Store, thread: Thread, reason: str, failed: Sequence[str] = (), tokens: int = 0
) -> Thread:
    """Begin another try at the step in flight; what the last one called is not its own."""
    intent = thread.record["intent"]
    with store.batch() as batch:
        details = [*_traces(batch, thread, f"failed: {reason}", not failed), *failed]
        return _move(
            batch,
            thread,
            thread.hash,
            intent=record.new_intent(intent["role"], intent["index"], intent["attempt"] + 1),
            attempts=record.add_attempts(thread.record, details),
            spent=record.spent(thread.record, tokens),
            answer=None,
        )


def update_record(store: Store, thread: Thread, **changes: Any) -> Thread:
    """Change the record alone."""
    with store.batch() as batch:
        return _move(batch, thread, thread.hash, **changes)


def add_turn(store: Store, thread: Thread, hash: str) -> Thread:
    """Name a turn of the step in flight, a node that is stored already."""
    with store.batch() as batch:
        keep = partial(content.put, batch, "earlier turns")
        intent = record.with_turn(thread.record["intent"], hash, keep)
        return _move(batch, thread, thread.hash, intent=intent)


def suspend(
    store: Store,
    thread: Thread,
    reason: str,
    failed: Sequence[str] = (),
    cause: str = FAILURE,
    tokens: int = 0,
    question: str | None = None,
) -> Thread:
    """Lay a thread to rest until `resume`. `add_failed_attempt`: details of tries to be remembered;
    `question`: a content node. Only who waits for a called thread, or for the budget, keeps
    those that the step called; what still ran of them rests, too."""
    return retried(lambda: _suspend(store, thread, reason, failed, cause, tokens, question))


def _suspend(
    store: Store,
    thread: Thread,
    reason: str,
    failed: Sequence[str],
    cause: str,
    tokens: int,
    question: str | None,
) -> Thread:
    intent = thread.record["intent"]
    with store.batch() as batch:
        if cause not in (FAILURE, TIMEOUT):
            for below in call_stack.open_children(store, thread):
                _pause(batch, below, thread)
        if intent is not None and cause in (FAILURE, TIMEOUT, UNKNOWN):
            failed = [*_traces(batch, thread, f"failed: {reason}", not failed), *failed]
            kept = intent["calls"] if cause == UNKNOWN else []
            intent = {**record.without_turns(intent), "calls": kept}
        return _move(
            batch,
            thread,
            thread.hash,
            status=SUSPENDED,
            reason=record.truncate_reason(reason),
            cause=cause,
            question=question,
            answer=None,
            intent=intent,
            attempts=record.add_attempts(thread.record, failed),
            spent=record.spent(thread.record, tokens),
        )


def _pause(batch: Batch, thread: Thread, caller: Thread) -> None:
    """Nobody runs a thread whose caller rests."""
    if thread.status == RUNNING:
        rests = {"status": SUSPENDED, "cause": CALLER, "reason": f"thread {caller.id} rests"}
        _move(batch, thread, thread.hash, **rests, spent=record.spent(thread.record, 0))


def add_failed_attempt(store: Store, thread: Thread, detail: str) -> Thread:
    """Remember the detail of a try that failed."""
    return update_record(store, thread, attempts=record.add_attempts(thread.record, [detail]))


def resume(store: Store, thread: Thread, answer: str | None = None) -> Thread:
    """Set a suspended thread running again, and with it the suspended thread that it waits
    for, and the one that waits for it. `answer` is for the human's question among them. What
    its budget allows is allowed anew. Returns the thread that is to be run: the outermost.

    Raises Conflict when it is not suspended, or has no question to be answered, or one that
    was not answered.
    """
    if thread.status != SUSPENDED:
        raise Conflict(f"thread {thread.id} is {thread.status}, not suspended")
    waiting = [
        *call_stack.waiting_callers(store, thread),
        thread,
        *call_stack.awaited_children(store, thread),
    ]
    asks = waiting[-1].record.get("cause") == HUMAN
    if asks and answer is None:
        reason = waiting[-1].record["reason"]
        raise Conflict(f"thread {thread.id} waits for an answer ({reason}); give it by --input")
    if answer is not None and not asks:
        raise Conflict(f"thread {thread.id} has asked nothing; resume it without an input")
    with store.batch() as batch:
        said = None
        if answer is not None:
            said = content.put(batch, answer)
        moved = [_resumed(batch, one, said if one is waiting[-1] else None) for one in waiting]
    return moved[0]


def cancel(store: Store, thread: Thread) -> Thread:
    """End a thread with return code 130, and every thread that it called and that has not
    ended. Raises Conflict when it has ended already."""
    if thread.status not in (RUNNING, SUSPENDED):
        raise Conflict(f"thread {thread.id} is {thread.status} already")
    with store.batch() as batch:
        for below in call_stack.open_children(store, thread):
            _end(batch, below, threads.last_step(store, below), _stopped(thread), CANCELLED)
        last = threads.last_step(store, thread)
        return _end(batch, thread, last, End(RETURN_CANCELLED, "cancelled"), CANCELLED)


def compact(store: Store, thread: Thread, summary: str, head: str) -> Thread:
    """Let a content node stand for all steps up to `head`; the next step says so. Raises
    Conflict where the thread has gone on, or has ended."""
    if thread.status in (ENDED, CANCELLED):
        raise Conflict(f"thread {thread.id} is {thread.status}; no step comes after it")
    if thread.hash != head:
        raise Conflict(f"thread {thread.id} went on while it was summarised; try again")
    return update_record(store, thread, compact=summary)


def _resumed(batch: Batch, thread: Thread, answer: str | None) -> Thread:
    intent, cause = thread.record["intent"], thread.record.get("cause")
    changes: dict[str, Any] = {"status": RUNNING, "reason": None, "cause": None, "answer": answer}
    if intent is not None:
        changes["intent"] = {**intent, "resumed": True}
    if cause == BUDGET:
        changes["spent"] = {"tokens": 0, "wallMs": 0}
    return _move(batch, thread, thread.hash, **changes)


def _advance(
    batch: Batch,
    thread: Thread,
    hash: str,
    decision: Decision,
    done: int,
    rounds: int,
    attempt: int = 1,
    **changes: Any,
) -> Thread:
    """Move the head to `hash`, the newest of `done` steps, and to what was decided there."""
    if isinstance(decision, Next) and done >= rounds:
        decision = End(RETURN_MAX_ROUNDS, f"stopped after {done} steps, which is maxRounds")
    if isinstance(decision, End):
        return _end(batch, thread, hash if done else None, decision, ENDED, **changes)
    if isinstance(decision, RuleFailed):
        rest = {
            "status": SUSPENDED,
            "reason": record.truncate_reason(decision.reason),
            "cause": RULE,
        }
        return _move(batch, thread, hash, **rest, intent=None, attempts=[], **changes)
    broken = thread.record["intent"] if attempt > 1 else None
    intent = record.new_intent(decision.role, done + 1, attempt, broken["calls"] if broken else ())
    attempts: list[str] = []
    if broken:
        traces = _traces(batch, thread, "was broken off", not broken.get("resumed"))
        attempts = record.add_attempts(thread.record, traces)
    return _move(batch, thread, hash, intent=intent, attempts=attempts, question=None, **changes)


def _traces(batch: Batch, thread: Thread, how: str, alone: bool) -> Sequence[str]:
    """What a try that is over has left besides a detail: the turns that were noted; where it has
    left nothing else (`alone`), how it ended."""
    intent = thread.record["intent"]
    if not intent or not (alone or intent["turns"]):
        return ()
    text = f"attempt {intent['attempt']} of {intent['role']} {record.truncate_reason(how)}"
    return (content.put(batch, text, record.all_turns(intent)),)


def _stopped(thread: Thread) -> End:
    return End(RETURN_CANCELLED, f"cancelled with thread {thread.id}")


def _end(
    batch: Batch, thread: Thread, last: str | None, end: End, status: str, **changes: Any
) -> Thread:
    payload = {
        "returnCode": end.return_code,
        "summary": end.summary,
        "start": thread.record["start"],
        "lastStep": last,
        "completedAt": now(),
    }
    node = batch.put_node("thread-end", payload)
    rest = {"reason": None, "cause": None, "question": None, "answer": None, "compact": None}
    return _move(
        batch,
        thread,
        node.hash,
        **{**rest, **changes},
        status=status,
        intent=None,
        attempts=[],
        updatedAt=payload["completedAt"],
        returnCode=end.return_code,
    )


def _move(batch: Batch, thread: Thread, hash: str, **changes: Any) -> Thread:
    fresh = {**thread.record, "updatedAt": now(), **changes}
    return Thread(thread.id, batch.move(thread.name, thread.head, hash, fresh))
