"""What a role's agent came up with, and the thread-step that records it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from casfs import threads
from casfs.agents import AgentResult
from casfs.store import Store
from casfs.system.clock import now_ms
from casfs.threads import Thread
from casfs.trees.diff import patch
from casfs.write_batch import Batch
from engine import content
from engine.output_parser import Extracted
from engine.threads.record import Intent


@dataclass(frozen=True)
class StepResult:
    """`way`: how the meta was obtained; `workspace`: the tree the agent left; `cached`: what
    the step says where the agent was not run, else None."""

    result: AgentResult
    found: Extracted
    way: str
    workspace: str | None = None
    cached: Mapping[str, Any] | None = None


@dataclass
class UncommittedStep:
    """A step that an answer was made into. `batch` holds it until it is `recorded`; `tokens`:
    what the try took."""

    batch: Batch
    payload: dict[str, Any]
    answer: StepResult
    tokens: int
    recorded: bool = False


@dataclass(frozen=True)
class StepPosition:
    """Where in its thread a step stands. `before`: the steps before, the first one first;
    `workspace`: the tree that it starts from; `agent`: the node of the agent; `ends`: of the
    threads that it called."""

    thread: Thread
    intent: Intent
    before: Sequence[str]
    workspace: str | None
    agent: str
    ends: Sequence[str] = ()


def step_payload(
    store: Store, batch: Batch, at: StepPosition, answer: StepResult
) -> dict[str, Any]:
    """The payload of a thread-step; its content and changes are put into `batch`."""
    artifacts = list(dict.fromkeys([*answer.found.refs, *answer.result.artifacts]))
    changes = patch.patch(store, at.workspace, answer.workspace)
    payload = {
        "index": at.intent["index"],
        "role": at.intent["role"],
        "meta": dict(answer.found.meta),
        "content": content.put(batch, answer.result.output, artifacts),
        "detail": answer.result.detail.hash,
        "agent": at.agent,
        "start": at.thread.record["start"],
        **threads.links(at.before),
        "compact": at.thread.record["compact"],
        "childThreads": list(at.ends),
        "attempts": list(at.thread.record["attempts"]),
        "extraction": answer.way,
        "workspace": answer.workspace,
        "changes": batch.put(changes).hash if changes else None,
        "startedAt": at.intent["since"],
        "completedAt": now_ms(),
    }
    return payload if answer.cached is None else {**payload, "cached": dict(answer.cached)}
