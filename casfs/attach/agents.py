"""The agents that can be attached: where their settings are, and which events they report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class OutsideAgent:
    """`folder`: of its settings, in the home directory or in a project; `user_file` and
    `project_file` in it: one of the person alone, which no team shares; `events`: those that are
    reported; `timeout`: of a hook, in the unit of the agent."""

    name: str
    folder: str
    user_file: str
    project_file: str
    events: tuple[str, ...]
    timeout: int

    def settings(self, project: Path | None, home: Path) -> Path:
        """Returns the settings file of a project, or of the user."""
        if project is None:
            return home / self.folder / self.user_file
        return project / self.folder / self.project_file


# An event that a version does not know is ignored; a hook of a type that it does not know would
# make the whole file ineffective, so all are commands.
CLAUDE = OutsideAgent(
    "claude",
    folder=".claude",
    user_file="settings.json",
    project_file="settings.local.json",
    events=(
        "SessionStart",
        "UserPromptSubmit",
        "PreToolUse",
        "PostToolUse",
        # Of a call that fails, such as a command that exits with 1, it comes instead.
        "PostToolUseFailure",
        "SubagentStop",
        "PreCompact",
        "Stop",
        "SessionEnd",
    ),
    timeout=10,
)
AGENTS: Mapping[str, OutsideAgent] = {agent.name: agent for agent in (CLAUDE,)}
