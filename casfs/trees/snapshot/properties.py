"""The mode and mtime that a tree keeps of an entry.

By default the mode without the write bits of group and others, and without set-id and sticky
bits; and only where it is not the ordinary one, 0644 or 0755 of a file and 0755 of a directory.
So an ordinary tree has the same hash whatever the umask was, and a private file stays private.
`preserve` keeps all twelve bits of every mode, and mtimes.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection

from casfs.digest import TreeHash
from casfs.store.nodes.directory import Entry, File, Properties, Subdirectory
from casfs.store.store import Store
from casfs.trees import tree
from casfs.trees.snapshot.file_stat import Stat

KEPT_BITS = 0o755
ORDINARY_FILE_MODES = (0o644, 0o755)
ORDINARY_DIRECTORY_MODE = 0o755
_ORDINARY = frozenset(
    (
        *(stat.S_IFREG | mode for mode in ORDINARY_FILE_MODES),
        stat.S_IFDIR | ORDINARY_DIRECTORY_MODE,
        stat.S_IFLNK | KEPT_BITS,
    )
)
_COMPARED = stat.S_IFMT(0xFFFF) | KEPT_BITS


def properties(seen: Stat | os.stat_result, preserve: Collection[str]) -> Properties | None:
    """Returns what the tree keeps of an entry beside its content and x bit."""
    if not preserve:
        ordinary = seen.st_mode & _COMPARED in _ORDINARY  # asked first: it is for most
        return None if ordinary else mode_properties(seen.st_mode)
    mode = unix_mode(seen.st_mode, preserve)
    mtime = divmod(seen.st_mtime_ns, 1_000_000_000) if "mtime" in preserve else None
    return None if mode is None and mtime is None else Properties(mtime, mode)


def mode_properties(mode: int) -> Properties | None:
    """Returns what the tree keeps by default of an entry with this `st_mode`."""
    kept = unix_mode(mode, ())
    return None if kept is None else Properties(unix_mode=kept)


def unix_mode(mode: int, preserve: Collection[str]) -> int | None:
    """Returns the permissions that are kept of an entry with the `st_mode` given."""
    if not preserve or "mode" not in preserve:
        return None if mode & _COMPARED in _ORDINARY else mode & KEPT_BITS
    return None if stat.S_ISLNK(mode) else stat.S_IMODE(mode)


def preserved_names(store: Store, *roots: TreeHash) -> list[str]:
    """Returns the `preserve` option by which trees were recorded, from what their entries have."""
    names = set()
    for root in roots:
        own = tree.directory_properties(store, root) or Properties()
        if own.mtime is not None:
            names.add("mtime")
        if own.unix_mode is not None and _keeps_all_modes(store, root):
            names.add("mode")
    return sorted(names)


def _keeps_all_modes(store: Store, root: TreeHash) -> bool:
    """Reads the tree up to the first entry that tells: one without a mode, or with one that
    would not be kept by default."""
    keeps_modes = _tells(tree.directory_properties(store, root), ORDINARY_DIRECTORY_MODE)
    for _, entry in tree.walk(store, root) if keeps_modes is None else ():
        keeps_modes = _entry_tells(store, entry)
        if keeps_modes is not None:
            break
    return keeps_modes is True


def _entry_tells(store: Store, entry: Entry) -> bool | None:
    if isinstance(entry, File):
        return _tells(entry.properties, *ORDINARY_FILE_MODES)
    if isinstance(entry, Subdirectory):
        own = tree.directory_properties(store, entry.digest.hash)
        return _tells(own, ORDINARY_DIRECTORY_MODE)
    return None


def _tells(own: Properties | None, *ordinary: int) -> bool | None:
    if own is None or own.unix_mode is None:
        return False
    return True if own.unix_mode in ordinary or own.unix_mode & ~KEPT_BITS else None
