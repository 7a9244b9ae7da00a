"""A session of an outside agent as a thread: a prompt is a step, a tool call a turn.

Its thread-start says which session it is (`session`), and its head is found by the key of that. No
daemon runs it: its record is `suspended` for the cause `session`, also while the agent works on a
prompt, which is then the pending step. In the record, `session` holds

    pid     of the agent, `pidStart`, when that process started, and `boot`, of which machine
    fault   why its directory is not recorded, or absent
    event   the last event of the spool that is recorded
    open    the tool calls that run: the id of each, and the turn as it stood when it began
    transcriptBytes  up to which byte the transcript is recorded
    id, transcript  where they are not those of the thread-start: of a session that goes on from
            a point of another one

Each function is one transaction, by the rules of `engine.threads.transitions`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from casfs.agents.secrets import put_work
from casfs.attach import spool
from casfs.backend.protocols import Head
from casfs.digest import NodeHash, hash_bytes
from casfs.errors import NotFound
from casfs.store import local_trees
from casfs.store.local_trees import LocalTree
from casfs.store.nodes import head_kinds
from casfs.store.store import Store
from casfs.store.write_batch import Batch
from casfs.system.clock import now_ms
from casfs.system.processes import start_time
from casfs.threads import sessions, threads
from casfs.threads.threads import SESSION, SUSPENDED, Thread
from casfs.transcripts.messages import ModelMessage, ResultMessage
from casfs.trees import recorded_state
from casfs.trees.diff import unified_diff
from casfs.trees.recorded_state import RecordedState
from engine import content
from engine.sessions.events import Kind, SessionEvent, ToolCall, ToolResult
from engine.sessions.transcript_reader import TranscriptPart
from engine.threads import lifecycle, record
from engine.threads.transitions import move_head

MAX_OPEN_CALLS = 8  # that the record names; of more, the oldest is taken for over
NO_STEP = "(the session goes on by itself)"
NO_ANSWER = "(it ended without an answer)"
NO_RESULT = "it still runs"
IN_PROGRESS = "in_progress"
NO_TOKENS = {"input": 0, "output": 0}


@dataclass(frozen=True)
class Boundary:
    """The directory of a session at an event. `state`: None where it is not recorded; `is_late`: it
    was looked at after the agent had gone on; `foreign`: paths that changed while the call ran and
    that are not known to be its changes, with the reason; `is_unseen`: the daemon was not there
    when the call began, so every change may be another's; `fault`: why there is no state."""

    state: RecordedState | None = None
    is_late: bool = False
    foreign: Mapping[str, str] = field(default_factory=dict)
    is_unseen: bool = False
    fault: str | None = None


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
            session=_process(event),
        )
        batch.swap(created.name, None, created.head)
        batch.swap(lifecycle.key_name(_key(event)), old, Head(start, {"thread": created.id}))
    return created


def begin_step(
    store: Store, thread: Thread, event: SessionEvent, boundary: Boundary, name: str
) -> Thread:
    """Begins the step of a prompt. `name`: of the event."""
    with store.batch() as batch:
        index = threads.length(store, thread) + 1
        intent: dict[str, Any] = {**record.new_intent(event.agent, index, 1)}
        intent |= {"since": event.reported_ms, "run": None}
        turn = {**_turn_fields(event, boundary), "output": content.put(batch, "")}
        turn["input"] = content.put(batch, event.text)
        intent["prompt"] = recorded_state.put_turn(batch, turn).hash
        if event.id is not None:
            intent["promptId"] = event.id
        session = _with_fault(_updated(thread, event, name), boundary)
        return move_head(batch, thread, thread.hash, intent=intent, session=session)


def begin_call(
    store: Store, thread: Thread, event: SessionEvent, boundary: Boundary, name: str
) -> Thread:
    """Records that a tool is about to run, with the directory before it."""
    assert event.call is not None
    with store.batch() as batch:
        payload = _turn(batch, event, event.call, before=None, boundary=boundary, result=None)
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
    with store.batch() as batch:
        payload = _turn(
            batch, event, event.call, before=begun, boundary=boundary, result=event.result
        )
        if begun is not None and boundary.state is not None:
            payload["before"] = store.node(begun, "react-turn").payload.get("workspace")
        turn = recorded_state.put_turn(batch, payload).hash
        intent = _with_turn(batch, thread, turn)
        return move_head(batch, thread, thread.hash, intent=intent, session=session)


