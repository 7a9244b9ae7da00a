"""The agents that can be attached: where their settings are, and which events they report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class OutsideAgent:
    """`user_file`: its settings, in the home directory; `project_file`: those in a project that no
    team shares, None where it has none. `events`: those that are reported, by command hooks;
    `timeout`: of a hook, in the unit of the agent. `plugin`: the name of a file beside this module
    that is written instead. `worktrees`: by the event by which it has a worktree made or removed,
    what `casfs worktree hook` is to do. `note`: what a person has to do after that."""

    name: str
    user_file: str
    project_file: str | None
    events: tuple[str, ...] = ()
    timeout: int = 10
    plugin: str | None = None
    worktrees: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    def settings(self, project: Path | None, home: Path) -> Path:
        """Returns the settings file of a project, or of the user."""
        if project is None:
            return home / self.user_file
        assert self.project_file is not None
        return project / self.project_file


# An event that a version does not know is ignored; a hook of a type that it does not know would
# make the whole file ineffective, so all are commands.
CLAUDE = OutsideAgent(
    "claude",
    user_file=".claude/settings.json",
    project_file=".claude/settings.local.json",
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
    worktrees={"WorktreeCreate": "create", "WorktreeRemove": "remove"},
)
CODEX = OutsideAgent(
    "codex",
    user_file=".codex/hooks.json",
    project_file=None,
    events=(
        "SessionStart",
        "UserPromptSubmit",
        "PreToolUse",
        "PostToolUse",
        "Stop",
        "SessionEnd",
    ),
    note="codex runs a hook only once you have trusted it: `codex` asks, or `casfs attach codex"
    " --trust` does it for these hooks",
)
GEMINI = OutsideAgent(
    "gemini",
    user_file=".gemini/settings.json",
    project_file=None,
    events=("SessionStart", "BeforeAgent", "BeforeTool", "AfterTool", "AfterAgent", "SessionEnd"),
    timeout=10_000,
)
QWEN = OutsideAgent(
    "qwen",
    user_file=".qwen/settings.json",
    project_file=None,
    events=(
        "SessionStart",
        "UserPromptSubmit",
        "PreToolUse",
        "PostToolUse",
        "Stop",
        "SessionEnd",
    ),
    timeout=10_000,
)
OPENCODE = OutsideAgent(
    "opencode",
    user_file=".config/opencode/plugin/casfs.js",
    project_file=None,
    plugin="opencode_plugin.js",
)
AGENTS: Mapping[str, OutsideAgent] = {
    agent.name: agent for agent in (CLAUDE, CODEX, GEMINI, QWEN, OPENCODE)
}
