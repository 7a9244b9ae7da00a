"""The prompt of any step, rebuilt from the thread's chain and proved by the step's digest.

No prompt is stored: its earlier steps would be stored again with every step. A step records the
digest of the prompt that its agent got (`thread-step.prompt`), and refers to what the chain does
not have: a hint, an answer, a correction. The other parts are in the thread-start, the workflow
and the steps before. Which of them counted is found by trial: a fork may have another workflow
than the steps that it shares, a caller's thread may be gone, a summary may have been made while the
step ran, one of several rules chose the role. A text whose digest differs has a `fault` with that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, TypeAlias

from casfs.agents.prompt import EarlierStep, Prompt
from casfs.digest import NodeHash, hash_bytes
from casfs.errors import NotFound
from casfs.store.store import Store
from casfs.store.tombstones import MARK
from casfs.threads import rule_prompts, threads
from casfs.threads.summary import content_text
from casfs.threads.threads import StepNode, Thread, ThreadId

History: TypeAlias = tuple[str | None, list[EarlierStep]]  # a summary, and the steps since

MAX_ORIGINS = 16  # forks of forks that are searched for the parts of a prompt
UNRECORDED = "not proved: the step was recorded by a casfs that kept no digest of prompts"
PURGED = "not what the agent got: a part of it was purged since, and has a mark in its place"
DIFFERS = "not what the agent got: the digest in the step is another one"


@dataclass(frozen=True)
class StepPrompt:
    """`fault`: None where `text` is what the agent got, byte for byte."""

    text: str
    fault: str | None = None

    def marked(self) -> str:
        """Returns the text, below its fault if it has one."""
        return (
            self.text
            if self.fault is None
            else f"[casfs: this prompt is {self.fault}]\n\n{self.text}"
        )


def of_step(store: Store, thread: Thread, step: StepNode) -> StepPrompt:
    """Returns the prompt of a recorded step. Raises NotFound, Corrupt."""
    recorded = step.payload.get("prompt")
    if recorded is not None and "text" in recorded:
        return StepPrompt(content_text(store, recorded["text"]))
    first = None
    for prompt in _candidates(store, thread, step.payload):
        text = prompt.text()
        if recorded is None:
            return StepPrompt(text, UNRECORDED)
        if hash_bytes(text.encode()) == recorded["hash"]:
            return StepPrompt(text)
        first = text if first is None else first
    is_purged = MARK in (first or "") and bool(store.purged.replaced())
    return StepPrompt(first or "", PURGED if is_purged else DIFFERS)


def of_pending_step(store: Store, thread: Thread) -> StepPrompt | None:
    """Returns the prompt of the step in flight, or of the last attempt at one that failed; None
    where there is none. Raises NotFound, Corrupt."""
    fields = thread.record
    intent = fields.get("intent")
    if intent is None:
        return None
    if "prompt" in intent:
        turn = store.node(intent["prompt"], "react-turn").payload
        return StepPrompt(content_text(store, turn["input"]))
    shown = history(store, threads.backwards(store, thread), fields.get("compact"))
    workflow = threads.workflow(store, thread)
    start = threads.start(store, thread).payload
    refs = {**fields, "correction": intent.get("correction")}
    prompt = _prompt(store, workflow, role=intent["role"], start=start, shown=shown, refs=refs)
    last = next((node.payload for node in threads.backwards(store, thread)), None)
    rules = store.node(workflow, "workflow").payload["moderator"]
    instruction = rule_prompts.of_intent(rules, intent, last)
    caller = origin(store, start, fields.get("parent"))
    return StepPrompt(replace(prompt, origin=caller, instruction=instruction).text())


def of_thread(store: Store, thread: Thread, index: int | None) -> tuple[int | None, StepPrompt]:
    """Returns a step's index and prompt; for None those of the pending step, whose index is None,
    else of the last one. Raises NotFound, Corrupt."""
    pending = of_pending_step(store, thread) if index is None else None
    if pending is not None:
        return None, pending
    index = threads.length(store, thread) if index is None else index
    return index, of_step(store, thread, threads.step_at(store, thread, index))


def context(store: Store, state: NodeHash, compact: NodeHash | None) -> str:
    """Returns what a thread knew when it stood at a node of its chain, as Markdown. `compact`: a
    summary of all steps so far. Raises NotFound, Corrupt."""
    node = store.node(state)
    start = node.payload.get("start", state)
    last = None if state == start else node.payload.get("lastStep", state)
    summary, steps = history(store, threads.backwards_from(store, last), compact)
    task = content_text(store, store.node(start, "thread-start").payload["input"])
    parts = [f"# Task\n\n{task.strip()}"]
    if summary is not None:
        parts.append(f"# Summary of what went before\n\n{summary.strip()}")
    return "\n\n".join([*parts, *(step.text() for step in steps)])


def history(store: Store, newest_first: Iterable[StepNode], compact: str | None = None) -> History:
    """Returns what a prompt shows of these steps: the newest summary, and the steps from the one
    that carries it on, oldest first; only `compact`, a summary of all of them, where there is one.
    Raises NotFound, Corrupt."""
    if compact is not None:
        return content_text(store, compact), []
    steps: list[EarlierStep] = []
    summary = None
    for node in newest_first:
        step = node.payload
        output = content_text(store, step["content"])
        # The next agent, after a fork, has to know what a session's prompt was.
        if "text" in step.get("prompt", {}):
            output = f"{content_text(store, step['prompt']['text'])}\n\n---\n\n{output}"
        steps.append(EarlierStep(step["index"], step["role"], output=output, meta=step["meta"]))
        if step["compact"] is not None:
            summary = content_text(store, step["compact"])
            break
    return summary, steps[::-1]


def origin(store: Store, start: Mapping[str, Any], caller: str | None) -> str | None:
    """Returns the part of a prompt that says how to read the caller's context; None for a thread
    that no other called. `start`: payload of the thread-start; `caller`: the thread, if known."""
    state = start["parentState"]
    if state is None:
        return None
    node = store.node(state)
    if node.type == "thread-step":
        where = f"after step {node.payload['index']} ({node.payload['role']})"
    else:
        where = "before its first step"
    named = f"thread {caller}" if caller else "another thread"
    context = f"`casfs thread context {caller}` prints what it knows; " if caller else ""
    return (
        f"This thread was called by {named}, {where}. To read what led to the task: {context}"
        f"`casfs node get {state}` is the node where it stood. In that, `content` is what "
        "was said, `meta` the facts, `previous` the step before, `start` leads to the first task."
    )


def _candidates(store: Store, thread: Thread, step: Mapping[str, Any]) -> Iterator[Prompt]:
    """Yields the prompts that the step may have had, the likeliest first."""
    start = store.node(step["start"], "thread-start").payload
    family = list(_family(store, thread))
    flows = dict.fromkeys(
        [*(threads.workflow(store, relative) for relative in family), start["workflow"]]
    )
    callers = dict.fromkeys([*(relative.fields.get("parent") for relative in family), None])
    last = None if step["previous"] is None else store.node(step["previous"]).payload
    for shown, flow in product(_histories(store, step), flows):
        payload = store.node(flow, "workflow").payload
        if step["role"] in payload["roles"]:
            prompt = _prompt(
                store,
                flow,
                role=step["role"],
                start=start,
                shown=shown,
                refs=step.get("prompt", {}),
            )
            instructions = rule_prompts.between(payload["moderator"], step["role"], last)
            for caller, instruction in product(
                callers if start["parentState"] else (None,), instructions
            ):
                yield replace(prompt, origin=origin(store, start, caller), instruction=instruction)


def _histories(store: Store, step: Mapping[str, Any]) -> Iterator[History]:
    """Yields what the prompt may have shown of the steps before: the summary that the step
    carries, and the steps themselves."""
    if step["compact"] is not None:
        yield content_text(store, step["compact"]), []
    yield history(store, threads.backwards_from(store, step["previous"]))


def _family(store: Store, thread: Thread) -> Iterator[Thread]:
    """Yields the thread, the one that it was forked from, and so on."""
    for _ in range(MAX_ORIGINS):
        yield thread
        fork = thread.fields.get("fork")
        try:
            thread = threads.get(store, ThreadId(fork["thread"] if fork else ""))
        except NotFound:  # it is no fork, or the other one was removed
            return


def _prompt(
    store: Store,
    workflow: NodeHash,
    role: str,
    start: Mapping[str, Any],
    shown: History,
    refs: Mapping[str, Any],
) -> Prompt:
    """`refs`: of the step or the record, to the texts that the chain does not have."""

    def text(name: str) -> str | None:
        hash: str | None = refs.get(name)
        return hash and content_text(store, hash)

    roles = store.node(workflow, "workflow").payload["roles"]
    if role not in roles:
        raise NotFound(f"workflow {workflow} has no role {role!r}")
    part = store.node(roles[role], "role").payload
    schema = store.node(part["schema"], "role-schema").payload
    summary, steps = shown
    return Prompt(
        part["systemPrompt"],
        content_text(store, start["input"]),
        history=steps,
        ask=part["extractPrompt"],
        schema=schema,
        correction=text("correction"),
        summary=summary,
        hint=text("hint"),
        answer=text("answer"),
    )
