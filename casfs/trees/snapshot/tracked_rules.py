"""Ignore rules for a directory that began as a tree: what that tree has is never ignored.

As in git, a pattern deletes nothing that is tracked; below a tracked directory that the rules
ignore, what is new is ignored. So it does not matter whether the whole directory is read or only
its changes.
"""

from __future__ import annotations

from casfs.digest import TreeHash
from casfs.store import Store
from casfs.trees import tree
from casfs.trees.snapshot.derived import Surroundings
from casfs.trees.snapshot.ignore import IgnoreRules


class TrackedRules(IgnoreRules):
    """Leaves out what `rules` leave out, but no path of the tree `base`."""

    def __init__(self, rules: IgnoreRules, store: Store, base: TreeHash) -> None:
        super().__init__()
        self._rules = rules
        self._store = store
        self._base = base
        self._inside: dict[bytes, str] = {}  # tracked directories that the rules leave out

    def reason(
        self, path: bytes, name: bytes, *, directory: bool, at: Surroundings | None = None
    ) -> str | None:
        found = self._inside.get(path.rpartition(b"/")[0])
        found = found or self._rules.reason(path, name, directory=directory, at=at)
        if found is None or tree.find(self._store, self._base, path) is None:
            return found
        if directory:
            self._inside[path] = found
        return None
