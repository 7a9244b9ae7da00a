"""The `acp` agent: any program that speaks the Agent Client Protocol (`engine.acp`).

The prompt is one prompt of a session, a correction the next one of the same session. After a crash,
or a person's answer to its question, the agent goes on with its session where it can load it, else
begins a new one and is told what it had done.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import trio

from casfs.agents import AgentContext, AgentFn, AgentResult
from casfs.errors import Failed
from casfs.system import rmtree
from engine.acp import protocol
from engine.acp.client import Launch
from engine.acp.permissions import ALLOW, ASK, DENY
from engine.acp.session import Session
from engine.agents import program
from engine.agents.react import SANDBOX_PROPERTIES, sandbox_settings

RULE = {"enum": [ALLOW, ASK, DENY]}
KEY_NAMES = "(?i)(key|token|secret|passw(or)?d|credentials?)$"
KEY_VALUES = "^(sk-|pk-|gh[a-z]_|github_pat_|glpat-|xox[a-z]-|AKIA|AIza|eyJ|Bearer )"

package_descriptor = {
    "name": "acp",
    "capabilities": ["answer", "edit", "run"],
    "configSchema": {
        "type": "object",
        "properties": {
            "argv": program.ARGV,
            "env": {
                "type": "object",
                "propertyNames": {
                    "pattern": "^[A-Za-z_][A-Za-z0-9_]*$",
                    "not": {"pattern": KEY_NAMES},
                },
                "additionalProperties": {"type": "string", "not": {"pattern": KEY_VALUES}},
                "description": "Variables; no keys, which are variables of the daemon (`secrets`).",
            },
            "mode": {"type": "string", "description": "Of the session, as the agent names it."},
            "model": {"type": "string", "description": "Of the session, as the agent names it."},
            "login": {"type": "string", "description": "Method to authenticate by, if asked for."},
            "permissions": {
                "anyOf": [RULE, {"type": "object", "additionalProperties": RULE}],
                "description": "For all tools, or by a tool's kind or name; `*`: the others.",
            },
            "mcp": {"type": "boolean", "description": "Give it the store as tools (`casfs mcp`)."},
            "files": {
                "type": "boolean",
                "description": "Whether casfs offers it to read and write files.",
            },
            **SANDBOX_PROPERTIES,
            "timeoutS": program.TIMEOUT_S,
            "secrets": program.SECRETS,
        },
        "required": ["argv"],
        "additionalProperties": False,
    },
    "schemas": [],
}


def create_agent(config: Mapping[str, Any]) -> AgentFn:
    shell, policy = sandbox_settings(config), config.get("permissions", ASK)
    timeout = float(config.get("timeoutS", program.DEFAULT_TIMEOUT_S))

    async def agent(context: AgentContext) -> AgentResult:
        await protocol.load()
        session = context.conversation.get(Session.KEY)
        if session is None or not context.prompt.correction:
            launch = await _launch(context, config)
            session = Session(context, launch, policy, shell)
            await session.enter()
            context.conversation[Session.KEY] = session
        result: AgentResult = await session.ask(context, timeout)
        return result

    return agent


async def _launch(context: AgentContext, config: Mapping[str, Any]) -> Launch:
    env = program.environment(context)
    directory = context.workspace
    if directory is None:
        directory = await trio.to_thread.run_sync(program.scratch_directory, context)
        context.exit_stack.push_async_callback(_delete, directory)
    return Launch(
        config["argv"],
        {**env, **config.get("env", {})},
        directory,
        partial(program.last_line, context),
        config.get("mode"),
        config.get("model"),
        config.get("login"),
        [store_server(context, env)] if config.get("mcp") else [],
        config.get("files", True),
    )


async def _delete(directory: Path) -> None:
    with trio.CancelScope(shield=True), suppress(Failed):
        await trio.to_thread.run_sync(rmtree.delete, directory)


def store_server(context: AgentContext, env: Mapping[str, str]) -> dict[str, Any]:
    """Returns the MCP server by which the agent reads the store: `casfs mcp`."""
    variables = {name: value for name, value in env.items() if name.startswith("CASFS_")}
    return {
        "name": "casfs",
        "command": sys.executable,
        "args": ["-m", "casfs", "--store", str(context.store.root), "mcp"],
        "env": [{"name": name, "value": value} for name, value in variables.items()],
    }
