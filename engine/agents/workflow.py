"""The `workflow` agent: plays a role by child threads of other workflows, in sequence (seed 003).

Each call is a child thread that starts on the workspace that the call before left; the step gets
the last one's. A call that does not end with return code 0 is the last. The output is the last
output of the last child. It is followed by two blocks: the child's own meta, and that meta with
`status` (its own, else `completed` or `failed`), `returnCode` and `summary`, so that a role-schema
may ask for either.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import trio

from casfs.agents import AgentContext, AgentFn, AgentResult, Call, Called

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
        begin = time.monotonic()
        done: list[Called] = []
        for one in wanted:
            done.append(await context.call(_call(context, one, done)))
            if done[-1].return_code != 0:
                break
        duration = round((time.monotonic() - begin) * 1000)
        return await trio.to_thread.run_sync(_result, context, done, duration)

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
    blocks = [f"```json\n{json.dumps(one, ensure_ascii=False)}\n```" for one in (meta, extended)]
    output = "\n\n".join([last.output.strip(), *blocks]).strip() + "\n"
    detail = context.store.put_node("call-detail", payload)
    return AgentResult(output, detail, workspace=last.workspace)
