"""The action cache for steps: the agent of a cacheable role is not run for equal inputs.

The action is a pending step. Its key covers the inputs of its agent: the role, the whole prompt
(so every earlier step), the workspace, the agent's package, config and *installed* version, the
step's place in the thread, PATH and the platform. A role whose agent depends on anything else
must not be marked: the other variables of the daemon's environment, the clock, the network, the
state of a model server.

A result is saved only if its meta could be extracted, right after its step was committed; a
failure to save is logged and does not fail the step. A cache hit takes over output, artifacts,
detail and workspace; the meta is extracted from the output again. The step itself refers to
all of it, so the result is cache only, which `casfs.maintenance.gc` may evict.

Equal steps at the same time wait for one another (`engine.runtime.single_flight`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from casfs import canonical
from casfs.actions import cache as actions
from casfs.actions.key import DEFAULT_VARIABLE, Action, host_platform, input_fields
from casfs.agents import AgentResult
from casfs.agents.prompt import Prompt
from casfs.backend.derived import note_use
from casfs.digest import Digest, hash_bytes
from casfs.errors import Corrupt, Invalid, NotFound
from casfs.store.conflict_retry import retry_on_conflict
from casfs.store.nodes.schema import Schema
from casfs.store.store import Store
from casfs.store.write_batch import Batch
from casfs.trees import recorded_state
from casfs.trees.recorded_state import RecordedState
from engine import content
from engine.agents import loader
from engine.output.parser import extract
from engine.runtime.attempt import StepResult
from engine.workflow.registry import Role

EMPTY_DIRECTORY: dict[str, Any] = {"files": [], "directories": [], "symlinks": []}


@dataclass(frozen=True)
class StepInputs:
    """The inputs of a pending step. `agent`: its node; `workspace`: the directory before, of
    which private and derived files count, too."""

    role: Role
    name: str
    index: int
    depth: int
    agent: str
    prompt: Prompt
    workspace: RecordedState | None
    env: Mapping[str, str]


def identify(store: Store, inputs: StepInputs) -> Action:
    """Returns the action of a pending step; stores what its key covers. Raises NotFound, Failed
    (the agent)."""
    with store.batch() as batch:
        payload: dict[str, Any] = {
            "argv": [],
            "cwd": ".",
            "env": {key: inputs.env[key] for key in (DEFAULT_VARIABLE,) if key in inputs.env},
            **input_fields(inputs.workspace),
            "outputs": [],
            "platform": host_platform(),
            "timeoutMs": None,
            "step": _step_key(store, batch, inputs),
        }
        node = batch.put_node("action", payload)
    return Action(node.hash, payload)


def _step_key(store: Store, batch: Batch, inputs: StepInputs) -> dict[str, Any]:
    recorded = store.node(inputs.agent, "agent").payload
    version = f"=={loader.load(recorded['package']).version}"  # installed, not resolved
    agent = {**recorded, "version": version}
    prompt = inputs.prompt
    parts = {**vars(prompt), "history": [vars(step) for step in prompt.history]}
    del parts["answer"]  # the prompt of a first attempt has none
    if prompt.instruction is None:
        del parts["instruction"]  # as in keys of before there were any
    return {
        "role": inputs.role.hash,
        "name": inputs.name,
        "index": inputs.index,
        "depth": inputs.depth,
        "agent": batch.put_node("agent", agent).hash,
        "prompt": content.put(batch, prompt.text()),
        "parts": hash_bytes(canonical.encode(parts)),
    }


def lookup(store: Store, action: Action, prompt: Prompt, schema: Schema) -> StepResult | None:
    """Returns the cached result of equal inputs; None on a miss, and where the result is
    damaged, incomplete or does not fit `schema`."""
    begin = time.monotonic()
    result = actions.lookup(store, action.hash)
    if result is None or result.detail is None:
        return None
    try:
        state = result.outputs
        store.node(state.tree, "directory")
        store.node(state.full, "directory")
        output = store.get(result.stdout).decode()
        extracted = extract(output, schema, store)
        detail = Digest(result.detail, store.blobs.info([result.detail])[result.detail].size)
    except (Corrupt, NotFound, Invalid, KeyError):
        return None
    note_use(store.heads, [actions.head_name(action.hash)])
    saved = result.duration_ms - round((time.monotonic() - begin) * 1000)
    return StepResult(
        AgentResult(output, detail, tuple(result.artifacts)),
        extracted,
        prompt=prompt,
        extraction="block",
        workspace=None if action.payload["inputRoot"] is None else state,
        cached={"action": action.hash, "savedMs": max(0, saved)},
    )


def save(
    store: Store,
    action: Action,
    step: Mapping[str, Any],
    state: RecordedState | None,
    duration_ms: int,
) -> None:
    """Saves a committed step as the cached result of its inputs; `state`: of the directory after
    it. Raises CasfsError."""
    output = store.node(step["content"], content.TYPE).payload
    with store.batch() as batch:
        payload = {
            "action": action.hash,
            "exitCode": 0,
            "stdout": batch.put(output["text"].encode()).hash,
            "stderr": batch.put(b"").hash,
            "outputs": step["workspace"] or batch.put_node("directory", EMPTY_DIRECTORY).hash,
            "detail": step["detail"],
            "artifacts": output["artifacts"],
            "durationMs": duration_ms,
            "createdAt": step["completedAt"],
        }
        result = recorded_state.put_node(batch, actions.TYPE, payload=payload, state=state).hash
    retry_on_conflict(lambda: actions.publish(store, action, result))
