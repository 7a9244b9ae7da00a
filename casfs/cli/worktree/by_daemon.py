"""Has the daemon create a worktree: it follows the project, and has loaded all that takes a program
of its own longer to load than to run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from casfs.cli.output import warn
from casfs.errors import NoDaemon
from casfs.system import daemon_socket
from casfs.version import VERSION
from casfs.worktrees import caller


def create(root: Path, directory: Path, **wanted: Any) -> dict[str, Any] | None:
    """Creates a worktree as `casfs.worktrees.creation.create`, of whose `Wanted` the fields are.
    Returns its `Worktree.summary`; None where no daemon of this version runs, or it cannot. Raises
    as `create`, and NoDaemon where the daemon ends meanwhile."""
    daemon = daemon_socket.find(root)
    if daemon is None or daemon["version"] != VERSION:
        return None
    env = caller.for_git(os.environ)
    # JSON has no text for other bytes.
    if not all(map(_is_utf8, (str(directory), *env.values(), *map(str, wanted.values())))):
        return None
    try:
        answer = daemon_socket.request(
            root,
            "worktree_add",
            directory=str(directory),
            wanted=wanted,
            env=env,
            surroundings=caller.surroundings(),
        )
    except NoDaemon as error:
        raise NoDaemon(f"{error}; `casfs worktree list` shows what it has made") from None
    for line in answer["warnings"]:
        warn(line)
    summary: dict[str, Any] | None = answer["worktree"]
    return summary


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
