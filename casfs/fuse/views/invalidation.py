"""The dentries that the kernel has to drop: names removed since the last check, and all of them
where a content was purged, which may have any name.

The kernel caches the names of directories with `Directory.invalidated` indefinitely; the
transport looks for removed ones and notifies the kernel.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from casfs.backend.journal import JournalReader
from casfs.backend.protocols import Backend
from casfs.backend.purged_contents import PURGED

Dentry = tuple[tuple[bytes, ...], bytes]  # path of the directory, name
EVERYTHING: Dentry = ((), b"")  # all that the kernel knows: a content was purged


def invalidated_dentries(backend: Backend) -> Callable[[], list[Dentry]]:
    """Returns a function that returns the dentries removed since its last call."""
    journal = JournalReader(backend)

    def removed() -> list[Dentry]:
        moves = journal.new_moves()
        if journal.lost or any(move.name.startswith(PURGED) for move in moves):
            return [EVERYTHING]
        return [dentry for move in moves if move.hash is None for dentry in _dentries(move.name)]

    return removed


def _dentries(head: str) -> Iterator[Dentry]:
    """Yields the names that show a head; `trees/<name>` is removed with its last checkpoint."""
    kind, _, suffix = os.fsencode(head).partition(b"/")
    if kind == b"threads":
        yield (b"threads",), suffix
    elif kind == b"checkpoints":
        name, _, id = suffix.partition(b"/")
        yield (b"trees", name), id
        yield (b"trees",), name
