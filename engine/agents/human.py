"""The `human` agent: a person plays the role.

Asked, it lays the thread to rest with its question; `casfs thread resume ID --input TEXT` gives
the answer, and the role is asked again. An answer that is a JSON object stands for the meta; one
that does not fit comes back as a question that says why. A `human-detail` keeps both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
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
                "description": "One line for the person; else what the role is to report.",
            }
        },
        "additionalProperties": False,
    },
    "schemas": [],
}


def create_agent(config: Mapping[str, Any]) -> AgentFn:
    async def agent(context: AgentContext) -> AgentResult:
        return await trio.to_thread.run_sync(_played, context, config.get("question"))

    return agent


def _played(context: AgentContext, question: str | None) -> AgentResult:
    prompt = context.prompt
    if context.answer is None:
        shown = content.put(context.store, prompt.text())
        line = question or prompt.ask
        fault = f" ({prompt.correction})" if prompt.correction else ""
        raise Waiting(HUMAN, f"{context.role}: {line}{fault}", shown)
    with context.store.batch() as batch:
        shown = content.put(batch, prompt.text())
        said = content.put(batch, context.answer)
        detail = batch.put_node("human-detail", {"question": shown, "answer": said})
    return AgentResult(_as_output(context.answer), detail)


def _as_output(answer: str) -> str:
    """A bare JSON object becomes a block, as the extractor reads it."""
    try:
        value = canonical.parse(answer)
    except Invalid:
        return answer
    if not isinstance(value, dict):
        return answer
    return f"```json\n{json.dumps(value, ensure_ascii=False, indent=2)}\n```\n"
