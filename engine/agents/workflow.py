"""The `workflow` agent: whole workflows play the role, one after the other (seed 003).

Each call is a thread of its own that begins with the workspace that the call before left; the
step gets the last one's. A call that does not end with return code 0 is the last. What the last
role of the last thread said is the output, and its meta, with how the thread ended, is offered
as this role's: `status` (the meta's own, else `completed` or `failed`), `returnCode`, `summary`.
A role-schema that wants none of these finds the called role's own block above.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import trio

from casfs.agents import AgentContext, AgentFn, AgentResult, Call, Called

AGENT = {
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
CALL = {
    "workflow": {"type": "string", "minLength": 1, "description": "Its name, or its hash."},
    "agents": {"type": "object", "additionalProperties": AGENT},
    "input": {"type": "string", "description": "The task; else this role's whole prompt."},
    "maxRounds": {"type": "integer", "minimum": 1},
}
ONE = {"required": ["workflow", "agents"], "properties": CALL, "additionalProperties": False}

package_descriptor = {
    "name": "workflow",
    "capabilities": ["call"],
    "configSchema": {
        "type": "object",
        "oneOf": [
            ONE,
            {
                "required": ["calls"],
                "properties": {
                    "calls": {
                        "type": "array",
                        "items": {"type": "object", **ONE},
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
        one.get("maxRounds", Call.max_rounds),
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
    told = {**meta, "returnCode": last.return_code, "summary": meta.get("summary", last.summary)}
    blocks = [f"```json\n{json.dumps(one, ensure_ascii=False)}\n```" for one in (meta, told)]
    output = "\n\n".join([last.output.strip(), *blocks]).strip() + "\n"
    detail = context.store.put_node("call-detail", payload)
    return AgentResult(output, detail, workspace=last.workspace)
