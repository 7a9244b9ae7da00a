"""The `replay` agent: says what a role said in another thread, in the same order.

The n-th time that its role is asked in a thread, it gives the output, artifacts, detail and
workspace of the role's n-th step in the recorded one. So a thread whose roles are all played by
it runs through any workflow with these roles, and no model is asked. What a changed workflow does
with recorded steps without a thread being made is `engine.threads.reroute`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import trio

from casfs import threads
from casfs.agents import AgentContext, AgentFn, AgentResult
from casfs.digest import Digest
from casfs.errors import Failed
from casfs.store import Store

package_descriptor = {
    "name": "replay",
    "capabilities": ["answer"],
    "configSchema": {
        "type": "object",
        "properties": {
            "thread": {"type": "string", "description": "The recorded thread's id."},
            "role": {"type": "string", "description": "Its role, where the name is another."},
        },
        "required": ["thread"],
        "additionalProperties": False,
    },
    "schemas": [],
}


def create_agent(config: Mapping[str, Any]) -> AgentFn:
    async def agent(context: AgentContext) -> AgentResult:
        role = config.get("role", context.role)
        return await trio.to_thread.run_sync(_replayed, context, config["thread"], role)

    return agent


def _replayed(context: AgentContext, thread: str, role: str) -> AgentResult:
    store = context.store
    before = len(_steps(store, context.thread, context.role))
    recorded = _steps(store, thread, role)
    if before >= len(recorded):
        raise Failed(f"thread {thread} has {len(recorded)} steps of {role}; no other was recorded")
    step = store.node(recorded[before], "thread-step").payload
    content = store.node(step["content"], "content").payload
    size = store.blobs.info([step["detail"]])[step["detail"]].size
    return AgentResult(
        content["text"],
        Digest(step["detail"], size),
        tuple(content["artifacts"]),
        None if context.workspace is None else step["workspace"],
    )


def _steps(store: Store, thread: str, role: str) -> list[str]:
    """The hashes of a role's steps, oldest first; of long threads most were read before."""
    found = threads.expand(store, thread)
    return [step.hash for step in threads.steps(store, found) if step.role == role]
