"""The turns of a session's steps: what hooks have reported of each call, and what the agent's
transcript says of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from casfs.agents.secrets import put_structure
from casfs.digest import NodeHash
from casfs.sessions.session_steps import IN_PROGRESS, INTERRUPTED
from casfs.store.store import Store
from casfs.store.write_batch import Batch
from casfs.transcripts.messages import ModelMessage, ResultMessage
from casfs.trees import recorded_state
from engine import content
from engine.sessions.boundary import Boundary
from engine.sessions.events import Kind, SessionEvent, ToolCall, ToolResult
from engine.sessions.transcript_reader import TranscriptPart

NO_ANSWER = "(it ended without an answer)"
NO_RESULT = "it still runs"
OF_BOUNDARY = "workspace", "times", "isLate", "isTorn", "fault"  # of a turn, from its Boundary
NO_TOKENS = {"input": 0, "output": 0}


def call_turn(
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
        members["foreign"] = _put_paths(batch, boundary.foreign)
    tool_call = put_structure(batch, "react-tool-call", members).hash
    empty = content.put(batch, "")
    payload = {**turn_fields(event, boundary), "input": empty, "output": empty}
    payload |= {"toolCalls": [tool_call], "callId": call.id}
    if before is not None:
        payload["begun"] = before
    return payload


def interrupted_turn(
    store: Store,
    batch: Batch,
    begun: NodeHash,
    event: SessionEvent,
    boundary: Boundary,
    foreign: Mapping[str, str] | None,
) -> dict[str, Any]:
    """Returns the payload of the turn of a call whose end was never reported: it has the directory
    as it is at a later event. `begun`: the turn as it stood when it began; `foreign`: None where it
    is not known whose the changes since then are."""
    turn = store.node(begun, "react-turn").payload
    (hash,) = turn["toolCalls"]
    call: dict[str, Any] = {**store.node(hash, "react-tool-call").payload, "status": INTERRUPTED}
    if foreign is None:
        call["isUnseen"] = True
    elif foreign:
        call["foreign"] = _put_paths(batch, foreign)
    tool_call = put_structure(batch, "react-tool-call", call).hash
    kept = {name: value for name, value in turn.items() if name not in OF_BOUNDARY}
    payload: dict[str, Any] = {**kept, **turn_fields(event, boundary), "toolCalls": [tool_call]}
    return {**payload, "begun": begun, "before": turn.get("workspace")}


def _put_paths(batch: Batch, reasons: Mapping[str, str]) -> NodeHash:
    """Puts paths with the reasons why their changes are not a call's."""
    text = json.dumps(dict(reasons), ensure_ascii=False, sort_keys=True, indent=1)
    return put_structure(batch, content.TYPE, {"text": text, "artifacts": []}).hash


def turn_fields(event: SessionEvent, boundary: Boundary) -> dict[str, Any]:
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
    if boundary.is_torn:
        payload["isTorn"] = True
    if boundary.fault is not None:
        payload["fault"] = boundary.fault
    return payload


def answer(event: SessionEvent, part: TranscriptPart | None) -> str:
    if event.kind is not Kind.ANSWER or not event.text:
        return NO_ANSWER
    # gemini reports all that the model has said since the prompt.
    if part is not None and part.without_calls:
        last = part.without_calls[-1].text
        if last and event.text.endswith(last):
            return last
    return event.text


def enriched(
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
    if call.get("status") not in (IN_PROGRESS, INTERRUPTED):
        return {}
    status = "failed" if result.is_failure else "completed"
    if call["status"] == INTERRUPTED:
        status = INTERRUPTED
    text = content.put(batch, result.text)
    ended = put_structure(batch, "react-tool-call", {**call, "status": status, "result": text})
    return {"toolCalls": [ended.hash]}


def _said(batch: Batch, message: ModelMessage) -> dict[str, Any]:
    said: dict[str, Any] = {"output": content.put(batch, message.text)}
    said["tokens"] = {"input": message.input_tokens, "output": message.output_tokens}
    if message.thoughts:
        said["thoughts"] = content.put(batch, message.thoughts)
    return said


def session_payload(
    event: SessionEvent,
    agent: NodeHash,
    turns: list[NodeHash],
    began_ms: int,
    part: TranscriptPart | None,
) -> dict[str, Any]:
    return {
        "model": None if part is None else part.model,
        "agent": agent,
        "role": event.agent,
        "turns": turns,
        "totalTokens": 0 if part is None else part.tokens,
        "durationMs": max(0, event.reported_ms - began_ms),
        "sessionId": event.session,
        "agentName": event.agent,
    }
