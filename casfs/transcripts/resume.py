"""The command by which a person goes on with a session, of each agent."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from casfs.errors import NotFound

WORDS: Mapping[str, str] = {
    "claude": "claude --resume",
    "codex": "codex resume",
    "gemini": "gemini --resume",
    "qwen": "qwen --resume",
    "opencode": "opencode -s",
}


def command(agent: str, id: str) -> str:
    """Returns the command as a person types it. Raises NotFound for an agent that has none."""
    if agent not in WORDS:
        raise NotFound(f"how {agent} goes on with a session is not known")
    return f"{WORDS[agent]} {shlex.quote(id)}"
