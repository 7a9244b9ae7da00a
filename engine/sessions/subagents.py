"""Subagents of a session, each as a thread that the session's step has called.

An agent reports the calls of its subagents as its own: they are turns of the session's step, with
their trees, and rewound with it. What a subagent was asked, said and thought stands in a transcript
of its own. When a step ends, what these have gained becomes threads that have ended, whose turns
are those of the step where it has them. One that goes on after that is another thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from casfs.digest import NodeHash, hash_bytes
from casfs.errors import CasfsError
from casfs.store import local_trees
from casfs.store.local_trees import LocalTree
from casfs.store.store import Store
from casfs.store.write_batch import Batch
from casfs.threads import threads
from casfs.threads.threads import ENDED, Thread
from casfs.transcripts import claude, codex, json_lines
from casfs.transcripts.messages import ModelMessage, PromptMessage
from casfs.trees import recorded_state
from engine import content
from engine.sessions import session_turns, transcript_reader
from engine.sessions.boundary import Boundary
from engine.sessions.events import SessionEvent, ToolResult
from engine.sessions.hook_events import NAMES, tool_call
from engine.sessions.transcript_reader import TranscriptPart
from engine.threads import lifecycle

FINDERS: Mapping[str, Callable[[Path], Iterable[Path]]] = {
    "claude": claude.subagents,
    "codex": codex.subagents,
}
NO_PROMPT = "(it goes on with what it was asked)"


@dataclass(frozen=True)
class SubagentPart:
    """What the transcript of a subagent has gained. `prompt`: stored, what it was asked."""

    transcript: Path
    part: TranscriptPart
    prompt: NodeHash

    @property
    def id(self) -> str:
        return json_lines.stem(self.transcript)


def gained(
    store: Store,
    agent: str,
    transcript: str,
    thread: Thread,
    callers: Collection[str] | None = None,
) -> list[SubagentPart]:
    """Returns what the subagents of a session have said since its last step, oldest first.
    `callers`: only of those that these calls have begun."""
    read_bytes: Mapping[str, int] = thread.record["session"].get("subagents", {})
    parts = []
    for path in FINDERS[agent](Path(transcript)) if agent in FINDERS else ():
        stem = json_lines.stem(path)
        is_named = stem.isascii() and stem.isprintable()
        if not is_named or (callers is not None and claude.calling_id(path) not in callers):
            continue
        # Its transcript is the agent's: what is in it must not keep its parent from being recorded.
        with suppress(CasfsError, ValueError, TypeError, KeyError, AttributeError):
            begin = read_bytes.get(stem, 0)
            part = transcript_reader.read_part(store, agent, str(path), begin, of_subagent=True)
            if part is not None and part.messages:
                parts.append(_subagent_part(store, path, part))
    return parts


def _subagent_part(store: Store, path: Path, part: TranscriptPart) -> SubagentPart:
    prompts = [message.text for message in part.messages if isinstance(message, PromptMessage)]
    # In a batch of its own: its digest is that of what the store has made of it.
    with store.batch() as batch:
        prompt = content.put(batch, "\n\n".join(prompts) or NO_PROMPT)
    return SubagentPart(path, part, prompt)


def put(
    store: Store,
    batch: Batch,
    parent: Thread,
    event: SessionEvent,
    subagent: SubagentPart,
    turns: Sequence[NodeHash],
) -> tuple[Thread, list[NodeHash]]:
    """Puts the nodes of a subagent's thread. `turns`: of the step that has called it, stored.
    Returns the thread, whose head is to be made, and these turns with what the subagent said."""
    part = subagent.part
    by_call = {_call_id(store, hash): hash for hash in turns}
    times = [moment for message in part.messages if (moment := getattr(message, "time_ms", 0))]
    ended = replace(
        event,
        session=subagent.id,
        transcript=str(subagent.transcript),
        reported_ms=max(times, default=event.reported_ms),
    )
    began_ms = min(times, default=event.reported_ms)
    own_turns = []
    for call_id, message in part.by_call.items():
        hash = by_call.get(call_id) or _turn_of_call(batch, ended, message, call_id, part)
        own_turns.append(hash)
    batch.commit()  # as in `session_thread.end_step`: so that they can be read
    said = session_turns.enriched(store, batch, own_turns, part)
    start = _put_start(store, batch, parent, ended, subagent.prompt)
    agent = threads.start(store, parent).payload["agents"][event.agent]
    step = _step_payload(store, batch, ended, subagent, agent, turns=said, began_ms=began_ms)
    last = batch.put_known("thread-step", {**step, "start": start}).hash
    end = batch.put_node(
        "thread-end",
        {
            "returnCode": 0,
            "summary": "its subagent has ended",
            "start": start,
            "lastStep": last,
            "completedAt": ended.reported_ms,
        },
    ).hash
    child = lifecycle.new_thread(
        start,
        event.agent,
        hash=end,
        status=ENDED,
        returnCode=0,
        parent=parent.id,
        **threads.project_fields(parent.fields),
    )
    replaced = dict(zip(own_turns, said, strict=False))
    return child, [replaced.get(hash, hash) for hash in turns]


def _turn_of_call(
    batch: Batch, event: SessionEvent, message: ModelMessage, call_id: str, part: TranscriptPart
) -> NodeHash:
    """Puts the turn of a call that no hook has reported."""
    requested = next(call for call in message.calls if call.id == call_id)
    call = tool_call(NAMES[event.agent], call_id, requested.tool, requested.arguments)
    answer = part.results.get(call_id)
    result = None if answer is None else ToolResult(answer.text, answer.is_failure)
    moment = replace(event, reported_ms=message.time_ms)
    payload = session_turns.call_turn(
        batch, moment, call, before=None, boundary=Boundary(), result=result
    )
    return recorded_state.put_turn(batch, payload).hash


def _put_start(
    store: Store, batch: Batch, parent: Thread, event: SessionEvent, prompt: NodeHash
) -> NodeHash:
    above = threads.start(store, parent).payload
    session = {"agent": event.agent, "id": event.session, "directory": event.directory}
    payload = {
        "workflow": above["workflow"],
        "input": prompt,
        "depth": above["depth"] + 1,
        "parentState": parent.hash,
        "agents": above["agents"],
        "workspace": None,  # the turns have its trees, beside those of its parent
        "maxRounds": lifecycle.MAX_STEPS,
        "budget": None,
        "session": {**session, "transcript": event.transcript},
    }
    return batch.put_known("thread-start", payload).hash


def _step_payload(
    store: Store,
    batch: Batch,
    event: SessionEvent,
    subagent: SubagentPart,
    agent: NodeHash,
    *,
    turns: list[NodeHash],
    began_ms: int,
) -> dict[str, Any]:
    """Returns the payload of the only step, without its `start`."""
    part = subagent.part
    detail = batch.put_known(
        "react-session", session_turns.session_payload(event, agent, turns, began_ms, part)
    )
    local_trees.put(batch, detail.hash, LocalTree(part.raw))
    answers = [message.text for message in part.without_calls if message.text]
    prompt = content.text(store, subagent.prompt).encode()
    return {
        "index": 1,
        "role": event.agent,
        "meta": {},
        "content": content.put(batch, answers[-1] if answers else session_turns.NO_ANSWER),
        "detail": detail.hash,
        "agent": agent,
        **threads.links([]),
        "compact": content.put(batch, part.summary) if part.summary else None,
        "childThreads": [],
        "attempts": [],
        "extraction": "block",
        "workspace": None,
        "changes": None,
        "startedAt": began_ms,
        "completedAt": event.reported_ms,
        "prompt": {"hash": hash_bytes(prompt), "size": len(prompt), "text": subagent.prompt},
    }


def _call_id(store: Store, turn: NodeHash) -> str:
    return store.node(turn, "react-turn").payload.get("callId", "")
