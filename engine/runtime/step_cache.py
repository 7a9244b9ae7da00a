"""The action cache for steps: a role marked cacheable need not be played twice.

An action here is a step about to be made. Its key covers what its agent is given: the role,
the whole prompt (so every earlier step), the workspace, the agent's package, config and
*installed* version, the step's place in the thread, PATH and the platform. So these do not
count, and a role whose agent depends on them must not be marked: the other variables of
the daemon's environment, the clock, the network, what a model server does today.

Kept is only an answer whose meta could be extracted, right after its step was recorded;
that it could not be kept is told, and fails nothing. A hit takes over output, artifacts,
detail and workspace; the meta is extracted from the output again. The step refers to all
of it itself, so the result stays cache, which `casfs.maintenance.gc` may evict.

Equal steps at the same time run one after the other (`SingleFlight`), so the second is a hit. One
daemon runs all threads of a store, so nothing outside its process has to be locked; and
since the depth is in the key, a step never waits for one that its own children wait for.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import trio

from casfs import canonical
from casfs.actions import cache as actions
from casfs.actions import nearest
from casfs.actions.cache import HEADS, Action
from casfs.agents import AgentResult
from casfs.agents.prompt import Prompt
from casfs.backend.derived import note_use
from casfs.digest import Digest, hash_bytes
from casfs.errors import CasfsError, Corrupt, Invalid, NotFound
from casfs.nodes.schema import Schema
from casfs.store import Store
from casfs.system.log import Log
from casfs.write_batch import Batch, retried
from engine import content
from engine.agents import loader
from engine.output_parser import extract
from engine.runtime.step_record import StepResult
from engine.workflow.registry import Role

EMPTY_DIRECTORY: dict[str, Any] = {"files": [], "directories": [], "symlinks": []}


@dataclass(frozen=True)
class StepInputs:
    """What an agent is about to be asked. `agent`: its node; `workspace`: the tree before."""

    role: Role
    name: str
    index: int
    depth: int
    agent: str
    prompt: Prompt
    workspace: str | None
    env: Mapping[str, str]


class SingleFlight:
    """Lets equal actions take turns. All runs of a daemon share one."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def turn(self, key: str) -> AsyncIterator[None]:
        lock = self._locks.setdefault(key, trio.Lock())
        async with lock:
            yield


def identify(store: Store, question: StepInputs) -> Action:
    """The action that a question is; what its key covers is stored. Raises NotFound, Failed
    (the agent)."""
    with store.batch() as batch:
        payload: dict[str, Any] = {
            "argv": [],
            "cwd": ".",
            "env": {key: question.env[key] for key in (actions.ALWAYS,) if key in question.env},
            "inputRoot": question.workspace,
            "outputs": [],
            "platform": actions.host(),
            "timeoutMs": None,
            "step": _step(store, batch, question),
        }
        node = batch.put_node("action", payload)
    return Action(node.hash, payload)


def _step(store: Store, batch: Batch, question: StepInputs) -> dict[str, Any]:
    agent = dict(store.node(question.agent, "agent").payload)
    agent["version"] = f"=={loader.load(agent['package']).version}"  # whatever was resolved
    return {
        "role": question.role.hash,
        "name": question.name,
        "index": question.index,
        "depth": question.depth,
        "agent": batch.put_node("agent", agent).hash,
        "prompt": content.put(batch, question.prompt.text()),
        "parts": hash_bytes(canonical.encode(_parts(question.prompt))),
    }


def _parts(prompt: Prompt) -> dict[str, Any]:
    return {**vars(prompt), "history": [vars(turn) for turn in prompt.history]}


def lookup(store: Store, action: Action, schema: Schema) -> StepResult | None:
    """The earlier answer to a question; None where there is none that can still be used."""
    begin = time.monotonic()
    result = actions.lookup(store, action.hash)
    if result is None or result.detail is None:
        return None
    try:
        store.node(result.outputs, "directory")
        output = store.get(result.stdout).decode()
        found = extract(output, schema, store)
        detail = Digest(result.detail, store.blobs.info([result.detail])[result.detail].size)
    except (Corrupt, NotFound, Invalid, KeyError):
        return None
    note_use(store.heads, [HEADS + action.hash])
    saved = result.duration_ms - round((time.monotonic() - begin) * 1000)
    return StepResult(
        AgentResult(output, detail, tuple(result.artifacts)),
        found,
        "block",
        None if action.payload["inputRoot"] is None else result.outputs,
        {"action": action.hash, "savedMs": max(0, saved)},
    )


def looked_up(
    store: Store, action: Action, schema: Schema, log: Log, place: Mapping[str, Any]
) -> StepResult | None:
    """`lookup`, told in the log."""
    found = lookup(store, action, schema)
    if found is None:
        log("miss", **place, action=action.hash, reason=nearest.explain(store, action))
    elif found.cached is not None:
        log("hit", **place, action=action.hash, savedMs=found.cached["savedMs"])
    return found


def kept(
    store: Store,
    action: Action,
    step: Mapping[str, Any],
    duration_ms: int,
    log: Log,
    place: Mapping[str, Any],
) -> None:
    """`keep`, for a step that is recorded already: that it cannot be kept must not fail it."""
    try:
        keep(store, action, step, duration_ms)
    except CasfsError as error:
        log("not cached", **place, action=action.hash, error=str(error))


def keep(store: Store, action: Action, step: Mapping[str, Any], duration_ms: int) -> None:
    """Let a recorded step answer the same question again. Raises CasfsError."""
    said = store.node(step["content"], content.TYPE).payload
    with store.batch() as batch:
        payload = {
            "action": action.hash,
            "exitCode": 0,
            "stdout": batch.put(said["text"].encode()).hash,
            "stderr": batch.put(b"").hash,
            "outputs": step["workspace"] or batch.put_node("directory", EMPTY_DIRECTORY).hash,
            "detail": step["detail"],
            "artifacts": said["artifacts"],
            "durationMs": duration_ms,
            "createdAt": step["completedAt"],
        }
        result = batch.put_node("action-result", payload).hash
    retried(lambda: actions.publish(store, action, result))
