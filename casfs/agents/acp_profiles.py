"""Known agents that speak the Agent Client Protocol: the program of each, and how it is installed.

`acp:NAME` stands for the argv. What else an agent needs, such as a login or its model, is set up
with the agent itself, or given as `env` of the config.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class Profile(NamedTuple):
    """`argv`: starts the agent as an ACP server on stdio; `install`: a command, or an address;
    `extra_config`: of the config."""

    argv: tuple[str, ...]
    install: str
    extra_config: Mapping[str, Any] = MappingProxyType({})

    def is_installed(self, env: Mapping[str, str]) -> bool:
        """Returns whether the program is on the PATH of `env`."""
        return shutil.which(self.argv[0], path=env.get("PATH", os.defpath)) is not None


PROFILES: Mapping[str, Profile] = {
    "claude": Profile(
        ("claude-agent-acp",), "npm install -g @agentclientprotocol/claude-agent-acp"
    ),
    "codex": Profile(("codex-acp",), "npm install -g @agentclientprotocol/codex-acp"),
    "gemini": Profile(  # 0.61 cannot create a file where it is offered to read them
        ("gemini", "--acp"), "npm install -g @google/gemini-cli", {"files": False}
    ),
    "goose": Profile(("goose", "acp"), "https://block.github.io/goose"),
    "hermes": Profile(("hermes-acp",), "pip install 'hermes-agent[acp]'"),
    "opencode": Profile(("opencode", "acp"), "npm install -g opencode-ai"),
    "qwen": Profile(("qwen", "--acp"), "npm install -g @qwen-code/qwen-code"),
}


def install_hint(argv0: str) -> str:
    """Returns how to install a known agent's program, to follow a message; else an empty text."""
    hints = (profile.install for profile in PROFILES.values() if profile.argv[0] == argv0)
    return "".join(f"; to install it: {install}" for install in hints)
