"""Says where a person finds a blob: the paths of checkpoints, the steps of threads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from casfs.backend.protocols import targets
from casfs.checkpoints import checkpoint
from casfs.digest import TreeHash
from casfs.errors import CasfsError
from casfs.store import local_trees, tombstones
from casfs.store.nodes import directory, head_kinds
from casfs.store.nodes.directory import File, Subdirectory
from casfs.store.nodes.head_kinds import NamedHead
from casfs.store.referrers import Referrers
from casfs.store.removals import label
from casfs.store.store import Store
from casfs.threads import threads
from casfs.trees import recorded_state

MAX_PATHS = 20  # of one blob in one tree
STEP_FIELDS = {"content": "output", "detail": "detail", "changes": "diff", "compact": "summary"}


class Whereabouts:
    """A context manager."""

    def __init__(self, store: Store, elsewhere: Mapping[str, str] | None = None) -> None:
        """`elsewhere`: what leads to blobs in other stores: a name for a person, and a hash."""
        self._elsewhere = elsewhere or {}
        self._store = store
        self._index = Referrers(store)
        # Read once, for all: a search asks for many blobs.
        self._walk_up = self._index.walker()
        self._heads: dict[str, list[NamedHead]] = {}
        for name, head in store.heads.list():
            if not name.startswith(local_trees.HEADS):
                for target in targets(head):
                    self._heads.setdefault(target, []).append((name, head))

    def __enter__(self) -> Whereabouts:
        return self

    def __exit__(self, *_: object) -> None:
        self._index.close()

    def of(self, hash: str) -> list[str]:
        """Returns where a blob is: NAME@ID:PATH, THREAD@STEP:PATH or with the part of the step, and
        other heads. Empty where no head reaches it."""
        above = {hash, *self._walk_up(hash)}
        locations: list[str] = []
        heads = dict(named for node in above & self._heads.keys() for named in self._heads[node])
        for name, head in sorted(heads.items()):
            if name == tombstones.head_name(hash):
                continue
            plain = head_kinds.removed_name(name)
            if plain.startswith(checkpoint.HEADS):
                root = self._root(head.hash, "root")
                locations += (
                    self._in_tree(label(name), root, hash=hash, above=above)
                    if root
                    else [label(name)]
                )
            elif name.startswith(threads.HEADS):
                locations += self._in_thread(name.removeprefix(threads.HEADS), hash, above)
            else:
                locations.append(label(name))
        return locations + [name for name, target in self._elsewhere.items() if target in above]

    def _root(self, node: str, field: str) -> TreeHash | None:
        """Returns the root of the whole directory that a node has; None where it is damaged."""
        try:
            state = recorded_state.of_node(
                self._store, node, payload=self._store.node(node).payload, field=field
            )
        except (CasfsError, KeyError):  # fsck's business
            return None
        return None if state is None else state.full

    def _in_tree(self, name: str, root: TreeHash, hash: str, above: set[str]) -> list[str]:
        paths = list(_paths(self._store, root, hash=hash, above=above, prefix=b""))
        return [f"{name}:{os.fsdecode(path)}" for path in paths[:MAX_PATHS]] or [name]

    def _in_thread(self, id: str, hash: str, above: set[str]) -> list[str]:
        """Returns the first step that has it: all later ones refer to that."""
        try:
            thread = threads.get(self._store, threads.ThreadId(id))
            for step in threads.steps(self._store, thread):
                if step.hash in above:
                    return self._in_step(f"{id}@{step.index}", step.hash, hash=hash, above=above)
        except CasfsError:  # fsck's business
            pass
        return [id]

    def _in_step(self, name: str, step: str, hash: str, above: set[str]) -> list[str]:
        payload = self._store.node(step, "thread-step").payload
        start = self._store.node(payload["start"], "thread-start").payload
        if start["input"] in above:
            return [f"{name.partition('@')[0]}, the task"]
        locations: list[str] = []
        for holder in (payload["start"], step):
            root = self._root(holder, "workspace")
            if root is not None and root in above and not locations:
                locations += self._in_tree(name, root, hash=hash, above=above)
        parts = [part for field, part in STEP_FIELDS.items() if payload.get(field) in above]
        locations += [f"{name}, {part}" for part in parts]
        if not above.isdisjoint(targets_of(payload.get("prompt"))):
            locations.append(f"{name}, prompt")
        if not above.isdisjoint(payload["attempts"]):
            locations.append(f"{name}, failed attempt")
        if payload.get("paused") in above:
            locations.append(f"{name}, before a pause")
        return locations or [name]


def targets_of(prompt: object) -> list[str]:
    """Returns the hashes in the `prompt` of a step."""
    values = prompt.values() if isinstance(prompt, dict) else ()
    return [value for value in values if isinstance(value, str)]


def _paths(
    store: Store, root: TreeHash, hash: str, above: set[str], prefix: bytes
) -> Iterator[bytes]:
    """Yields the paths of a blob; only directories that lead to it are read, as they are stored."""
    if root == hash:
        yield prefix
    if root not in above:
        return
    for name, entry in directory.decode(store.node(root, "directory").payload).items():
        if isinstance(entry, File) and entry.digest.hash == hash:
            yield prefix + name
        elif isinstance(entry, Subdirectory) and entry.digest.hash in above:
            yield from _paths(
                store, entry.digest.hash, hash=hash, above=above, prefix=prefix + name + b"/"
            )
