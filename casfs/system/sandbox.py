"""Error messages for commands that run in the sandbox of an agent. They name the sandbox as the
cause, so that an agent does not take the daemon for dead and start it again.

Codex's `workspace-write` shows the home directory read-only and refuses `connect`; Claude Code's
`/sandbox` refuses unix sockets. Each sets an environment variable by which it is known. Imported by
error paths only, to keep the start of commands short.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

MARKS: Mapping[str, str] = {
    "CODEX_SANDBOX_NETWORK_DISABLED": "codex's sandbox",
    "CODEX_SANDBOX": "codex's sandbox",
    "SANDBOX_RUNTIME": "the agent's sandbox",
}


def hint() -> str:
    """Returns the end of an error message: the sandbox as the cause, and the remedy."""
    name = next((name for mark, name in MARKS.items() if mark in os.environ), None)
    cause = "as in an agent's sandbox" if name is None else name
    return f" ({cause}); outside of it this can be done"


def cannot_write(directory: Path) -> str:
    """Returns the error message of a command that has to write into a read-only directory."""
    return f"{directory} can be read here, not written{hint()}"
