"""The `llm` agent: one call of a chat model, no tools. Its detail is a `react-session`.

With `"reply": "json"` the server is made to answer with the role's meta and nothing else;
with `text`, the default, the model answers freely and is told how to write the meta. The config
names the endpoint, and the variable that holds the key, so that the key is in no node. The
`react` agent uses the config functions here too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from casfs.agents import AgentContext, AgentFn, AgentResult
from casfs.errors import Failed
from engine.llm import react
from engine.llm.client import ANSWER_TIMEOUT_S, MAX_ATTEMPTS, Endpoint

ENDPOINT_PROPERTIES: dict[str, Any] = {
    "baseUrl": {"type": "string", "description": "Such as http://127.0.0.1:8080/v1."},
    "baseUrlEnv": {
        "type": "string",
        "format": "variable",
        "description": "A variable that holds it instead.",
    },
    "model": {"type": "string", "minLength": 1},
    "apiKeyEnv": {
        "type": "string",
        "format": "env",
        "description": "The variable that holds the key; without it none is sent.",
    },
    "temperature": {"type": "number", "minimum": 0},
    "maxTokens": {"type": "integer", "minimum": 1, "description": "Of one answer."},
    "options": {"type": "object", "description": "Further request fields, sent unchanged."},
    "timeoutS": {"type": "number", "exclusiveMinimum": 0, "description": "For one answer."},
    "attempts": {"type": "integer", "minimum": 1},
    "longestString": {
        "type": "integer",
        "minimum": 1,
        "description": "Maximum characters of a string in forced JSON.",
    },
    "strict": {"type": "boolean", "description": "Request strict schema adherence."},
}
BASE_URL_SOURCES = [{"required": ["baseUrl"]}, {"required": ["baseUrlEnv"]}]

package_descriptor = {
    "name": "llm",
    "capabilities": ["answer"],
    "configSchema": {
        "type": "object",
        "properties": {**ENDPOINT_PROPERTIES, "reply": {"enum": ["text", "json"]}},
        "required": ["model"],
        "oneOf": BASE_URL_SOURCES,
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
    """Returns the endpoint of a config. Raises Failed for a variable that is not set."""
    options = dict(config.get("options", {}))
    for key, name in (("temperature", "temperature"), ("maxTokens", "max_tokens")):
        if key in config:
            options[name] = config[key]
    return Endpoint(
        config.get("baseUrl") or _variable(config["baseUrlEnv"], env),
        config["model"],
        key=_variable(config["apiKeyEnv"], env) if "apiKeyEnv" in config else None,
        timeout=float(config.get("timeoutS", ANSWER_TIMEOUT_S)),
        attempts=config.get("attempts", MAX_ATTEMPTS),
        options=options,
    )


def _variable(name: str, env: Mapping[str, str]) -> str:
    if not env.get(name):
        raise Failed(
            f"{name} is not set, neither by the command that started or resumed the thread nor in"
            " the daemon's environment; set it and run `casfs thread resume`, or `casfs daemon"
            " restart`"
        )
    return env[name]
