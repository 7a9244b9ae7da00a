"""The only writer of threads that exist: every move of a thread's head is in this module
(`engine.threads.origin` makes threads, by the same rules).

Each function is one transaction. Nodes and the head that leads to them are published
together, so a thread is at any instant exactly what its head says; a head that somebody
else has moved is a Conflict and never overwritten (see `casfs.threads` for the record).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from casfs import threads
from casfs.batch import Batch
from casfs.errors import Conflict
from casfs.store import Store
from casfs.threads import CANCELLED, ENDED, RUNNING, SUSPENDED, Thread
from engine.agents import CHILD, HUMAN
from engine.moderator import Decision, End, Next, Stuck
from engine.threads import record
from engine.threads.record import BUDGET, FAILURE, RULE, TIMEOUT, UNLIMITED, Budget, now

OUT_OF_ROUNDS, STOPPED = 2, 130


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


def retry(store: Store, thread: Thread, failed: Sequence[str] = (), tokens: int = 0) -> Thread:
    """Begin another try at the step in flight; what the last one called is not its own."""
    intent = thread.record["intent"]
    with store.batch() as batch:
        details = [*_traces(batch, thread, "failed"), *failed]
        return _move(
            batch,
            thread,
            thread.hash,
            intent=record.intent(intent["role"], intent["index"], intent["attempt"] + 1),
            attempts=record.remembered(thread.record, details),
            spent=record.spent(thread.record, tokens),
            answer=None,
        )


def note(store: Store, thread: Thread, **changes: Any) -> Thread:
    """Change the record alone."""
    with store.batch() as batch:
        return _move(batch, thread, thread.hash, **changes)


def turn(store: Store, thread: Thread, hash: str) -> Thread:
    """Name a turn of the step in flight, a node that is stored already."""
    return note(store, thread, intent=record.with_turn(thread.record["intent"], hash))


def suspend(
    store: Store,
    thread: Thread,
    reason: str,
    failed: Sequence[str] = (),
    cause: str = FAILURE,
    tokens: int = 0,
    question: str | None = None,
) -> Thread:
    """Lay a thread to rest until `resume`. `failed`: details of tries to be remembered;
    `question`: a content node. Only who waits for a called thread, or for the budget, keeps
    those that the step called."""
    intent = thread.record["intent"]
    with store.batch() as batch:
        if intent is not None and cause in (FAILURE, TIMEOUT):
            failed = [*_traces(batch, thread, cause), *failed]
            intent = {**intent, "calls": [], "turns": [], "turnCount": 0}
        return _move(
            batch,
            thread,
            thread.hash,
            status=SUSPENDED,
            reason=record.short(reason),
            cause=cause,
            question=question,
            answer=None,
            intent=intent,
            attempts=record.remembered(thread.record, failed),
            spent=record.spent(thread.record, tokens),
        )


def failed(store: Store, thread: Thread, detail: str) -> Thread:
    """Remember the detail of a try that failed."""
    return note(store, thread, attempts=record.remembered(thread.record, [detail]))


def resume(store: Store, thread: Thread, answer: str | None = None) -> Thread:
    """Set a suspended thread running again, and with it the suspended thread that it waits
    for, and the one that waits for it. `answer` is for the human's question among them. What
    its budget allows is allowed anew. Returns the thread that is to be run: the outermost.

    Raises Conflict when it is not suspended, or has no question to be answered, or one that
    was not answered.
    """
    if thread.status != SUSPENDED:
        raise Conflict(f"thread {thread.id} is {thread.status}, not suspended")
    waiting = [*_callers(store, thread), thread, *_awaited(store, thread)]
    asks = waiting[-1].record.get("cause") == HUMAN
    if asks and answer is None:
        reason = waiting[-1].record["reason"]
        raise Conflict(f"thread {thread.id} waits for an answer ({reason}); give it by --input")
    if answer is not None and not asks:
        raise Conflict(f"thread {thread.id} has asked nothing; resume it without an input")
    with store.batch() as batch:
        said = None
        if answer is not None:
            said = batch.put_node("content", {"text": answer, "artifacts": []}).hash
        moved = [_resumed(batch, one, said if one is waiting[-1] else None) for one in waiting]
    return moved[0]


def cancel(store: Store, thread: Thread) -> Thread:
    """End a thread with return code 130, and every thread that it called and that has not
    ended. Raises Conflict when it has ended already."""
    if thread.status not in (RUNNING, SUSPENDED):
        raise Conflict(f"thread {thread.id} is {thread.status} already")
    with store.batch() as batch:
        for below in called(store, thread):
            _end(batch, below, threads.last_step(store, below), _stopped(thread), CANCELLED)
        last = threads.last_step(store, thread)
        return _end(batch, thread, last, End(STOPPED, "cancelled"), CANCELLED)


def compact(store: Store, thread: Thread, summary: str, head: str) -> Thread:
    """Let a content node stand for all steps up to `head`; the next step says so. Raises
    Conflict where the thread has gone on, or has ended."""
    if thread.status in (ENDED, CANCELLED):
        raise Conflict(f"thread {thread.id} is {thread.status}; no step comes after it")
    if thread.hash != head:
        raise Conflict(f"thread {thread.id} went on while it was summarised; try again")
    return note(store, thread, compact=summary)


def called(store: Store, thread: Thread) -> list[Thread]:
    """The threads that the step in flight called and that have not ended, and theirs."""
    found: list[Thread] = []
    for id in (thread.record.get("intent") or {}).get("calls", ()):
        child = threads.get(store, id)
        if child.status in (RUNNING, SUSPENDED):
            found += [child, *called(store, child)]
    return found


def _callers(store: Store, thread: Thread) -> list[Thread]:
    """Those that rest only because this one does, outermost first."""
    above = thread.record.get("parent")
    if above is None or store.heads.get(threads.HEADS + above) is None:
        return []
    parent = threads.get(store, above)
    intent = parent.record["intent"]
    waits = parent.status == SUSPENDED and parent.record.get("cause") == CHILD
    if not waits or intent is None or thread.id not in intent["calls"]:
        return []
    return [*_callers(store, parent), parent]


def _awaited(store: Store, thread: Thread) -> list[Thread]:
    """The suspended threads that this one waits for; the innermost last."""
    if thread.record.get("cause") != CHILD:
        return []
    for id in (thread.record["intent"] or {}).get("calls", ()):
        child = threads.get(store, id)
        if child.status == SUSPENDED:
            return [child, *_awaited(store, child)]
    return []


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
        decision = End(OUT_OF_ROUNDS, f"stopped after {done} steps, which is maxRounds")
    if isinstance(decision, End):
        return _end(batch, thread, hash if done else None, decision, ENDED, **changes)
    if isinstance(decision, Stuck):
        rest = {"status": SUSPENDED, "reason": record.short(decision.reason), "cause": RULE}
        return _move(batch, thread, hash, **rest, intent=None, attempts=[], **changes)
    broken = thread.record["intent"] if attempt > 1 else None
    intent = record.intent(decision.role, done + 1, attempt, broken["calls"] if broken else ())
    attempts = (
        []
        if attempt == 1
        else record.remembered(thread.record, _traces(batch, thread, "broken off"))
    )
    return _move(batch, thread, hash, intent=intent, attempts=attempts, question=None, **changes)


def _traces(batch: Batch, thread: Thread, how: str) -> Sequence[str]:
    """What a try that is over has left besides a detail: the turns that were noted."""
    intent = thread.record["intent"]
    if not intent or not intent["turns"]:
        return ()
    text = f"attempt {intent['attempt']} of {intent['role']} {how}; its last turns"
    return (batch.put_node("content", {"text": text, "artifacts": intent["turns"]}).hash,)


def _stopped(thread: Thread) -> End:
    return End(STOPPED, f"cancelled with thread {thread.id}")


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
