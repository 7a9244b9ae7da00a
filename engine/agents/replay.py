"""The `replay` agent: repeats the outputs of a role in a recorded thread, in the same order.

The n-th time that its role is asked in a thread, it returns the output, artifacts, detail and
workspace of the role's n-th step in the recorded one. So a thread whose roles are all played by
it runs through any workflow with these roles without a model. How a changed workflow routes
recorded steps, without a new thread, is `engine.threads.reroute`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import trio

from casfs.agents import AgentContext, AgentFn, AgentResult
from casfs.checkpoints import revisions
from casfs.digest import Digest
from casfs.errors import Failed
from casfs.store.store import Store
from casfs.threads import lookup, threads

package_descriptor = {
    "name": "replay",
    "capabilities": ["answer"],
    "configSchema": {
        "type": "object",
        "properties": {
            "thread": {"type": "string", "description": "The recorded thread's id."},
            "role": {"type": "string", "description": "Its role, where the name differs."},
        },
        "required": ["thread"],
        "additionalProperties": False,
    },
    "schemas": [],
}


def create_agent(config: Mapping[str, Any]) -> AgentFn:
    async def agent(context: AgentContext) -> AgentResult:
        role = config.get("role", context.role)
        return await trio.to_thread.run_sync(_replay, context, config["thread"], role)

    return agent


def _replay(context: AgentContext, thread: str, role: str) -> AgentResult:
    store = context.store
    before = len(_steps(store, context.thread, context.role))
    recorded = _steps(store, thread, role)
    if before >= len(recorded):
        raise Failed(f"thread {thread} has {len(recorded)} steps of {role}; no other was recorded")
    step = store.node(recorded[before], "thread-step").payload
    content = store.node(step["content"], "content").payload
    size = store.blobs.info([step["detail"]])[step["detail"]].size
    state = None
    if context.workspace is not None:
        state = revisions.state_if_any(store, recorded[before])
    return AgentResult(
        content["text"],
        Digest(step["detail"], size),
        tuple(content["artifacts"]),
        workspace=None if state is None else state.tree,
        recorded={} if state is None else state.fields,
    )


def _steps(store: Store, thread: str, role: str) -> list[str]:
    """Returns the hashes of a role's steps, oldest first (memoised by `threads.steps`)."""
    recorded_thread = lookup.find(store, thread)
    return [step.hash for step in threads.steps(store, recorded_thread) if step.role == role]
