"""Markers of overlays: how an upper layer says what of the tree below it is gone or was moved.

From Linux' Documentation/filesystems/overlayfs.rst:

    whiteout    the name is deleted: a character device 0/0; or an empty file with the attribute
                `whiteout` in a directory that has opaque=x
    opaque=y    of a directory: nothing below it comes from the tree
    redirect    of a directory: it was renamed, and its lower directory is at this path of the
                tree (from the root, or a name beside its old one)
    metacopy    of a file: mode and owner alone were changed; the content is the tree's, at
                `redirect` when it has one, else under the same name. Over an image `redirect`
                may be the path of the content in `objects/`, `/ab/cdef…`, unless the tree has
                that path, as the kernel sees it too

The kernel's are attributes in `trusted.overlay.`; those in `user.overlay.` an agent may have set as
it likes. fuse-overlayfs lets anybody set all of these, so there only its files count, named as aufs
did:
`.wh.NAME`, empty or a device, is a whiteout, and a directory with `.wh..wh..opq` is opaque. What
else has such a name, a program has renamed to it. A tree's own names of that form are hidden: such
trees are refused (`check_names`).
"""

from __future__ import annotations

import os
import stat

from casfs.digest import TreeHash
from casfs.errors import Failed
from casfs.store.store import Store
from casfs.system.paths import printable
from casfs.trees import tree

PREFIX = "trusted.overlay."
WHITEOUT_PREFIX = b".wh."
OPAQUE_FILE = b".wh..wh..opq"
RESERVED_PREFIX = b".wh..wh."


def check_names(store: Store, root: TreeHash) -> None:
    """Raises Failed for a tree that fuse-overlayfs would not show whole."""
    for path, entry in tree.walk(store, root):
        if entry.name.startswith(WHITEOUT_PREFIX):
            raise Failed(f"{printable(path)}: fuse-overlayfs hides names that begin with .wh.")


def is_whiteout(fd: int, name: bytes) -> bool:
    """Returns False for another name, and for what a program renamed to or made by such a name."""
    if not name.startswith(WHITEOUT_PREFIX):
        return False
    file_stat = os.stat(name, dir_fd=fd, follow_symlinks=False)
    return stat.S_ISCHR(file_stat.st_mode) or (
        stat.S_ISREG(file_stat.st_mode) and file_stat.st_size == 0
    )