def end_step(
    store: Store,
    thread: Thread,
    event: SessionEvent,
    boundary: Boundary,
    name: str,
    part: TranscriptPart | None = None,
) -> Thread:
    """Commits the pending step with the agent's answer, and with what the transcript says of it.
    Calls that have no result yet run in the background, or were lost; they become turns as they
    stand."""
    intent = thread.intent
    session = _updated(thread, event, name or thread.record["session"]["event"])
    with store.batch() as batch:
        turns = [*threads.turns(store, intent), *session["open"].values()]
        session["open"] = {}
        if part is not None:
            turns = _enriched(store, batch, turns, part)
            session["transcriptBytes"] = part.end
        start = threads.start(store, thread)
        agent = start.payload["agents"][event.agent]
        detail = batch.put_known(
            "react-session", _session_payload(event, agent, turns, intent, part)
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
        answer = _answer(event, part)
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
            "childThreads": [],
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
        return move_head(batch, thread, step.hash, intent=None, session=session)


def note(
    store: Store, thread: Thread, event: SessionEvent, boundary: Boundary, name: str
) -> Thread:
    """Records that an event was seen that changes nothing else."""
    with store.batch() as batch:
        session = _with_fault(_updated(thread, event, name), boundary)
        return move_head(batch, thread, thread.hash, session=session)


def session_end(store: Store, thread: Thread) -> SessionEvent:
    """Returns the event that the agent of a session would report at its end."""
    about = sessions.about(store, thread)
    pid = thread.record["session"]["pid"]
    return SessionEvent(Kind.END, about["agent"], about["id"], about["directory"], now_ms(), pid)


def last_event(thread: Thread) -> str | None:
    """Returns the last event of the spool that the thread has recorded."""
    session: Mapping[str, Any] = thread.fields.get("session", {})
    return session.get("event")


# -- parts ----------------------------------------------------------------------------


def session_key(agent: str, id: str) -> str:
    """Returns the key by which the thread of a session is found."""
    return lifecycle.key_hash(f"session\0{agent}\0{id}")


def _key(event: SessionEvent) -> str:
    return session_key(event.agent, event.session)


def _reason(event: SessionEvent) -> str:
    return record.truncate_reason(f"a session of {event.agent}, which goes on outside casfs")


def _process(event: SessionEvent) -> dict[str, Any]:
    process = {"pid": event.pid, "pidStart": start_time(event.pid), "boot": spool.current_boot()}
    return {**process, "event": None, "open": {}}


def _updated(thread: Thread, event: SessionEvent, name: str) -> dict[str, Any]:
    """Returns the field `session` of a record after an event."""
    session = thread.record["session"]
    process = {} if session["pid"] == event.pid else _process(event)
    return {**session, **process, "open": dict(session["open"]), "event": name or session["event"]}


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


def _turn(
    batch: Batch,
    event: SessionEvent,
    call: ToolCall,
    before: NodeHash | None,
    boundary: Boundary,
    result: ToolResult | None,
) -> dict[str, Any]:
    """Returns the payload of a turn with one tool call. `before`: the turn as it stood when the
    call began; `result`: None while it runs."""
    status = IN_PROGRESS
    text = NO_RESULT
    duration = 0
    if result is not None:
        status = "failed" if result.failed else "completed"
        text = result.text
        duration = result.duration_ms
    members: dict[str, Any] = {
        "name": call.name,
        "arguments": content.put(batch, json.dumps(call.arguments, ensure_ascii=False, indent=1)),
        "result": content.put(batch, text),
        "durationMs": duration,
        "kind": call.kind,
        "status": status,
    }
    if call.paths:
        members["locations"] = [
            {"path": path.removeprefix(event.directory + "/"), "line": None} for path in call.paths
        ]
    if boundary.is_unseen:
        members["isUnseen"] = True
    if boundary.foreign:
        members["foreign"] = content.put(
            batch, json.dumps(dict(boundary.foreign), ensure_ascii=False, sort_keys=True, indent=1)
        )
    tool_call = batch.put_known("react-tool-call", members).hash
    empty = content.put(batch, "")
    payload = {**_turn_fields(event, boundary), "input": empty, "output": empty}
    payload |= {"toolCalls": [tool_call], "callId": call.id}
    if before is not None:
        payload["begun"] = before
    return payload


def _turn_fields(event: SessionEvent, boundary: Boundary) -> dict[str, Any]:
    """Returns what the turn of a prompt and that of a call have alike."""
    payload: dict[str, Any] = {
        "toolCalls": [],
        "tokens": NO_TOKENS,
        "latencyMs": 0,
        "reportedAt": event.reported_ms,
    }
    if boundary.state is not None:
        payload |= {"workspace": boundary.state.tree, **boundary.state.fields}
    if boundary.is_late:
        payload["isLate"] = True
    return payload


def _with_turn(batch: Batch, thread: Thread, turn: NodeHash) -> Any:
    return record.with_turn(thread.intent, turn, _keeper(batch))


def _keeper(batch: Batch) -> Any:
    return lambda turns: content.put(batch, "earlier turns", turns)


def _answer(event: SessionEvent, part: TranscriptPart | None) -> str:
    if event.kind is not Kind.ANSWER or not event.text:
        return NO_ANSWER
    # gemini reports all that the model has said since the prompt.
    if part is not None and part.without_calls:
        last = part.without_calls[-1].text
        if last and event.text.endswith(last):
            return last
    return event.text


def _enriched(
    store: Store, batch: Batch, turns: list[NodeHash], part: TranscriptPart
) -> list[NodeHash]:
    """Returns the turns with what the model said and thought before each call, and what it took;
    behind them a turn for each answer without a call."""
    by_call = part.by_call
    results = part.results
    attributed: set[int] = set()
    enriched = []
    for hash in turns:
        payload: dict[str, Any] = dict(store.node(hash, "react-turn").payload)
        call_id = payload.get("callId", "")
        changes: dict[str, Any] = {}
        message = by_call.get(call_id)
        # Of several calls that one answer asks for the first has it: its tokens count once.
        if message is not None and id(message) not in attributed:
            attributed.add(id(message))
            changes = _said(batch, message)
        # A call that was refused, or whose hook was lost, has a result there alone.
        if (result := results.get(call_id)) is not None:
            changes |= _with_result(store, batch, payload, result)
        if changes and payload.get("workspace"):
            state = recorded_state.of_node(store, hash, payload, "workspace")
            changes |= {} if state is None else state.fields
        known = hash
        if changes:
            known = recorded_state.put_turn(batch, payload | changes).hash
        enriched.append(known)
    for message in part.without_calls:
        answer: dict[str, Any] = {"input": content.put(batch, ""), "toolCalls": [], "latencyMs": 0}
        answer |= {"reportedAt": message.time_ms, **_said(batch, message)}
        enriched.append(recorded_state.put_turn(batch, answer).hash)
    return enriched


def _with_result(
    store: Store, batch: Batch, turn: Mapping[str, Any], result: ResultMessage
) -> dict[str, Any]:
    """Returns the changes of a turn whose call has no result yet; none for any other."""
    (hash,) = turn["toolCalls"]
    call = store.node(hash, "react-tool-call").payload
    if call.get("status") != IN_PROGRESS:
        return {}
    status = "failed" if result.is_failure else "completed"
    text = content.put(batch, result.text)
    ended = batch.put_known("react-tool-call", {**call, "status": status, "result": text})
    return {"toolCalls": [ended.hash]}


def _said(batch: Batch, message: ModelMessage) -> dict[str, Any]:
    said: dict[str, Any] = {"output": content.put(batch, message.text)}
    said["tokens"] = {"input": message.input_tokens, "output": message.output_tokens}
    if message.thoughts:
        said["thoughts"] = content.put(batch, message.thoughts)
    return said


def _session_payload(
    event: SessionEvent,
    agent: NodeHash,
    turns: list[NodeHash],
    intent: Mapping[str, Any],
    part: TranscriptPart | None,
) -> dict[str, Any]:
    return {
        "model": None if part is None else part.model,
        "agent": agent,
        "role": event.agent,
        "turns": turns,
        "totalTokens": 0 if part is None else part.tokens,
        "durationMs": max(0, event.reported_ms - intent["since"]),
        "sessionId": event.session,
        "agentName": event.agent,
    }


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
