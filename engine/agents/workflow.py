"""The `workflow` agent: plays a role by child threads of other workflows, in sequence (seed 003).

Each call is a child thread that starts on the workspace that the call before left; the step gets
the last one's. A call that does not end with return code 0 is the last. The output is the last
output of the last child. It is followed by blocks of what is known, so that a role-schema may ask
for any of it: the child's own meta; that meta with `status` (its own, else `completed` or
`failed`), `returnCode` and `summary`; and of these and `filesChanged` what the role-schema names.

A correction could not change what is known, so where nothing fits the attempt fails at once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, cast

import trio

from casfs.agents import AgentContext, AgentFailed, AgentFn, AgentResult, Call, Called
from casfs.digest import TreeHash
from casfs.store import Store
from casfs.trees import tree

NESTED_AGENT = {
    "type": "object",
    "format": "agent",
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "config": {"type": "object"},
        "version": {"type": "string"},
    },
    "required": ["name"],
    "additionalProperties": False,
}
CALL_PROPERTIES = {
    "workflow": {"type": "string", "minLength": 1, "description": "Name or hash."},
    "agents": {"type": "object", "additionalProperties": NESTED_AGENT},
    "input": {"type": "string", "description": "The task; else this role's whole prompt."},
    "maxRounds": {"type": "integer", "minimum": 1},
}
SINGLE_CALL = {
    "required": ["workflow", "agents"],
    "properties": CALL_PROPERTIES,
    "additionalProperties": False,
}

package_descriptor = {
    "name": "workflow",
    "capabilities": ["call"],
    "configSchema": {
        "type": "object",
        "oneOf": [
            SINGLE_CALL,
            {
                "required": ["calls"],
                "properties": {
                    "calls": {
                        "type": "array",
                        "items": {"type": "object", **SINGLE_CALL},
                        "minItems": 1,
                        "maxItems": 12,
                    }
                },
                "additionalProperties": False,
            },
        ],
    },
    "schemas": [],
}


def create_agent(config: Mapping[str, Any]) -> AgentFn:
    wanted = config.get("calls", [config])

    async def agent(context: AgentContext) -> AgentResult:
        if context.prompt.correction is not None:
            reason = f"the result of the called workflow does not fit: {context.prompt.correction}"
            raise AgentFailed(reason, context.conversation.get("detail"))
        begin = time.monotonic()
        done: list[Called] = []
        for one in wanted:
            done.append(await context.call(_call(context, one, done)))
            if done[-1].return_code != 0:
                break
        duration = round((time.monotonic() - begin) * 1000)
        result = await trio.to_thread.run_sync(_result, context, done, duration)
        context.conversation["detail"] = result.detail.hash
        return result

    return agent


def _call(context: AgentContext, one: Mapping[str, Any], done: list[Called]) -> Call:
    return Call(
        one["workflow"],
        one.get("input") or context.prompt.text(),
        one["agents"],
        done[-1].workspace if done else None,
        one.get("maxRounds", Call.max_steps),
    )


def _result(context: AgentContext, done: list[Called], duration_ms: int) -> AgentResult:
    payload = {
        "ends": [one.end for one in done],
        "totalTokens": sum(one.tokens for one in done),
        "durationMs": duration_ms,
    }
    last = done[-1]
    status = "completed" if last.return_code == 0 else "failed"
    meta = {"status": status, **last.meta}
    if last.return_code != 0:
        meta["status"] = status
    summary = meta.get("summary", last.summary)
    extended = {**meta, "returnCode": last.return_code, "summary": summary}
    known = {"filesChanged": _changed_paths(context.store, done), **extended}
    named = context.prompt.schema.get("properties") or {}
    asked = {name: value for name, value in known.items() if name in named}
    found = (asked, meta, extended)  # tried from the last to the first
    blocks = [f"```json\n{json.dumps(one, ensure_ascii=False)}\n```" for one in found]
    output = "\n\n".join([last.output.strip(), *blocks]).strip() + "\n"
    detail = context.store.put_node("call-detail", payload)
    return AgentResult(output, detail, workspace=last.workspace)


def _changed_paths(store: Store, done: list[Called]) -> list[str]:
    """Returns the files that differ between the first call's start and the last one's end."""
    start = store.node(store.node(done[0].end, "thread-end").payload["start"]).payload
    changes = tree.diff(store, start["workspace"], cast("TreeHash | None", done[-1].workspace))
    files = [one.path for one in changes if tree.subtree(one.new or one.old) is None]
    return [path.decode("utf-8", "replace") for path in files]
