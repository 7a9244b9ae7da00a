"""How the agents that people run outside casfs are asked for something."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Program:
    """How an agent is run: `agent`: as it is attached; `ask`: for a prompt; `resume`: for one that
    goes on with a session, by its id; `by_stdin`: the prompt is given so."""

    agent: str
    ask: tuple[str, ...]
    resume: tuple[str, ...]
    by_stdin: bool = False

    def argv(self, session: str | None) -> list[str]:
        words = self.ask if session is None else self.resume
        return [session if word == "ID" and session else word for word in words]


CLAUDE = ("claude", "-p", "--permission-mode", "bypassPermissions")
CODEX = ("codex", "exec", "--skip-git-repo-check")
GEMINI = ("gemini", "--approval-mode", "yolo", "--skip-trust")
PROGRAMS = {
    "claude-code": Program("claude", CLAUDE, (*CLAUDE, "--resume", "ID")),
    "codex-cli": Program(
        "codex", CODEX, ("codex", "exec", "resume", "--skip-git-repo-check", "ID")
    ),
    "gemini": Program("gemini", (*GEMINI, "-p"), (*GEMINI, "--resume", "ID", "-p")),
    "opencode-cli": Program("opencode", ("opencode", "run"), ("opencode", "run", "-s", "ID"), True),
}
