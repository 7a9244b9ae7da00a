"""The `react` agent: a chat model with tools in its workspace (`engine.llm.react`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from casfs.agents import AgentContext, AgentFn, AgentResult
from engine.agents.llm import BASE_URL_SOURCES, ENDPOINT_PROPERTIES, endpoint
from engine.llm import react
from engine.llm.react import DEFAULT_MAX_TURNS, JSON, NATIVE, Options
from engine.llm.sandbox import Settings
from engine.llm.tools import TOOLS

SANDBOX_PROPERTIES: dict[str, Any] = {
    "commandTimeoutS": {"type": "number", "exclusiveMinimum": 0},
    "network": {"type": "boolean", "description": "Network access of commands."},
    "paths": {
        "type": "array",
        "items": {"type": "string", "pattern": "^/"},
        "description": "Further directories that commands may read.",
    },
    "allowShell": {"type": "boolean", "description": "Run commands without bubblewrap."},
}
package_descriptor = {
    "name": "react",
    "capabilities": ["answer", "edit", "run", "continue"],
    "configSchema": {
        "type": "object",
        "properties": {
            **ENDPOINT_PROPERTIES,
            "mode": {
                "enum": [NATIVE, JSON],
                "description": "native: the model has tool_calls; json: actions are forced JSON.",
            },
            "tools": {"type": "array", "items": {"enum": sorted(TOOLS)}, "uniqueItems": True},
            "maxTurns": {"type": "integer", "minimum": 1},
            **SANDBOX_PROPERTIES,
        },
        "required": ["model"],
        "oneOf": BASE_URL_SOURCES,
        "additionalProperties": False,
    },
    "schemas": [],
}


def create_agent(config: Mapping[str, Any]) -> AgentFn:
    options = Options(
        config.get("mode", NATIVE),
        config.get("maxTurns", DEFAULT_MAX_TURNS),
        names=config.get("tools"),
        strict=config.get("strict", False),
        longest=config.get("longestString"),
        shell=sandbox_settings(config),
    )

    async def agent(context: AgentContext) -> AgentResult:
        return await react.react(context, endpoint(config, context.env), options)

    return agent


def sandbox_settings(config: Mapping[str, Any]) -> Settings:
    return Settings(
        config.get("paths", ()),
        config.get("network", False),
        allow_shell=config.get("allowShell", False),
        timeout=float(config.get("commandTimeoutS", Settings.timeout)),
    )
