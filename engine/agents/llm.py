"""The `llm` agent: one call of a chat model, no tools. Its detail is a `react-session`.

With `"reply": "json"` the server is made to answer with the role's meta and nothing else;
with `text`, the default, the model says what it likes and is told how to write the meta.
Where the model is comes from the config; the key from the variable that the config names,
so that it is in no node. The functions here that read a config are the reactor's, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from casfs.agents import AgentContext, AgentFn, AgentResult
from casfs.errors import Failed
from engine.llm import react
from engine.llm.client import ANSWER_TIMEOUT_S, MAX_ATTEMPTS, Endpoint

ENDPOINT: dict[str, Any] = {
    "baseUrl": {"type": "string", "description": "Such as http://127.0.0.1:8080/v1."},
    "baseUrlEnv": {"type": "string", "description": "A variable that holds it instead."},
    "model": {"type": "string", "minLength": 1},
    "apiKeyEnv": {
        "type": "string",
        "format": "env",
        "description": "The variable that holds the key; without it none is sent.",
    },
    "temperature": {"type": "number", "minimum": 0},
    "maxTokens": {"type": "integer", "minimum": 1, "description": "Of one answer."},
    "options": {"type": "object", "description": "More of the request, as the server takes it."},
    "timeoutS": {"type": "number", "exclusiveMinimum": 0, "description": "For one answer."},
    "attempts": {"type": "integer", "minimum": 1},
    "longestString": {
        "type": "integer",
        "minimum": 1,
        "description": "Characters of a string in forced JSON; small models do not end one.",
    },
    "strict": {"type": "boolean", "description": "Ask for schemas to be kept strictly."},
}
SOMEWHERE = [{"required": ["baseUrl"]}, {"required": ["baseUrlEnv"]}]

package_descriptor = {
    "name": "llm",
    "capabilities": ["answer"],
    "configSchema": {
        "type": "object",
        "properties": {**ENDPOINT, "reply": {"enum": ["text", "json"]}},
        "required": ["model"],
        "oneOf": SOMEWHERE,
        "additionalProperties": False,
    },
    "schemas": [],
}


def create_agent(config: Mapping[str, Any]) -> AgentFn:
    async def agent(context: AgentContext) -> AgentResult:
        return await react.answer(
            context,
            endpoint(config, context.env),
            structured=config.get("reply") == "json",
            strict=config.get("strict", False),
            longest=config.get("longestString"),
        )

    return agent


def endpoint(config: Mapping[str, Any], env: Mapping[str, str]) -> Endpoint:
    """Raises Failed naming the variable that is not set."""
    options = dict(config.get("options", {}))
    for key, name in (("temperature", "temperature"), ("maxTokens", "max_tokens")):
        if key in config:
            options[name] = config[key]
    return Endpoint(
        config.get("baseUrl") or _variable(config["baseUrlEnv"], env),
        config["model"],
        _variable(config["apiKeyEnv"], env) if "apiKeyEnv" in config else None,
        float(config.get("timeoutS", ANSWER_TIMEOUT_S)),
        config.get("attempts", MAX_ATTEMPTS),
        options,
    )


def _variable(name: str, env: Mapping[str, str]) -> str:
    if not env.get(name):
        raise Failed(f"{name} is not set in the daemon's environment; set it and start it again")
    return env[name]
