"""The `workflow` agent: plays a role by child threads of other workflows, in sequence (seed 003).

Each call is a child thread that starts on the workspace that the call before left; the step gets
the last one's. A call that does not end with return code 0 is the last. The output is the last
output of the last child.

The meta is what the config's `meta` makes, a JSONata expression over the last child
(`engine.moderator.conditions`): `end` is its {returnCode, summary, meta, output}, `calls` a list of
these, `filesChanged` by all. Without one, blocks of what is known follow the output: the child's
own meta; that with `status` (its own, else `completed` or `failed`), `returnCode` and `summary`;
and of these and `filesChanged` what the role-schema names.

A correction could not change what is known, so where nothing fits the attempt fails at once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, cast

import trio

from casfs.agents import AgentContext, AgentFailed, AgentFn, AgentResult, Call, Called
from casfs.digest import Digest, TreeHash
from casfs.errors import Invalid
from casfs.store.store import Store
from casfs.threads import threads
from casfs.trees import tree
from engine.moderator.decision import DecisionInput
from engine.moderator.evaluator_pool import WorkerPool
from engine.output.parser import extract, role_schema
from engine.secrets.config_marks import EXPRESSION

NESTED_AGENT = {
    "format": "agent",
    "oneOf": [
        {"type": "string", "minLength": 1},
        {
            "type": "object",
            "properties": {
                "package": {"type": "string", "minLength": 1},
                "name": {"type": "string", "minLength": 1, "description": "As package."},
                "config": {"type": "object"},
                "version": {"type": "string"},
            },
            "oneOf": [{"required": ["package"]}, {"required": ["name"]}],
            "additionalProperties": False,
        },
    ],
}
CALL_PROPERTIES = {
    "workflow": {"type": "string", "minLength": 1, "description": "Name or hash."},
    "agents": {
        "type": "object",
        "additionalProperties": NESTED_AGENT,
        "description": "By role, as in a workflow file; the others are the called file's.",
    },
    "input": {"type": "string", "description": "The task; else this role's whole prompt."},
    "maxRounds": {"type": "integer", "minimum": 1},
}
META = {"type": "string", "format": EXPRESSION, "description": "Makes this role's meta: JSONata."}
SINGLE_CALL = {"required": ["workflow"], "additionalProperties": False}

package_descriptor = {
    "name": "workflow",
    "capabilities": ["call"],
    "configSchema": {
        "type": "object",
        "oneOf": [
            {**SINGLE_CALL, "properties": {**CALL_PROPERTIES, "meta": META}},
            {
                "required": ["calls"],
                "properties": {
                    "calls": {
                        "type": "array",
                        "items": {"type": "object", **SINGLE_CALL, "properties": CALL_PROPERTIES},
                        "minItems": 1,
                        "maxItems": 12,
                    },
                    "meta": META,
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
        for call in wanted:
            done.append(await context.call(_call(context, call, done)))
            if done[-1].return_code != 0:
                break
        duration = round((time.monotonic() - begin) * 1000)
        detail = await trio.to_thread.run_sync(_put_detail, context.store, done, duration)
        context.conversation["detail"] = detail.hash
        if "meta" in config:
            blocks = [await _made_block(context, config["meta"], done=done, detail=detail)]
        else:
            blocks = await trio.to_thread.run_sync(_known_blocks, context, done)
        output = "\n\n".join([done[-1].output.strip(), *blocks]).strip() + "\n"
        last = done[-1]
        return AgentResult(output, detail, workspace=last.workspace, recorded=last.recorded)

    return agent


def _call(context: AgentContext, call: Mapping[str, Any], done: list[Called]) -> Call:
    return Call(
        call["workflow"],
        call.get("input") or context.prompt.text(),
        call.get("agents", {}),
        done[-1].workspace if done else None,
        call.get("maxRounds", Call.max_steps),
        recorded=done[-1].recorded if done else {},
    )


def _put_detail(store: Store, done: list[Called], duration_ms: int) -> Digest:
    payload = {
        "ends": [called.end for called in done],
        "totalTokens": sum(called.tokens for called in done),
        "durationMs": duration_ms,
    }
    return store.put_node("call-detail", payload)


async def _made_block(context: AgentContext, text: str, done: list[Called], detail: Digest) -> str:
    """Returns the value of the expression `text`. Raises AgentFailed where it fails, or does not
    fit the role-schema."""
    calls = [
        {"returnCode": called.return_code, "summary": called.summary, "meta": called.meta}
        | {"output": called.output}
        for called in done
    ]

    def load() -> DecisionInput:
        end = context.store.node(done[-1].end, "thread-end").payload
        steps = [step.payload for step in threads.backwards_from(context.store, end["lastStep"])]
        start = context.store.node(end["start"], "thread-start").payload
        return DecisionInput(steps[::-1], start, done[-1].thread)

    try:
        decision_input = await trio.to_thread.run_sync(load)
        files = await trio.to_thread.run_sync(_changed_paths, context.store, done)
        names = {"calls": calls, "end": calls[-1], "filesChanged": files}
        async with WorkerPool() as workers:
            block = _block(await workers.value(text, decision_input, names))
        document = {
            key: definition for key, definition in context.prompt.schema.items() if key != "default"
        }
        schema = role_schema(document)  # a value that does not fit is a fault, not a missing report
        await trio.to_thread.run_sync(extract, block, schema, context.store)
    except Invalid as error:
        fault = str(error).replace("the JSON block", "its value", 1)
        raise AgentFailed(f"config.meta: {fault}", detail.hash) from error
    return block


def _block(value: object) -> str:
    return f"```json\n{json.dumps(value, ensure_ascii=False)}\n```"


def _known_blocks(context: AgentContext, done: list[Called]) -> list[str]:
    last = done[-1]
    status = "completed" if last.return_code == 0 else "failed"
    meta = {"status": status, **last.meta}
    if last.return_code != 0:
        meta["status"] = status
    summary = meta.get("summary", last.summary)
    extended = {**meta, "returnCode": last.return_code, "summary": summary}
    known = {"filesChanged": _changed_paths(context.store, done), **extended}
    named = context.prompt.schema.get("properties") or {}
    named_fields = {name: value for name, value in known.items() if name in named}
    return [
        _block(fields) for fields in (named_fields, meta, extended)
    ]  # tried from the last to the first


def _changed_paths(store: Store, done: list[Called]) -> list[str]:
    """Returns the files that differ between the first call's start and the last one's end."""
    start = store.node(store.node(done[0].end, "thread-end").payload["start"]).payload
    changes = tree.diff(store, start["workspace"], cast("TreeHash | None", done[-1].workspace))
    files = [change.path for change in changes if tree.subtree(change.new or change.old) is None]
    return [path.decode("utf-8", "replace") for path in files]
