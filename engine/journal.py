"""The only writer of threads: every move of a thread's head is in this module.

Each function is one transaction. Nodes and the head that leads to them are published
together, so a thread is at any instant exactly what its head says; a head that somebody
else has moved is a Conflict and never overwritten (see `casfs.threads` for the record).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from casfs import threads
from casfs.backend import Head
from casfs.batch import Batch
from casfs.errors import Conflict, Invalid, NotFound
from casfs.store import Store
from casfs.threads import CANCELLED, ENDED, RUNNING, SUSPENDED, Thread
from engine import binding, catalog
from engine.binding import Binding
from engine.moderator import Decision, End, Next, Stuck

MAX_ROUNDS = 100
MAX_REASON = 500  # characters, so that a record stays below its 4 KiB
MAX_ATTEMPTS = 20
OUT_OF_ROUNDS, STOPPED = 2, 130
Intent = dict[str, Any]
NO_OTHERS: Mapping[str, Binding] = {}


@dataclass(frozen=True)
class Request:
    """What a new thread is to do. `workflow`: a workflow node; `workspace`: a tree or None."""

    workflow: str
    input: str
    agents: Mapping[str, Binding]
    workspace: str | None = None
    max_rounds: int = MAX_ROUNDS


def create(store: Store, request: Request) -> Thread:
    """Store a thread-start and the head of a new thread; nothing runs yet.

    Raises Invalid for a role without an agent, an agent without a role or a config that
    does not fit; NotFound for an agent that is not installed. Nothing is stored then.
    """
    workflow = catalog.load(store, request.workflow)
    _check_roles(workflow, request.agents)
    packages = binding.resolve(request.agents)
    thread_id = threads.new_id()
    with store.batch() as batch:
        bound = binding.put(batch, packages, request.agents)
        text = batch.put_node("content", {"text": request.input, "artifacts": []})
        start = batch.put_node("thread-start", _start_payload(request, text.hash, bound))
        head = Head(start.hash, _first_record(start.hash, workflow.name))
        batch.swap(threads.HEADS + thread_id, None, head)
    return Thread(thread_id, head)


def fork(
    store: Store,
    thread: Thread,
    at: int | None = None,
    others: Mapping[str, Binding] = NO_OTHERS,
) -> Thread:
    """A new thread that goes on from step `at` of this one (0: from its start; None: from its
    last step), with that step's workspace. No node is copied. `others` play their roles from
    there on, the rest is played by whom it was.

    Raises NotFound where there is no such step, and for `others` as `create`.
    """
    found = threads.steps(store, thread)
    place = len(found) if at is None else at
    if not 0 <= place <= len(found):
        raise NotFound(f"thread {thread.id} has no step {place}; it has {len(found)}")
    origin: str = found[place - 1].hash if place else thread.record["start"]
    record = _first_record(thread.record["start"], thread.record["workflow"])
    record["fork"] = {"thread": thread.id, "step": place}
    record["agents"] = thread.record.get("agents")
    bound = dict(threads.agents(store, thread))
    if unknown := sorted(others.keys() - bound.keys()):
        roles = ", ".join(bound)
        raise Invalid(f"thread {thread.id}: no role {unknown[0]!r}; it has {roles}")
    packages = binding.resolve(others)
    with store.batch() as batch:
        if others:
            bound |= binding.put(batch, packages, others)
            record["agents"] = batch.put_node("thread-agents", {"agents": bound}).hash
        made = Thread(threads.new_id(), Head(origin, record))
        batch.swap(made.name, None, made.head)
    return made


def resume(store: Store, thread: Thread) -> Thread:
    """Set a suspended thread running again. Raises Conflict when it is not suspended."""
    if thread.status != SUSPENDED:
        raise Conflict(f"thread {thread.id} is {thread.status}, not suspended")
    return note(store, thread, status=RUNNING, reason=None)


def cancel(store: Store, thread: Thread) -> Thread:
    """End a thread with return code 130. Raises Conflict when it has ended already."""
    if thread.status not in (RUNNING, SUSPENDED):
        raise Conflict(f"thread {thread.id} is {thread.status} already")
    with store.batch() as batch:
        last = threads.last_step(store, thread)
        return _end(batch, thread, last, End(STOPPED, "cancelled"), CANCELLED)


def begin(
    store: Store, thread: Thread, decision: Decision, done: int, rounds: int, attempt: int
) -> Thread:
    """Make a decision durable while no step is in flight: the next intent, or the end."""
    with store.batch() as batch:
        return _advance(batch, thread, thread.hash, decision, done, rounds, attempt)


def commit_step(
    batch: Batch, thread: Thread, payload: Mapping[str, Any], decision: Decision, rounds: int
) -> Thread:
    """Publish a finished step and what was decided after it; commits `batch`."""
    step = batch.put_node("thread-step", payload)
    moved = _advance(batch, thread, step.hash, decision, payload["index"], rounds)
    batch.commit()
    return moved


def note(store: Store, thread: Thread, **changes: Any) -> Thread:
    """Change the record alone."""
    with store.batch() as batch:
        return _move(batch, thread, thread.hash, **changes)


def suspend(store: Store, thread: Thread, reason: str, failed: Sequence[str] = ()) -> Thread:
    """Lay a thread to rest until `resume`. `failed`: details of tries to be remembered."""
    return note(
        store,
        thread,
        status=SUSPENDED,
        reason=_short(reason),
        attempts=_remembered(thread, failed),
    )


def failed(store: Store, thread: Thread, detail: str) -> Thread:
    """Remember the detail of a try that failed."""
    return note(store, thread, attempts=_remembered(thread, [detail]))


def _advance(
    batch: Batch,
    thread: Thread,
    hash: str,
    decision: Decision,
    done: int,
    rounds: int,
    attempt: int = 1,
) -> Thread:
    """Move the head to `hash`, the newest of `done` steps, and to what was decided there."""
    if isinstance(decision, Next) and done >= rounds:
        decision = End(OUT_OF_ROUNDS, f"stopped after {done} steps, which is maxRounds")
    if isinstance(decision, End):
        return _end(batch, thread, hash if done else None, decision, ENDED)
    if isinstance(decision, Stuck):
        rest = {"status": SUSPENDED, "reason": _short(decision.reason)}
        return _move(batch, thread, hash, **rest, intent=None, attempts=[])
    intent = _intent(decision.role, done + 1, attempt)
    attempts = thread.record["attempts"] if attempt > 1 else []
    return _move(batch, thread, hash, intent=intent, attempts=attempts)


def _end(batch: Batch, thread: Thread, last: str | None, end: End, status: str) -> Thread:
    payload = {
        "returnCode": end.return_code,
        "summary": end.summary,
        "start": thread.record["start"],
        "lastStep": last,
        "completedAt": now(),
    }
    node = batch.put_node("thread-end", payload)
    return _move(
        batch,
        thread,
        node.hash,
        status=status,
        reason=None,
        intent=None,
        attempts=[],
        updatedAt=payload["completedAt"],
        returnCode=end.return_code,
    )


def _move(batch: Batch, thread: Thread, hash: str, **changes: Any) -> Thread:
    record = {**thread.record, "updatedAt": now(), **changes}
    return Thread(thread.id, batch.move(thread.name, thread.head, hash, record))


def _short(reason: str) -> str:
    """One printable line that fits a record; an agent's stderr may hold anything."""
    return "".join(c if c.isprintable() else " " for c in reason)[:MAX_REASON]


