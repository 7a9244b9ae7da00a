"""The mounts of a store, as the kernel's mount table has them."""

from __future__ import annotations

import os
import re
from pathlib import Path

from casfs.digest import hash_bytes
from casfs.system import mounts

TYPE = "fuse.casfs"
SAFE_SOURCE_NAME = re.compile(r"[A-Za-z0-9/._+@:-]+\Z")


def source(root: Path | None) -> str:
    """Returns the source of a store's mounts in the mount table: the store's path, or a hash of
    it if the path has characters that the table would escape."""
    if root is None:
        return "casfs"
    path = os.fsencode(root.resolve())
    text = path.decode("ascii", "replace")
    return text if SAFE_SOURCE_NAME.match(text) else f"casfs-{hash_bytes(path)[:16]}"


def mounted(root: Path) -> list[Path]:
    """Returns the mount points of the store at `root`, in the order of mounting."""
    name = source(root)
    return [mount.point for mount in mounts.mounts() if (mount.type, mount.source) == (TYPE, name)]
