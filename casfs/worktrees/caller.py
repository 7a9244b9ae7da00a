"""Where a process runs, as far as what it makes depends on it: the daemon creates worktrees for
those programs alone that would make the same."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NAMESPACES = ("ns/mnt", "ns/net", "root")  # the root is none, and is compared like one
STATUS = Path("/proc/thread-self/status")
GIT_VARIABLES = ("HOME", "PATH", "XDG_CONFIG_HOME", "USER", "LOGNAME")
# Set for what runs by `--in-place` (`casfs.worktrees.in_place`): casfs sees other paths there.
IN_PLACE = "CASFS_IN_PLACE"


def surroundings() -> dict[str, Any]:
    """Returns what must be equal for two processes to create the same worktree: namespaces and root
    (device:inode), umask, user id, home."""
    seen = (os.stat(Path("/proc/self", name)) for name in NAMESPACES)
    lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
    return {
        "namespaces": [f"{status.st_dev}:{status.st_ino}" for status in seen],
        "umask": int(lines["Umask"], 8),
        "user": os.geteuid(),
        "home": str(Path.home()),
    }


def for_git(env: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables by which git finds its programs and settings."""
    return {
        name: value
        for name, value in env.items()
        if name in GIT_VARIABLES or name.startswith("GIT_")
    }
