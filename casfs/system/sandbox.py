"""What the sandbox of an agent refuses, said so: a command that an agent calls reads, and where it
cannot do more, the cause is the sandbox, and no daemon that would have to be started again.

Codex's `workspace-write` shows the home directory read-only and refuses `connect`; Claude Code's
`/sandbox` refuses unix sockets. Neither can be asked; both set a variable. What fails imports this:
each command has the way to a fault, and few take it.
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
    """Returns the end of a line on what is refused here and nowhere else."""
    name = next((name for mark, name in MARKS.items() if mark in os.environ), None)
    cause = "as in an agent's sandbox" if name is None else name
    return f" ({cause}); outside of it this can be done"


def cannot_write(directory: Path) -> str:
    """Returns the line for a command that would have to write into a directory."""
    return f"{directory} can be read here, not written{hint()}"
