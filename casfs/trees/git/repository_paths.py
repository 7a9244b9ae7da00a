"""Which git directory holds a path: `.git`, that of a submodule or of a linked work tree, or a bare
one, which has any name. So it is asked of trees, not of the name alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from casfs.digest import TreeHash
from casfs.errors import NotFound
from casfs.store.nodes.directory import Entry, File, Subdirectory
from casfs.store.store import Store
from casfs.trees import tree
from casfs.trees.git.repository_state import (
    COMMON,
    GIT,
    HEAD,
    MODULES,
    OBJECT_ID,
    OBJECTS,
    OTHER_WORK_TREES,
    PACKED_REFS,
    REFS,
    SYMBOLIC,
)

# What stands beside HEAD in a git directory: a partial tree has not all of it.
FOLDERS = OBJECTS, REFS
FILES = PACKED_REFS, COMMON
MAX_HEAD_BYTES = 4096  # a path, and what is around it
NESTED = MODULES, OTHER_WORK_TREES  # where a git directory has others; elsewhere it has refs


class RepositoryPaths:
    def __init__(self, store: Store, roots: Sequence[TreeHash]) -> None:
        """`roots`: trees of one directory, at different times."""
        self._store = store
        self._roots = list(dict.fromkeys(roots))
        self._above: dict[bytes, bytes | None] = {}

    def of(self, path: bytes) -> bytes | None:
        """Returns the innermost git directory that holds a path, or a path named `.git` itself.
        Raises NotFound, Corrupt."""
        above = path.rpartition(b"/")[0]
        top = self._holding(above) if above else None
        is_named = path == GIT or path.endswith(b"/" + GIT)
        return path if top is None and is_named else top

    def _holding(self, directory: bytes) -> bytes | None:
        """Returns the innermost git directory that holds a directory, or is it."""
        if directory not in self._above:
            above = directory.rpartition(b"/")[0]
            top = self._holding(above) if above else None
            inside = None if top is None else directory[len(top) + 1 :].partition(b"/")[0]
            if (inside is None or inside in NESTED) and self._is_repository(directory):
                top = directory
            self._above[directory] = top
        return self._above[directory]

    def is_inside(self, path: bytes) -> bool:
        """Whether a path is in a git directory: a `.git` file is not, which is a line of text."""
        return self.of(path) not in (None, path)

    def _is_repository(self, path: bytes) -> bool:
        is_named = path == GIT or path.endswith(b"/" + GIT)
        return is_named or any(self._has(root, path) for root in self._roots)

    @property
    def is_top(self) -> bool:
        """Whether the directory itself is a git directory: a bare repository."""
        return any(self._is_git_directory(root) for root in self._roots)

    def _has(self, root: TreeHash, path: bytes) -> bool:
        top = tree.find(self._store, root, path)
        return isinstance(top, Subdirectory) and self._is_git_directory(top.digest.hash)

    def _is_git_directory(self, directory: TreeHash) -> bool:
        entries = tree.load(self._store, directory)
        return self._is_head(entries.get(HEAD)) and (
            any(isinstance(entries.get(name), Subdirectory) for name in FOLDERS)
            or any(isinstance(entries.get(name), File) for name in FILES)
        )

    def _is_head(self, entry: Entry | None) -> bool:
        """A project may have a file HEAD and a directory `objects` of its own."""
        if not isinstance(entry, File) or entry.digest.size_bytes > MAX_HEAD_BYTES:
            return False
        with suppress(NotFound):  # purged
            text = self._store.blobs.get(entry.digest.hash).data.strip()
            return text.startswith(SYMBOLIC) or OBJECT_ID.match(text) is not None
        return False
