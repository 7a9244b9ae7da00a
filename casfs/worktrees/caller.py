"""Where a process runs, as far as what it makes depends on it: the daemon creates worktrees for
those programs alone that see the mounts that it sees, and would give the same modes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

MOUNTS = Path("/proc/self/ns/mnt")
STATUS = Path("/proc/thread-self/status")
OF_GIT = ("HOME", "PATH", "XDG_CONFIG_HOME", "USER", "LOGNAME")


def surroundings() -> dict[str, int]:
    """Returns the mount namespace, by its inode, and the umask."""
    lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
    return {"mounts": os.stat(MOUNTS).st_ino, "umask": int(lines["Umask"], 8)}


def for_git(env: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables by which git finds its programs and settings."""
    return {name: value for name, value in env.items() if name in OF_GIT or name.startswith("GIT_")}
