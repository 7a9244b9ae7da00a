"""The classes of paths, applied to the git objects that a thread adds to its workspace."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from casfs.digest import TreeHash
from casfs.scanner import Scanner
from casfs.scanner.private_names import is_private
from casfs.store.nodes.directory import Entry, File
from casfs.store.store import Store
from casfs.store.write_batch import Batch
from casfs.trees import tree
from casfs.trees.git import private_objects
from casfs.trees.git.index import TrackedFiles
from casfs.trees.git.private_objects import Classes, PrivateObjects
from casfs.trees.recorded_state import RecordedState
from casfs.trees.snapshot.ignore import BY_SETTING, IgnoreRules


class ThreadRules(NamedTuple):
    """What decides in a thread's workspace, whatever its agents do to it. `tracked`: what git
    tracked when it began; `ignore`: what was ignored then; `scanner`: None where a person allows
    secrets."""

    tracked: TrackedFiles
    ignore: IgnoreRules
    scanner: Scanner | None


class _Paths:
    """`local`: what is private or derived in the directory `full`, which was `base` before."""

    def __init__(
        self,
        store: Store,
        base: RecordedState,
        full: TreeHash,
        rules: ThreadRules,
        local: Collection[bytes],
    ) -> None:
        self._store = store
        self._base = base
        self._full = full
        self._rules = rules
        self._local = local

    def is_private(self, path: bytes) -> bool:
        """Whether a path that an agent commits would be private or ignored in the directory."""
        if isinstance(tree.find(self._store, self._base.tree, path), File):
            return False
        name = path.rpartition(b"/")[2]
        ignore = self._rules.ignore
        if ignore.is_work(path, name):
            return False
        above = (
            ignore.verdict(ancestor, ancestor.rpartition(b"/")[2], directory=True)
            for ancestor in _above(path)
        )
        verdict = next(filter(None, above), None) or ignore.verdict(path, name, directory=False)
        if verdict is not None:
            return verdict.reason == BY_SETTING or not self._rules.tracked.has(path)
        return is_private(name) and not self._rules.tracked.has(path)

    def work_hash(self, path: bytes) -> str | None:
        """Returns the hash of the file that the work has at a path, if any."""
        if path in self._local or any(ancestor in self._local for ancestor in _above(path)):
            return None
        entry = tree.find(self._store, self._full, path)
        return entry.digest.hash if isinstance(entry, File) else None


def _above(path: bytes) -> Iterable[bytes]:
    """Yields the directories that a path is in, the topmost first."""
    parts = path.split(b"/")
    return (b"/".join(parts[:length]) for length in range(1, len(parts)))


def kept_objects(
    store: Store,
    batch: Batch,
    base: RecordedState,
    full: TreeHash,
    rules: ThreadRules,
    local: Collection[bytes],
    before: Mapping[bytes, Entry],
) -> PrivateObjects:
    """Returns the git objects that stay here of the directory `full`, which was `base` before.
    `local`: its private and derived paths; `before`: those of `base`. Raises as `Store.get`."""
    paths = _Paths(store, base, full=full, rules=rules, local=local)
    private = [*before.values(), *(tree.find(store, full, path) for path in local)]
    classes = Classes(
        is_private=paths.is_private,
        is_tracked=lambda path: bool(rules.tracked.has(path)),
        work_hash=paths.work_hash,
        private={entry.digest.hash for entry in private if isinstance(entry, File)},
        local=local,
        scanner=rules.scanner,
    )
    return private_objects.private_objects(store, batch, base=base, full=full, classes=classes)
