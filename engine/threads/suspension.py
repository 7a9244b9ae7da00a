"""Suspending and resuming threads, together with their callers and children.

A caller whose child is suspended waits for it and is suspended too; children that still run when
their caller is suspended are suspended with it. Each function is one transaction, by the rules of
`engine.threads.transitions`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from casfs.agents import HUMAN
from casfs.errors import Conflict
from casfs.store.conflict_retry import retry_on_conflict
from casfs.store.store import Store
from casfs.store.write_batch import Batch
from casfs.system.clock import now_ms
from casfs.threads import sessions, threads
from casfs.threads.state import says
from casfs.threads.threads import RUNNING, SUSPENDED, Thread, ThreadId
from casfs.trees.recorded_state import FIELDS, RecordedState
from engine import content
from engine.agents import human
from engine.output.parser import extract, role_schema
from engine.threads import agent_binding, call_stack, record, trust
from engine.threads.agent_binding import NO_BINDINGS, Binding
from engine.threads.record import BUDGET, CALLER, FAILURE, ROUNDS, TIMEOUT, UNKNOWN
from engine.threads.transitions import attempt_entry, move_head, paused_intent
from engine.workflow import registry as workflows

if TYPE_CHECKING:
    from casfs.payloads import Intent, Spent


@dataclass(frozen=True)
class Suspension:
    """Why a thread is suspended, and what its attempt leaves. `failed`: details of failed attempts
    to record; `tokens`: spent by the attempt; `question`: a content node; `state`: of the
    directory with which the next attempt begins; `by_person`: a pause, after which the attempt
    goes on."""

    reason: str
    cause: str = FAILURE
    failed: Sequence[str] = ()
    tokens: int = 0
    question: str | None = None
    state: RecordedState | None = None
    by_person: bool = False


def suspend(store: Store, thread: Thread, why: Suspension) -> Thread:
    """Suspends a thread until `resume`. Children that still run are suspended too, except after
    FAILURE and TIMEOUT; of a failed step only the finished ones stay. Retries on conflict."""

    def suspend_once() -> Thread:
        with store.batch() as batch:
            # After a failure the run has already cancelled the children.
            if why.cause not in (FAILURE, TIMEOUT):
                for child in call_stack.open_children(store, thread):
                    _pause(batch, child, thread)
            intent = thread.pending
            entries = why.failed
            if intent is not None:
                intent, entries = _suspended_intent(store, batch, thread, why)
            changes: dict[str, Any] = {"status": SUSPENDED, "cause": why.cause, "intent": intent}
            changes |= {"reason": record.truncate_reason(why.reason), "question": why.question}
            changes["attempts"] = record.add_attempts(thread.record, entries)
            changes["spent"] = record.spent(thread.record, why.tokens)
            return move_head(batch, thread, thread.hash, **changes, answer=None)

    # For the children, which may move meanwhile and are read anew. Where the thread itself has
    # moved, each try is in conflict, and the caller learns it.
    return retry_on_conflict(suspend_once)


def _suspended_intent(
    store: Store, batch: Batch, thread: Thread, why: Suspension
) -> tuple[Intent, Sequence[str]]:
    """Returns the pending step of a thread as its suspension leaves it, and the new entries for
    `attempts`."""
    intent = thread.intent
    entries = why.failed
    # A pause by a person does not end the attempt, nor does a spent budget that has a detail: it
    # goes on later, so what its program has left is no entry.
    if why.by_person or (why.cause == BUDGET and why.failed):
        intent = paused_intent(batch, intent, why.failed)
        entries = ()
    elif why.cause in (FAILURE, TIMEOUT, UNKNOWN):
        how = f"failed: {why.reason}"
        entries = attempt_entry(batch, thread, how=how, details=why.failed)
        intent = _failed_intent(store, thread, why.cause)
    if why.state is not None:
        # `state_fields` omits None values, so old ones must be removed first.
        other_fields = {key: field for key, field in intent.items() if key not in FIELDS}
        intent = record.changed(other_fields, **record.state_fields(why.state))
    return intent, entries


def _failed_intent(store: Store, thread: Thread, cause: str) -> Intent:
    """Returns the pending step after a failed attempt, whose turns are recorded elsewhere."""
    intent = thread.intent
    # Nobody has ended the children of an attempt that ended with the daemon: an equal call of the
    # next attempt goes on with them.
    calls = intent["calls"] if cause == UNKNOWN else call_stack.finished_children(store, thread)
    return record.changed(record.without_turns(intent), calls=calls)


def _pause(batch: Batch, thread: Thread, caller: Thread) -> None:
    """Suspends a running child of a suspended caller: no task runs it."""
    if thread.status == RUNNING:
        reason = f"thread {caller.id} is suspended"
        spent = record.spent(thread.record, 0)
        # Its intent stays as it is until `_resume` has the attempt go on.
        changes = {"status": SUSPENDED, "cause": CALLER, "reason": reason}
        move_head(batch, thread, thread.hash, **changes, spent=spent)


def resume(
    store: Store,
    thread: Thread,
    answer: str | None = None,
    hint: str | None = None,
    check: bool = False,
    agents: Mapping[str, Binding] = NO_BINDINGS,
) -> Thread:
    """Sets a suspended thread running, with the callers that wait for it and the children that
    it waits for. `answer`: to the human's question among them. A spent budget, and
    a step limit, are granted anew.
    Returns the outermost thread, which is the one to run.

    `hint`: text for the next attempt at a step; `check`: refuse an answer that does not fit;
    `agents`: agents that play their roles in this thread from now on.

    Raises Invalid for such an answer, Refused as `trust.check`, Conflict where it is not suspended,
    has no question for an answer, or an open question and no answer.
    """
    if thread.status != SUSPENDED:
        raise Conflict(f"thread {thread.id} {says(thread)}, not suspended")
    sessions.refuse(thread)
    # The whole stack, wherever in it a person asks: a caller would wait for a child that nobody
    # runs, and the question is the innermost thread's.
    callers = call_stack.waiting_callers(store, thread)
    children = call_stack.awaited_children(store, thread)
    resumed = [*callers, thread, *children]
    innermost = resumed[-1]
    trust.check(store, resumed)
    asks = innermost.record.get("cause") == HUMAN
    if asks and innermost is thread and thread.intent["role"] in agents:
        asks = False  # another agent takes the place of the one that asked
    if asks and answer is None:
        reason = innermost.record["reason"]
        raise Conflict(f"thread {thread.id} waits for an answer ({reason}); give it by --input")
    if answer is not None and not asks:
        raise Conflict(f"thread {thread.id} has asked nothing; resume it without an input")
    if hint is not None and (asks or innermost.pending is None):
        raise Conflict(f"thread {thread.id} has no failed step that a hint is for")
    if answer is not None and check:
        _check_answer(store, innermost, answer)
    kept = threads.agents(store, thread) if agents else {}
    agent_binding.check_replacements(thread, kept, agents)
    moved: list[Thread] = []
    with store.batch() as batch:
        changes: dict[ThreadId, dict[str, Any]] = {member.id: {} for member in resumed}
        if agents:
            changes[thread.id]["agents"] = agent_binding.put_replaced(batch, kept, agents)
        for name, text in (("answer", answer), ("hint", hint)):
            if text is not None:
                changes[innermost.id][name] = content.put(batch, text)
        for member in resumed:
            replaced = agents if member is thread else NO_BINDINGS
            moved.append(_resume(store, batch, member, changes[member.id], replaced))
    # Callees run in the task of their caller.
    return moved[0]


def _resume(
    store: Store,
    batch: Batch,
    thread: Thread,
    fields: Mapping[str, Any],
    replaced: Collection[str],
) -> Thread:
    """Sets one thread running. `fields`: of its record; `replaced`: roles with another agent.
    A failed step is run again and its calls are made anew, unless another agent plays its role,
    which begins with nothing of what that one kept."""
    intent = thread.pending
    cause = thread.record.get("cause")
    changes: dict[str, Any] = {"status": RUNNING, "reason": None, "cause": None}
    # An earlier answer is for an earlier question; a new one is in `fields`.
    changes |= {"answer": None, **fields}
    if intent is not None:
        is_replaced = intent["role"] in replaced
        if is_replaced:
            kept = {key: field for key, field in intent.items() if key not in record.KEPT}
            intent = record.changed(kept)
        is_repeated = cause in (FAILURE, TIMEOUT) and not is_replaced
        # For these causes the suspension has recorded what the attempt left. Any other attempt goes
        # on, and what it left is paused with it.
        if cause not in (FAILURE, TIMEOUT, UNKNOWN):
            intent = paused_intent(batch, intent)
        # The same agent would fail again with the same results of its calls; another one, such as
        # the same with its config mended, gets those that finished.
        calls = [] if is_repeated else intent["calls"]
        changes["intent"] = record.changed(intent, resumed=True, calls=calls)
    # The thread-start, which has the limits, cannot change: the budget counts from zero again, and
    # the record gets a higher step limit.
    if cause == BUDGET:
        changes["spent"] = {"tokens": 0, "wallMs": 0}
    if cause == ROUNDS:
        start = threads.start(store, thread).payload
        changes["rounds"] = record.step_limit(thread.record, start) + start["maxRounds"]
    return move_head(batch, thread, thread.hash, **changes)


@dataclass(frozen=True)
class Wait:
    """An agent waits for a person since `asked_ms`; `spent`: by its thread before the attempt."""

    asked_ms: int
    spent: Spent


def go_on(store: Store, thread: Thread, wait: Wait, answer: str | None) -> Thread:
    """Sets a suspended thread running whose agent has waited for a person: the attempt goes on.
    `answer`: None where the agent has gone on without one."""
    with store.batch() as batch:
        changes: dict[str, Any] = {"status": RUNNING, "reason": None, "cause": None}
        # A crash may come before the agent has kept it: it is for the next attempt then.
        changes["answer"] = None if answer is None else content.put(batch, answer)
        # All of the attempt counts when it ends, but the time in which it waited.
        waited_ms = thread.intent.get("waitedMs", 0) + max(0, now_ms() - wait.asked_ms)
        changes["intent"] = record.changed(thread.intent, waitedMs=waited_ms)
        return move_head(batch, thread, thread.hash, **changes, spent=wait.spent)


def _check_answer(store: Store, thread: Thread, answer: str) -> None:
    """Raises Invalid for an answer to the human agent, whose output it is, without its meta."""
    role = thread.intent["role"]
    agent = store.node(threads.agents(store, thread)[role], "agent").payload
    # What other agents ask for is an answer to them, not their output.
    if agent["package"] == "human":
        flow = workflows.load(store, threads.workflow(store, thread))
        extract(human.as_output(answer), role_schema(flow.roles[role].schema), store)
