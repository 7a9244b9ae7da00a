"""The new commits, tags and trees of a repository: which paths they give to blobs.

Format: gitformat-commit and the tree object of git's own documentation; a tree is rows of
`mode name NUL id`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from casfs.trees.git.objects import COMMIT, TREE

MAX_ROWS = 2_000_000  # of trees, at all their paths
GITLINK = b"160000"  # the mode of a submodule's commit, which is in another repository


class TooManyPaths(Exception):
    """More than anybody commits."""


class Row(NamedTuple):
    """An entry of a git tree."""

    mode: bytes
    name: bytes
    object_id: bytes


class History:
    """Of new objects alone: what was there before is not looked into."""

    def __init__(self, id_bytes: int) -> None:
        self._id_bytes = id_bytes
        self._roots: dict[bytes, bytes] = {}  # the tree of each commit
        self._trees: dict[bytes, list[Row]] = {}

    def add(self, object_id: bytes, kind: bytes, content: bytes) -> None:
        """Adds a commit or a tree; a tag adds nothing. Raises ValueError for a damaged one."""
        if kind == TREE:
            self._trees[object_id] = self._rows(content)
        elif kind == COMMIT:
            word, root = content.partition(b"\n")[0].split(b" ")
            if word != b"tree":
                raise ValueError("a commit without a tree")
            self._roots[object_id] = bytes.fromhex(root.decode("ascii"))

    def _rows(self, content: bytes) -> list[Row]:
        rows = []
        offset = 0
        while offset < len(content):
            end = content.index(b"\0", offset) + 1
            mode, name = content[offset : end - 1].split(b" ", 1)
            offset = end + self._id_bytes
            rows.append(Row(mode, name, content[end:offset]))
        return rows

    def blob_paths(self) -> dict[bytes, set[bytes]]:
        """Returns the paths of each blob in the new trees, by its id. A tree of no new commit
        counts as a root, too: of a stash that was dropped, of a commit that was killed. Raises
        TooManyPaths: eight trees can have a hundred million."""
        below = {row.object_id for rows in self._trees.values() for row in rows}
        waiting = [(root, b"") for root in self._roots.values()]
        waiting += [(tree_id, b"") for tree_id in self._trees if tree_id not in below]
        visited: set[tuple[bytes, bytes]] = set()
        rows = 0
        paths: dict[bytes, set[bytes]] = {}
        while waiting:
            visit = tree_id, above = waiting.pop()
            if visit in visited:
                continue
            visited.add(visit)
            rows += len(self._trees.get(tree_id, ()))
            if rows > MAX_ROWS:
                raise TooManyPaths
            for mode, name, object_id in self._trees.get(tree_id, ()):
                if object_id in self._trees:
                    waiting.append((object_id, above + name + b"/"))
                elif mode != GITLINK:
                    paths.setdefault(object_id, set()).add(above + name)
        return paths

    def commits_with(self, objects: Collection[bytes]) -> list[str]:
        """Returns the new commits, in hex, that are one of these objects, or have one of them in
        their trees."""
        holders: dict[bytes, list[bytes]] = {}
        for tree_id, rows in self._trees.items():
            for row in rows:
                holders.setdefault(row.object_id, []).append(tree_id)
        for commit, root in self._roots.items():
            holders.setdefault(root, []).append(commit)
        reached: set[bytes] = set()
        waiting = list(objects)
        while waiting:
            object_id = waiting.pop()
            if object_id not in reached:
                reached.add(object_id)
                waiting += holders.get(object_id, ())
        return [commit.hex() for commit in self._roots if commit in reached]
