"""The command by which a person goes on with a session, of each agent."""

from __future__ import annotations

from collections.abc import Mapping

WORDS: Mapping[str, str] = {
    "claude": "claude --resume",
    "codex": "codex resume",
    "gemini": "gemini --resume",
    "qwen": "qwen --resume",
    "opencode": "opencode -s",
}


def command(agent: str, id: str) -> str:
    return f"{WORDS[agent]} {id}"
