"""A session of an outside agent as a thread: a prompt is a step, a tool call a turn.

Its thread-start says which session it is (`session`), and its head is found by the key of that. No
daemon runs it: its record is `suspended` for the cause `session`, also while the agent works on a
prompt, which is then the pending step. In the record, `session` holds

    pid     of the agent, `pidStart`, when that process started, `boot` and `host`, where
    fault   why its directory is not recorded, or absent
    identity  of its directory (`casfs.directories.identity`), where that was there
    event   the last event of the spool that is recorded
    ended   true where the agent has ended since
    open    the tool calls that run: the id of each, and the turn as it stood when it began
    transcriptBytes  up to which byte the transcript is recorded
    subagents        the same of the transcripts of its subagents, by their names
    id, transcript  where they are not those of the thread-start: of a session that goes on from
            a point of another one

Each function is one transaction, by the rules of `engine.threads.transitions`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from casfs.agents.secrets import put_work
from casfs.attach import spool
from casfs.backend.protocols import Head
from casfs.digest import NodeHash, hash_bytes
from casfs.directories import projects
from casfs.directories.identity import Identity
from casfs.errors import NotFound
from casfs.sessions import session_steps
from casfs.store import local_trees
from casfs.store.local_trees import LocalTree
from casfs.store.nodes import head_kinds
from casfs.store.store import Store
from casfs.store.write_batch import Batch
from casfs.system.clock import now_ms
from casfs.system.processes import start_time
from casfs.threads import sessions, threads
from casfs.threads.threads import SESSION, SUSPENDED, Thread
from casfs.trees import recorded_state
from casfs.trees.diff import unified_diff
from casfs.trees.recorded_state import RecordedState
from engine import content
from engine.sessions import session_turns, subagents
from engine.sessions.boundary import Boundary
from engine.sessions.events import Kind, SessionEvent
from engine.sessions.subagents import SubagentPart
from engine.sessions.transcript_reader import TranscriptPart
from engine.threads import lifecycle, record
from engine.threads.transitions import move_head

if TYPE_CHECKING:
    from casfs.payloads import Spent

MAX_OPEN_CALLS = 8  # that the record names; of more, the oldest is taken for over
NO_STEP = "(the session goes on by itself)"


def find(store: Store, event: SessionEvent) -> Thread | None:
    """Returns the thread of a session; None before its first prompt."""
    head = head_kinds.get(store.heads, lifecycle.key_name(_key(event)))
    if head is None:
        return None
    try:
        return threads.get(store, head.record["thread"])
    except NotFound:  # a person has removed it: what comes now is another thread
        return None


def create(store: Store, event: SessionEvent, boundary: Boundary, directory: Path) -> Thread:
    """Stores the thread of a session that has been given its first prompt. `directory`: which is
    recorded with it."""
    old = store.heads.get(lifecycle.key_name(_key(event)))
    with store.batch() as batch:
        workflow, agent = _put_workflow(batch, event.agent)
        session: dict[str, Any] = {"agent": event.agent, "id": event.session}
        session |= {"directory": str(directory), "transcript": event.transcript}
        payload = {
            "workflow": workflow,
            "input": content.put(batch, event.text or NO_STEP),
            "depth": 0,
            "parentState": None,
            "agents": {event.agent: agent},
            "workspace": None if boundary.state is None else boundary.state.tree,
            "maxRounds": lifecycle.MAX_STEPS,
            "budget": None,
            "session": {name: value for name, value in session.items() if value is not None},
        }
        start = recorded_state.put_node(
            batch, "thread-start", payload=payload, state=boundary.state
        ).hash
        created = lifecycle.new_thread(
            start,
            event.agent,
            key=_key(event),
            status=SUSPENDED,
            cause=SESSION,
            reason=_reason(event),
            session={**_process(event), **_identity(directory)},
            **projects.project_of(directory).fields,
        )
        batch.swap(created.name, None, created.head)
        batch.swap(lifecycle.key_name(_key(event)), old, Head(start, {"thread": created.id}))
    return created


def _identity(directory: Path) -> dict[str, str]:
    try:
        return {"identity": str(Identity.at(directory))}
    except OSError:
        return {}


def begin_step(
    store: Store, thread: Thread, event: SessionEvent, boundary: Boundary, name: str
) -> Thread:
    """Begins the step of a prompt. `name`: of the event."""
    with store.batch() as batch:
        index = threads.length(store, thread) + 1
        intent: dict[str, Any] = {**record.new_intent(event.agent, index, 1)}
        intent |= {"since": event.reported_ms, "run": None}
        turn = {**session_turns.turn_fields(event, boundary), "output": content.put(batch, "")}
        turn["input"] = content.put(batch, event.text)
        intent["prompt"] = recorded_state.put_turn(batch, turn).hash
        if event.id is not None:
            intent["promptId"] = event.id
        session = _with_fault(_updated(thread, event, name), boundary)
        changes: dict[str, Any] = {"intent": intent, "session": session}
        if thread.is_archived:
            changes[threads.ARCHIVED] = False
        return move_head(batch, thread, thread.hash, **changes)


def begin_call(
    store: Store, thread: Thread, event: SessionEvent, boundary: Boundary, name: str
) -> Thread:
    """Records that a tool is about to run, with the directory before it."""
    assert event.call is not None
    with store.batch() as batch:
        payload = session_turns.call_turn(
            batch, event, event.call, before=None, boundary=boundary, result=None
        )
        begun = recorded_state.put_turn(batch, payload).hash
        session = _updated(thread, event, name)
        is_known = event.call.id in session["open"]
        changes: dict[str, Any] = {"session": session}
        if not is_known and len(session["open"]) >= MAX_OPEN_CALLS:
            lost = session["open"].pop(next(iter(session["open"])))
            changes["intent"] = _with_turn(batch, thread, lost)
        session["open"][event.call.id] = begun
        return move_head(batch, thread, thread.hash, **changes)


def end_call(
    store: Store, thread: Thread, event: SessionEvent, boundary: Boundary, name: str
) -> Thread:
    """Records the result of a tool as a turn, with the directory after it."""
    assert event.call is not None
    assert event.result is not None
    session = _updated(thread, event, name)
    begun = session["open"].pop(event.call.id, None)
    if begun is None and event.call.writes:
        # Without its beginning the state is only that after it.
        boundary = replace(boundary, is_unseen=True)
    with store.batch() as batch:
        payload = session_turns.call_turn(
            batch, event, event.call, before=begun, boundary=boundary, result=event.result
        )
        if begun is not None and boundary.state is not None:
            payload["before"] = store.node(begun, "react-turn").payload.get("workspace")
        turn = recorded_state.put_turn(batch, payload).hash
        intent = _with_turn(batch, thread, turn)
        return move_head(batch, thread, thread.hash, intent=intent, session=session)


def end_interrupted(
    store: Store, thread: Thread, event: SessionEvent, boundary: Boundary
) -> Thread:
    """Records the calls that are over without a report as turns, with the directory as it is."""
    session = _updated(thread, event, thread.record["session"]["event"])
    intent = thread.intent
    with store.batch() as batch:
        for call in boundary.interrupted:
            begun = session["open"].pop(call.id, None)
            if begun is not None:
                payload = session_turns.interrupted_turn(
                    store, batch, begun, event, boundary, call.foreign
                )
                turn = recorded_state.put_turn(batch, payload).hash
                intent = record.with_turn(intent, turn, _keeper(batch))
        return move_head(batch, thread, thread.hash, intent=intent, session=session)


def end_step(
    store: Store,
    thread: Thread,
    event: SessionEvent,
    boundary: Boundary,
    name: str,
    part: TranscriptPart | None = None,
    called: Sequence[SubagentPart] = (),
) -> Thread:
    """Commits the pending step with the agent's answer, and with what the transcripts say of it.
    Calls that have no result yet were lost: what they have changed is not known to be theirs."""
    intent = thread.intent
    session = _updated(thread, event, name or thread.record["session"]["event"])
    with store.batch() as batch:
        open_turns = [
            _left_open(store, batch, hash, event, boundary) for hash in session["open"].values()
        ]
        batch.commit()  # so that they can be read
        turns = session_steps.in_order(store, [*threads.turns(store, intent), *open_turns])
        session["open"] = {}
        if part is not None:
            turns = session_turns.enriched(store, batch, turns, part)
            session["transcriptBytes"] = part.end
        children: list[Thread] = []
        for subagent in called:
            # So that the turns can be read. Until the heads move at the end nothing leads to them.
            batch.commit()
            child, turns = subagents.put(store, batch, thread, event, subagent, turns)
            children.append(child)
            read_bytes = session.get("subagents", {})
            session["subagents"] = {**read_bytes, subagent.id: subagent.part.end}
        start = threads.start(store, thread)
        agent = start.payload["agents"][event.agent]
        detail = batch.put_known(
            "react-session",
            session_turns.session_payload(event, agent, turns, intent["since"], part),
        )
        if part is not None:
            local_trees.put(batch, detail.hash, LocalTree(part.raw))
        steps = [ref.hash for ref in threads.steps(store, thread)]
        before = _state_before(store, thread)
        state = boundary.state or before
        prompt = store.node(intent["prompt"], "react-turn").payload["input"]
        prompt_text = content.text(store, prompt).encode()
        changes = _changes(store, before, state)
        summary = None if part is None else part.summary
        answer = session_turns.answer(event, part)
        payload = {
            "index": intent["index"],
            "role": event.agent,
            "meta": {},
            "content": content.put(batch, answer),
            "detail": detail.hash,
            "agent": agent,
            "start": thread.record["start"],
            **threads.links(steps),
            "compact": content.put(batch, summary) if summary else None,
            "childThreads": [child.hash for child in children],
            "attempts": [],
            "extraction": "block",
            "workspace": None if state is None else state.tree,
            "changes": put_work(batch, changes).hash if changes else None,
            "startedAt": intent["since"],
            "completedAt": max(event.reported_ms, intent["since"]),
            "prompt": {
                "hash": hash_bytes(prompt_text),
                "size": len(prompt_text),
                "text": prompt,
                "turn": intent["prompt"],
            },
        }
        if "promptId" in intent:
            payload["prompt"]["id"] = intent["promptId"]
        step = recorded_state.put_node(batch, "thread-step", payload=payload, state=state)
        for child in children:
            batch.swap(child.name, None, child.head)
        ids = [*thread.record["children"], *(child.id for child in children)]
        return move_head(
            batch,
            thread,
            step.hash,
            intent=None,
            session=session,
            children=ids[-threads.MAX_CHILDREN :],
            spent=_spent(thread, event, part),
            **_last_active(thread, event.kind),
        )


def _spent(thread: Thread, event: SessionEvent, part: TranscriptPart | None) -> Spent:
    before = thread.record["spent"]
    wall_ms = max(0, event.reported_ms - thread.intent["since"])
    tokens = 0 if part is None else part.tokens
    return {"tokens": before["tokens"] + tokens, "wallMs": before["wallMs"] + wall_ms}


def _left_open(
    store: Store, batch: Batch, begun: NodeHash, event: SessionEvent, boundary: Boundary
) -> NodeHash:
    """Returns the turn of a call that is still open when its step ends."""
    # One that changes no file began without a look at the directory.
    is_looked_at = "workspace" in store.node(begun, "react-turn").payload
    if boundary.state is None or not is_looked_at:
        return begun
    payload = session_turns.interrupted_turn(store, batch, begun, event, boundary, None)
    return recorded_state.put_turn(batch, payload).hash


def note(
    store: Store, thread: Thread, event: SessionEvent, boundary: Boundary, name: str
) -> Thread:
    """Records that an event was seen that changes nothing else."""
    with store.batch() as batch:
        session = _with_fault(_updated(thread, event, name), boundary)
        active = _last_active(thread, event.kind)
        return move_head(batch, thread, thread.hash, session=session, **active)


def close(store: Store, thread: Thread) -> None:
    """Notes that the agent of a session without a pending step is gone. Raises Conflict where the
    session goes on."""
    with store.batch() as batch:
        session = {**thread.record["session"], "ended": True}
        active = _last_active(thread, Kind.END)
        move_head(batch, thread, thread.hash, session=session, **active)


def session_end(store: Store, thread: Thread) -> SessionEvent:
    """Returns the event that the agent of a session would report at its end."""
    about = sessions.about(store, thread)
    pid = thread.record["session"]["pid"]
    return SessionEvent(
        Kind.END,
        about["agent"],
        about["id"],
        about["directory"],
        now_ms(),
        pid,
        transcript=about.get("transcript"),
    )


def last_event(thread: Thread) -> str | None:
    """Returns the last event of the spool that the thread has recorded."""
    session: Mapping[str, Any] = thread.fields.get("session", {})
    return session.get("event")


# -- parts ----------------------------------------------------------------------------


def session_key(agent: str, id: str) -> str:
    """Returns the key by which the thread of a session is found."""
    return lifecycle.key_hash(f"session\0{agent}\0{id}")


def _last_active(thread: Thread, kind: Kind) -> dict[str, Any]:
    """Returns the change of a record that keeps the time of the last activity, where the event is
    none: `rewind` takes the session that was active last, not the one whose agent ended last."""
    return {"updatedAt": thread.record["updatedAt"]} if kind is Kind.END else {}


def _key(event: SessionEvent) -> str:
    return session_key(event.agent, event.session)


def _reason(event: SessionEvent) -> str:
    return record.truncate_reason(f"a session of {event.agent}, which goes on outside casfs")


def _process(event: SessionEvent) -> dict[str, Any]:
    process = {"pid": event.pid, "pidStart": start_time(event.pid)}
    machine = {"boot": spool.current_boot(), "host": os.uname().nodename}
    return {**process, **machine, "event": None, "open": {}}


def _updated(thread: Thread, event: SessionEvent, name: str) -> dict[str, Any]:
    """Returns the field `session` of a record after an event."""
    session = thread.record["session"]
    process = {} if session["pid"] == event.pid else _process(event)
    updated = {**session, **process, "open": dict(session["open"])}
    updated["event"] = name or session["event"]
    if event.kind is Kind.END:
        return {**updated, "ended": True}
    updated.pop("ended", None)
    return updated


def _with_fault(session: dict[str, Any], boundary: Boundary) -> dict[str, Any]:
    kept = {name: value for name, value in session.items() if name != "fault"}
    fault = {"fault": record.truncate_reason(boundary.fault)} if boundary.fault else {}
    return kept | fault


def _put_workflow(batch: Batch, agent: str) -> tuple[NodeHash, NodeHash]:
    """Puts a workflow of one role, so that a thread can be forked: another agent plays it then."""
    schema = batch.put_node("role-schema", {"name": "session", "type": "object"}).hash
    role = batch.put_node(
        "role",
        {
            "name": agent,
            "description": f"What a person has asked {agent} for.",
            "systemPrompt": "You work in the current directory, on what a person asks for.",
            "extractPrompt": "Answer in a few sentences.",
            "schema": schema,
        },
    ).hash
    rules = [
        {"from": "__start__", "to": agent, "when": None},
        {"from": agent, "to": "__end__", "when": None},
    ]
    workflow = batch.put_node(
        "workflow",
        {
            "name": agent,
            "description": f"A session of {agent}.",
            "roles": {agent: role},
            "moderator": rules,
        },
    ).hash
    node = batch.put_node("agent", {"package": agent, "version": "", "config": {}}).hash
    return workflow, node


def _with_turn(batch: Batch, thread: Thread, turn: NodeHash) -> Any:
    return record.with_turn(thread.intent, turn, _keeper(batch))


def _keeper(batch: Batch) -> Any:
    return lambda turns: content.put(batch, "earlier turns", turns)


def _state_before(store: Store, thread: Thread) -> RecordedState | None:
    """Returns the directory as it was when the pending step began."""
    prompt: str | None = thread.intent.get("prompt")
    for hash in (prompt, threads.last_step(store, thread)):
        node = store.node(hash or thread.record["start"])
        if "workspace" in node.payload:
            return recorded_state.of_node(store, node.hash, node.payload, "workspace")
    return None


def _changes(
    store: Store, before: RecordedState | None, after: RecordedState | None
) -> bytes | None:
    if before is None or after is None or before.tree == after.tree:
        return None
    return unified_diff.patch(store, before.tree, after.tree)
