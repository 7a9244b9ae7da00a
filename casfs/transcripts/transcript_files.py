"""The transcripts that agents leave in their configuration directories."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from casfs.transcripts import claude, codex, gemini, json_lines
from casfs.transcripts.json_lines import Lines

# Codex compresses what was not written to for a week.
PATTERNS: Mapping[str, tuple[str, ...]] = {
    "claude": ("projects/*/*.jsonl",),
    "codex": tuple(
        f"{folder}/rollout-*.jsonl{suffix}"
        for folder in ("sessions/**", "archived_sessions")
        for suffix in ("", json_lines.COMPRESSED)
    ),
    "gemini": ("tmp/*/chats/*.jsonl",),
}
About = Callable[[Path, Lines], tuple[str, str]]
ABOUT: Mapping[str, About] = {
    "claude": claude.about,
    "codex": codex.about,
    "gemini": gemini.about,
}


def find(agent: str, home: Path) -> list[Path]:
    """Returns the transcripts that an agent has left in its directory, oldest first."""
    paths = json_lines.oldest_first(
        path for pattern in PATTERNS[agent] for path in home.glob(pattern)
    )
    # The rollout of a subagent comes with that of its parent.
    return [path for path in paths if agent != "codex" or codex.parent(path) is None]
