"""The agents that can be attached: where their settings are, and which events they report."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class OutsideAgent:
    """`folder`: its configuration directory, relative to the home directory; `variable`: of the
    environment, sets another one, which is `named_folder` in that directory.
    `user_file`: its settings in there; `project_file`: those in a project that no team shares, None
    where it has none. `events`: those that are reported, by command hooks;
    `timeout`: of a hook, in the unit of the agent. `plugin`: the name of a file beside this module
    that is written instead. `worktrees`: by the event by which it has a worktree made or removed,
    what `casfs worktree hook` is to do. `note`: what a person has to do after that.
    `session_variable`: of its commands' environment, has the session's id; empty for none."""

    name: str
    folder: str
    variable: str
    user_file: str
    project_file: str | None
    session_variable: str = ""
    events: tuple[str, ...] = ()
    timeout: int = 10
    named_folder: str = ""
    plugin: str | None = None
    worktrees: Mapping[str, str] = field(default_factory=dict)
    note: str = ""

    def home(self, env: Mapping[str, str]) -> Path:
        """Returns the user's configuration directory of the agent."""
        if named := env.get(self.variable):
            return Path(os.path.abspath(named)) / self.named_folder
        return Path.home() / self.folder

    def settings(self, project: Path | None, env: Mapping[str, str]) -> Path:
        """Returns the settings file of a project, or of the user."""
        if project is None:
            return self.home(env) / self.user_file
        assert self.project_file is not None
        return project / self.project_file


# An event that a version does not know is ignored; a hook of a type that it does not know would
# make the whole file ineffective, so all are commands.
CLAUDE = OutsideAgent(
    "claude",
    folder=".claude",
    variable="CLAUDE_CONFIG_DIR",
    user_file="settings.json",
    project_file=".claude/settings.local.json",
    session_variable="CLAUDE_CODE_SESSION_ID",
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
    folder=".codex",
    variable="CODEX_HOME",
    user_file="hooks.json",
    project_file=None,
    session_variable="CODEX_SESSION_ID",
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
    folder=".gemini",
    variable="GEMINI_CLI_HOME",
    named_folder=".gemini",
    user_file="settings.json",
    project_file=None,
    events=("SessionStart", "BeforeAgent", "BeforeTool", "AfterTool", "AfterAgent", "SessionEnd"),
    timeout=10_000,
)
QWEN = OutsideAgent(
    "qwen",
    folder=".qwen",
    variable="QWEN_HOME",
    user_file="settings.json",
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
    folder=".config/opencode",
    variable="XDG_CONFIG_HOME",
    named_folder="opencode",
    user_file="plugin/casfs.js",
    project_file=None,
    plugin="opencode_plugin.js",
)
AGENTS: Mapping[str, OutsideAgent] = {
    agent.name: agent for agent in (CLAUDE, CODEX, GEMINI, QWEN, OPENCODE)
}
