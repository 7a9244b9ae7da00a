"""The `human` agent: a person plays the role.

It suspends the thread with its question; `casfs thread resume ID --input TEXT` gives the answer,
and the role is run again. An answer that is a JSON object is the meta; one that does not fit comes
back as a question with the reason. A `human-detail` records both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import trio

from casfs import canonical
from casfs.agents import HUMAN, AgentContext, AgentFn, AgentResult, Waiting
from casfs.errors import Invalid
from engine import content

package_descriptor = {
    "name": "human",
    "capabilities": ["ask"],
    "configSchema": {
        "type": "object",
        "properties": {
            "question": {
                "type": "string",
                "minLength": 1,
                "description": "One line for the person; else the role's extractPrompt.",
            }
        },
        "additionalProperties": False,
    },
    "schemas": [],
}


def create_agent(config: Mapping[str, Any]) -> AgentFn:
    async def agent(context: AgentContext) -> AgentResult:
        return await trio.to_thread.run_sync(_ask_or_record, context, config.get("question"))

    return agent


def _ask_or_record(context: AgentContext, question: str | None) -> AgentResult:
    prompt = replace(context.prompt, answer=None)
    if context.answer is None:
        shown = content.put(context.store, prompt.text())
        line = question or prompt.ask
        fault = f" ({prompt.correction})" if prompt.correction else ""
        raise Waiting(HUMAN, f"{context.role}: {line}{fault}", shown)
    with context.store.batch() as batch:
        shown = content.put(batch, prompt.text())
        answer = content.put(batch, context.answer)
        detail = batch.put_node("human-detail", {"question": shown, "answer": answer})
    return AgentResult(as_output(context.answer), detail)


def as_output(answer: str) -> str:
    """Puts a bare JSON object into a block, the form in which the meta is extracted."""
    try:
        value = canonical.parse(answer)
    except Invalid:
        return answer
    if not isinstance(value, dict):
        return answer
    return f"```json\n{json.dumps(value, ensure_ascii=False, indent=2)}\n```\n"
