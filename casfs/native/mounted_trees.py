"""Trees that are mounted natively without a head that keeps them: over their directories in a mount
of the store (`casfs.mount.mounter`), and in containers that were started on such a directory.

The kernel's mount table has their names: the source of such a mount names store and tree. gc keeps
what it finds there, since an image shows zeros where gc has freed its blocks.
"""

from __future__ import annotations

import os
from pathlib import Path

from casfs.digest import hash_bytes
from casfs.store.store import Store
from casfs.system import mounts
from casfs.trees.dated import TIMES_MARK, DatedTree

PREFIX = "casfs-native-"


def source(store_root: Path, root: DatedTree) -> str:
    """Returns the source of a tree's mount."""
    return f"{_prefix(store_root)}{root.name}"


def blobs(store: Store) -> list[str]:
    """Returns the hashes of what such mounts need: of those that any process sees, and of nodes
    that are stored."""
    prefix = _prefix(store.root)
    hashes: set[str] = set()
    for mount in mounts.anywhere():
        if mount.source.startswith(prefix):
            hashes.update(mount.source.removeprefix(prefix).split(TIMES_MARK))
    return list(store.blobs.info(hashes))


def _prefix(store_root: Path) -> str:
    return f"{PREFIX}{hash_bytes(os.fsencode(store_root.resolve()))[:16]}-"
