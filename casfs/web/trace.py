"""The trace of a step, or of a failed attempt: a session, its turns, their tool calls.

Each agent writes a detail of its own type. `trace` reads those of casfs; of any other it shows the
payload.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from casfs.errors import CasfsError, NotFound
from casfs.store.nodes.node import Node
from casfs.store.store import Store
from casfs.threads import attempt_details, lookup, threads
from casfs.web import texts
from casfs.web.site import Call, is_number
from casfs.web.texts import Text

WINDOW = 20  # turns
FACTS = {
    "agentName": "Agent",
    "model": "Model",
    "sessionId": "Session",
    "totalTokens": "Tokens",
    "exitCode": "Exit code",
}
SPOKEN_FIELDS = ("input", "thoughts", "output")
ENDINGS = {"exitCode": "exit code", "signal": "signal"}  # of a terminal
STREAMS = ("stdout", "stderr")
CONTENTS = ("question", "answer")


@dataclass(frozen=True)
class Terminal:
    """A command that a tool call ran. `ended`: how, in words."""

    command: str
    cwd: str
    ended: str
    duration_ms: int
    output: Text


@dataclass(frozen=True)
class UsedFile:
    """A file that a tool call read, wrote or changed. `old`: hash of the text before a change."""

    path: str
    access: str
    hash: str
    old: str | None = None


@dataclass(frozen=True)
class ToolCall:
    """`kind`, `status`: in the words of its agent."""

    name: str
    arguments: Text
    result: Text | None = None
    duration_ms: int | None = None
    kind: str | None = None
    status: str | None = None
    terminals: Sequence[Terminal] = ()
    files: Sequence[UsedFile] = ()


@dataclass(frozen=True)
class Turn:
    """A model call, or a message of a session. `tokens`: (input, output)."""

    number: int
    title: str
    said: Sequence[tuple[str, Text]]
    calls: Sequence[ToolCall] = ()
    tokens: tuple[int, int] | None = None
    latency_ms: int | None = None


@dataclass(frozen=True)
class Trace:
    """`turns`: from index `first` on, of `total`."""

    hash: str
    type: str
    facts: Mapping[str, str]
    texts: Sequence[tuple[str, Text]]
    turns: Sequence[Turn]
    first: int
    total: int
    size: int = WINDOW


def show(call: Call) -> Response:
    """Shows the trace of a step, or of the failed attempt with that number."""
    thread = lookup.find(call.store, call.path["id"])
    index = number(call.path["index"])
    attempt = call.index("attempt")
    if attempt:
        hashes = attempts(call.store, thread, index)
        if attempt > len(hashes):
            raise NotFound(f"step {index} has no failed attempt {attempt}")
        hash = hashes[attempt - 1]
    else:
        hash = threads.step_at(call.store, thread, index).payload["detail"]
    model = trace(call.store, hash, call.index("from"))
    where: dict[str, Any] = {"id": thread.id, "index": index, "attempt": attempt}
    etag = hash if call.query.get("fragment") == "trace" else None
    return call.page("trace.html", etag=etag, trace=model, **where)


def number(text: str) -> int:
    """Returns the index of a step in a path. Raises NotFound."""
    if not is_number(text):
        raise NotFound(f"no step {text!r}")
    return int(text)


def attempts(store: Store, thread: threads.Thread, index: int) -> Sequence[str]:
    """Returns the details of the failed attempts at a step, also at the pending one."""
    intent = thread.pending
    if intent and intent["index"] == index:
        return thread.record.get("attempts") or ()
    hashes: Sequence[str] = threads.step_at(store, thread, index).payload["attempts"]
    return hashes


def trace(store: Store, hash: str, first: int = 0) -> Trace:
    """Returns what a detail says; `first`: index of the first turn."""
    node = _node(store, hash)
    if node is None:
        return Trace(
            hash,
            "blob",
            facts={},
            texts=[("Content", texts.blob(store, hash))],
            turns=[],
            first=0,
            total=0,
        )
    payload = node.payload if isinstance(node.payload, dict) else {}
    facts = {label: str(payload[key]) for key, label in FACTS.items() if payload.get(key)}
    if "durationMs" in payload:
        facts["Duration"] = f"{payload['durationMs'] / 1000:.1f} s"
    said: list[tuple[str, Text]] = []
    recorded_turns: Sequence[Any] = ()
    match node.type:
        case "react-session" | "hermes-detail" | "cursor-detail":
            recorded_turns = payload["turns"]
        case "content":
            said = [("", texts.content(store, hash))]
            recorded_turns = attempt_details.turns(store, hash)
        case "command-detail":
            facts |= {"Command": shlex.join(payload["argv"]), "Exit code": str(payload["exitCode"])}
            said = [(name, texts.blob(store, payload[name], end=True)) for name in STREAMS]
        case "human-detail":
            said = [(name, texts.content(store, payload[name])) for name in CONTENTS]
        case _:
            said = [("Payload", texts.as_json(node.payload, hash))]
    shown = recorded_turns[first : first + WINDOW]
    turns = [
        turn(store, turn_number, recorded_turn)
        for turn_number, recorded_turn in enumerate(shown, start=first + 1)
    ]
    return Trace(
        hash,
        node.type,
        facts=facts,
        texts=said,
        turns=turns,
        first=first,
        total=len(recorded_turns),
    )


def turn(store: Store, number: int, recorded_turn: str | Mapping[str, Any]) -> Turn:
    """Returns a turn: a node, or of an old `cursor-detail` an object."""
    if not isinstance(recorded_turn, str):
        return _cursor_turn(store, number, recorded_turn)
    node = _node(store, recorded_turn)
    if node is None:
        return Turn(number, "blob", [("", texts.blob(store, recorded_turn))])
    payload = node.payload
    if node.type == "react-turn":
        said = [
            (name, texts.content(store, payload[name])) for name in SPOKEN_FIELDS if name in payload
        ]
        calls = [_tool_call(store, hash) for hash in payload["toolCalls"]]
        tokens = payload["tokens"]["input"], payload["tokens"]["output"]
        return Turn(
            number,
            "model call",
            said=said,
            calls=calls,
            tokens=tokens,
            latency_ms=payload["latencyMs"],
        )
    if node.type == "cursor-turn":
        return _cursor_turn(store, number, payload)
    if node.type == "hermes-turn":
        named = ((name, payload[name]) for name in ("reasoning", "content") if payload[name])
        said = [(name, texts.bounded(text, recorded_turn)) for name, text in named]
        tool_calls = (
            (call["name"], texts.bounded(call["args"], recorded_turn))
            for call in payload["toolCalls"]
        )
        return Turn(
            number, payload["role"], said=said, calls=[ToolCall(*call) for call in tool_calls]
        )
    return Turn(number, node.type, [("", texts.as_json(payload, recorded_turn))])


def _cursor_turn(store: Store, number: int, payload: Mapping[str, Any]) -> Turn:
    text = texts.content(store, payload["text"])
    if payload["kind"] == "text":
        return Turn(number, "text", [("", text)])
    result = payload["result"] and texts.content(store, payload["result"])
    return Turn(number, "tool", said=[], calls=[ToolCall(payload["name"] or "tool", text, result)])


def _tool_call(store: Store, hash: str) -> ToolCall:
    node = _node(store, hash)
    if node is None:
        return ToolCall("?", texts.blob(store, hash))
    call = node.payload
    arguments, result = (texts.content(store, call[name]) for name in ("arguments", "result"))
    return ToolCall(
        name=call["name"],
        arguments=arguments,
        result=result,
        duration_ms=call["durationMs"],
        kind=call.get("kind"),
        status=call.get("status"),
        terminals=[_terminal(store, terminal) for terminal in call.get("terminals", ())],
        files=[
            *(
                UsedFile(used_file["path"], used_file["access"], used_file["content"])
                for used_file in call.get("files", ())
            ),
            *(
                UsedFile(diff["path"], "edit", hash=diff["new"], old=diff["old"])
                for diff in call.get("diffs", ())
            ),
        ],
    )


def _terminal(store: Store, terminal: Mapping[str, Any]) -> Terminal:
    known = [f"{label} {terminal[name]}" for name, label in ENDINGS.items() if name in terminal]
    if terminal["isKilled"]:
        known.append("ended by the agent")
    return Terminal(
        command=shlex.join(terminal["argv"]),
        cwd=terminal["cwd"],
        ended=", ".join(known) or "still ran",
        duration_ms=terminal["durationMs"],
        output=texts.blob(store, terminal["output"], end=True),
    )


def _node(store: Store, hash: str) -> Node[Any] | None:
    """Returns a node; None for a blob, and for one that is damaged."""
    try:
        return store.node(hash)
    except CasfsError:
        return None
