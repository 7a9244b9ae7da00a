"""A step: prompt, output, meta, what it changed, its cost and where it came from; of the pending
one, the turns and the output of its program so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from casfs.errors import CasfsError
from casfs.store.store import Store
from casfs.threads import attempt_details, live_output, lookup, prompts, threads
from casfs.threads.threads import StepNode, Thread
from casfs.web import patch, private_files, session, texts
from casfs.web.patch import FilePatch
from casfs.web.site import Call
from casfs.web.texts import Text
from casfs.web.thread import agent_name, step_line
from casfs.web.thread_table import row_of
from casfs.web.trace import Turn, attempts, number, turn

MAX_PROMPT_STEPS = 100  # from the start on; a later prompt is rebuilt when it is asked for
MAX_TURNS = 20  # the newest of the pending step
MAX_OUTPUT_CHARS = 100_000


@dataclass(frozen=True)
class Artifact:
    """`type`: of a node; None: a blob."""

    hash: str
    type: str | None
    size: int


@dataclass(frozen=True)
class Record:
    """What the hash of a step decides; `private`: files that stay here."""

    payload: Any
    output: Text
    meta: Text
    artifacts: Sequence[Artifact]
    summary: Text | None
    files: Sequence[FilePatch]
    private: Sequence[bytes]


@dataclass(frozen=True)
class Pending:
    """`turns`: the newest ones; `tools`: lines of the tool calls that run; `printed`: the end of
    what its program has printed."""

    turns: Sequence[Turn]
    tools: Sequence[str]
    printed: str


def show(call: Call) -> Response:
    store = call.store
    thread = lookup.find(call.store, call.path["id"])
    index = number(call.path["index"])
    if session.is_recorded(store, thread):
        return session.show_step(call, thread, index)
    total = threads.length(store, thread)
    intent: Mapping[str, Any] = thread.pending or {}
    is_pending = intent.get("index") == index > total
    node = None if is_pending else threads.step_at(store, thread, index)
    if node is not None and call.query.get("fragment") == "record":
        return call.page("step.html", etag=node.hash, record=record(store, node))
    wanted = index <= MAX_PROMPT_STEPS or "prompt" in call.query
    line = node and step_line(store, node, call.site.threads.children(thread.id))
    return call.page(
        "step.html",
        row=row_of(thread.name, thread.head),
        index=index,
        total=total,
        line=line,
        role=line.role if line else intent["role"],
        intent=intent if is_pending else None,
        record=node and record(store, node),
        pending=pending(store, thread) if is_pending else None,
        prompt=prompt(store, thread, node) if wanted else None,
        failed=failed(store, attempts(store, thread, index)),
        agents={
            role: agent_name(store, agent_hash)
            for role, agent_hash in threads.agents(store, thread).items()
        },
    )


def record(store: Store, node: StepNode) -> Record:
    """Returns what a recorded step holds."""
    payload = node.payload
    try:
        content = store.node(payload["content"], "content").payload
    except CasfsError as error:
        content = {"text": f"`{error}`", "artifacts": []}
    hashes = content["artifacts"]
    summary = payload["compact"]
    return Record(
        payload,
        texts.bounded(content["text"], payload["content"], MAX_OUTPUT_CHARS),
        meta=texts.as_json(payload["meta"]),
        artifacts=[
            Artifact(hash, info.type and store.registry.compiled(info.type)[0], info.size)
            for hash, info in store.blobs.info(hashes).items()
        ],
        summary=None if summary is None else texts.content(store, summary),
        files=patch.stored(store, payload["changes"]),
        private=private_files.names(store, node),
    )


def pending(store: Store, thread: Thread) -> Pending:
    """Returns what the pending step has done so far."""
    intent = thread.intent
    hashes = threads.turns(store, {"turns": [], "turnCount": 0, **intent})
    first = max(0, len(hashes) - MAX_TURNS)
    turns = [
        turn(store, turn_number, hash)
        for turn_number, hash in enumerate(hashes[first:], start=first + 1)
    ]
    run = intent.get("run")
    tail = live_output.tail(store.root, run, texts.MAX_CHARS)
    tools = [live_output.tool_line(call) for call in live_output.tools(store.root, run).calls]
    return Pending(turns, tools, "" if tail is None else tail[0].decode("utf-8", "replace"))


def prompt(store: Store, thread: Thread, node: StepNode | None) -> Text:
    """Returns the prompt that the agent of a step got, or gets, with its fault if it has one."""
    try:
        rebuilt_prompt = (
            prompts.of_step(store, thread, node) if node else prompts.of_pending_step(store, thread)
        )
    except CasfsError as error:
        return texts.bounded(f"[this prompt cannot be rebuilt: {error}]")
    return texts.bounded(
        rebuilt_prompt.marked() if rebuilt_prompt else "", hash=None, limit=MAX_OUTPUT_CHARS
    )


def failed(store: Store, hashes: Sequence[str]) -> list[str]:
    """Returns a line on how each failed attempt ended."""
    return [attempt_details.line(attempt_details.read(store, hash)) for hash in hashes]