def _remembered(thread: Thread, failed: Sequence[str]) -> list[str]:
    return [*thread.record["attempts"], *failed][-MAX_ATTEMPTS:]


def _check_roles(workflow: catalog.Workflow, bound: Mapping[str, Binding]) -> None:
    without = sorted(workflow.roles.keys() - bound.keys())
    if without:
        roles = ", ".join(without)
        raise Invalid(f"workflow {workflow.name}: no agent for {roles}; give --agent ROLE=NAME")
    unknown = sorted(bound.keys() - workflow.roles.keys())
    if unknown:
        roles = ", ".join(workflow.roles)
        raise Invalid(f"workflow {workflow.name}: no role {unknown[0]!r}; it has {roles}")


def _start_payload(request: Request, input: str, bound: dict[str, str]) -> dict[str, Any]:
    return {
        "workflow": request.workflow,
        "input": input,
        "depth": 0,
        "parentState": None,
        "agents": bound,
        "workspace": request.workspace,
        "maxRounds": request.max_rounds,
        "budget": None,
    }


def _first_record(start: str, workflow: str) -> dict[str, Any]:
    return {
        "status": RUNNING,
        "start": start,
        "workflow": workflow,
        "updatedAt": now(),
        "reason": None,
        "intent": None,
        "attempts": [],
        "parent": None,
        "children": [],
        "fork": None,
        "agents": None,
    }


def _intent(role: str, index: int, attempt: int) -> Intent:
    """`run` is the token by which the processes of this try are found again."""
    return {
        "role": role,
        "index": index,
        "attempt": attempt,
        "since": now(),
        "run": secrets.token_hex(16),
        "pid": None,
        "pidStart": None,
    }


def now() -> int:
    """Milliseconds since 1970 UTC."""
    return time.time_ns() // 1_000_000
