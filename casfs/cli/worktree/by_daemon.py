"""Has the daemon create a worktree: it follows the project, and has loaded all that takes a program
of its own longer to load than to run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from casfs.cli.output import warn
from casfs.errors import Failed, NoDaemon, NotFound
from casfs.system import daemon_socket
from casfs.worktrees import caller


def create(root: Path, directory: Path, **wanted: Any) -> dict[str, Any] | None:
    """Creates a worktree as `casfs.worktrees.creation.create`, of whose `Wanted` the fields are.
    Returns its `Worktree.summary`; None where no daemon runs, or it cannot. Raises Refused."""
    try:
        answer = daemon_socket.request(
            root,
            "worktree_add",
            directory=str(directory),
            wanted=wanted,
            env=caller.for_git(os.environ),
            surroundings=caller.surroundings(),
        )
    except (NoDaemon, NotFound, Failed):
        return None
    for line in answer["warnings"]:
        warn(line)
    summary: dict[str, Any] = answer["worktree"]
    return summary
