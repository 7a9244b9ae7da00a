"""Ignore rules for a directory that began as a tree: what that tree has is never ignored.

As in git, a pattern deletes nothing that is tracked; below a tracked directory that the rules
ignore, what is new is ignored. So it does not matter whether the whole directory is read or only
its changes. What only the local tree has stays there.
"""

from __future__ import annotations

from casfs.store.store import Store
from casfs.trees import tree
from casfs.trees.recorded_state import RecordedState
from casfs.trees.snapshot.derived import GIT, Surroundings
from casfs.trees.snapshot.ignore import BY_SETTING, IgnoreRules, Verdict


class TrackedRules(IgnoreRules):
    """Leaves out what `rules` leave out, but no path of the state `base`."""

    def __init__(self, rules: IgnoreRules, store: Store, base: RecordedState) -> None:
        super().__init__()
        self._rules = rules
        self._store = store
        self._base = base
        self._inside: dict[bytes, Verdict] = {}  # tracked directories that the rules leave out

    def verdict(
        self, path: bytes, name: bytes, *, directory: bool, surroundings: Surroundings | None = None
    ) -> Verdict | None:
        verdict = self._inside.get(path.rpartition(b"/")[0])
        if verdict is None:
            verdict = self._rules.verdict(
                path, name, directory=directory, surroundings=surroundings
            )
        if verdict is None or verdict.reason == BY_SETTING:
            return verdict
        is_tracked = tree.find(self._store, self._base.tree, path) is not None
        # A derived directory. A repository is never work: in what an older casfs recorded it was.
        if verdict.is_local:
            return None if is_tracked and verdict.reason != GIT else verdict
        if is_tracked:
            if directory:
                self._inside[path] = verdict
            return None
        if tree.find(self._store, self._base.full, path) is not None:
            return verdict._replace(is_local=True)
        return verdict

    def is_work(self, path: bytes, name: bytes, *, directory: bool = False) -> bool:
        return self._rules.is_work(path, name, directory=directory)
