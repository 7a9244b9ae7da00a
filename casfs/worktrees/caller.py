"""Where a process runs, as far as what it makes depends on it: the daemon creates worktrees for
those programs alone that would make the same."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# By their inodes: the mounts and the network that it sees, and what it takes for the root.
SEEN = ("ns/mnt", "ns/net", "root")
STATUS = Path("/proc/thread-self/status")
OF_GIT = ("HOME", "PATH", "XDG_CONFIG_HOME", "USER", "LOGNAME")


def surroundings() -> dict[str, Any]:
    """Returns what differs between processes of which one cannot create what the other would."""
    seen = (os.stat(Path("/proc/self", name)) for name in SEEN)
    lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
    return {
        "seen": [f"{status.st_dev}:{status.st_ino}" for status in seen],
        "umask": int(lines["Umask"], 8),
        "user": os.geteuid(),
        "home": str(Path.home()),
    }


def for_git(env: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables by which git finds its programs and settings."""
    return {name: value for name, value in env.items() if name in OF_GIT or name.startswith("GIT_")}
