"""Recorded states: what a directory held at a moment, as two trees.

`tree` is the work: what is shown, compared, applied and shared. `local` is the whole directory as
it is here: the work with private files and, of a thread, derived directories. What it has beside
the work serves to run the work on this machine. So only the store that recorded it has it, and no
node names it: it is the local tree of the node (`casfs.store.local_trees`).

Beside each stand its times. No comparison and no key of a cache has them: equal work is equal
whenever it was made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from casfs.digest import BlobHash, NodeDigest, NodeHash, TimesHash, TreeHash
from casfs.store import local_trees
from casfs.store.local_trees import LocalTree
from casfs.store.nodes.directory import Entry, File, Subdirectory
from casfs.store.store import Store
from casfs.store.write_batch import Batch
from casfs.trees import dated, edit, tree
from casfs.trees.dated import DatedTree

Payload = Mapping[str, Any]

LOCAL = "local"
TIMES = "times"
LOCAL_TIMES = "localTimes"
FIELDS = (LOCAL, TIMES, LOCAL_TIMES)  # of a request or a record; a node has TIMES alone
HERE_ONLY = (LOCAL, LOCAL_TIMES)  # those that never travel


class RecordedState(NamedTuple):
    """`local` is None where the whole directory is work, and so is `local_times`; both times are
    None in records of an older casfs, and for a tree that is named by its hash alone."""

    tree: TreeHash
    local: TreeHash | None = None
    times: TimesHash | None = None
    local_times: TimesHash | None = None

    @property
    def full(self) -> TreeHash:
        """The root of the whole directory: that of `whole`, without times."""
        return self.local or self.tree

    @property
    def work(self) -> DatedTree:
        """The work with its times; `tree` is its root alone."""
        return DatedTree(self.tree, self.times)

    @property
    def whole(self) -> DatedTree:
        """The whole directory with its times."""
        return self.work if self.local is None else DatedTree(self.local, self.local_times)

    def is_equal(self, other: RecordedState | None) -> bool:
        """Whether both hold the same, whenever it was made."""
        # Not `==`, which compares the times, too.
        return other is not None and (self.tree, self.local) == (other.tree, other.local)

    @property
    def fields(self) -> dict[str, NodeHash]:
        """What a request or a record has of it beside the tree."""
        values = zip(FIELDS, (self.local, self.times, self.local_times), strict=True)
        return {name: value for name, value in values if value is not None}

    @classmethod
    def of_tree(cls, root: DatedTree) -> RecordedState:
        """Of a directory that is all work."""
        return cls(root.tree, times=root.times)

    @classmethod
    def of_parts(cls, work: DatedTree, whole: DatedTree) -> RecordedState:
        """Of a directory that holds `whole`, of which `work` is work."""
        if work.tree == whole.tree:
            return cls.of_tree(work)
        return cls(work.tree, whole.tree, times=work.times, local_times=whole.times)

    @classmethod
    def of_fields(cls, tree: str, fields: Mapping[str, Any]) -> RecordedState:
        """The inverse of `fields`."""
        root = TreeHash(NodeHash(BlobHash(tree)))
        return cls(root, *map(fields.get, FIELDS))


def put_node(
    batch: Batch,
    type: str,
    payload: Payload,
    state: RecordedState | None,
    put: Callable[[Batch, str, Payload], NodeDigest] = Batch.put_known,
) -> NodeDigest:
    """Puts a node whose payload names the work of a directory, None for no directory, and keeps
    what stays here of `state` beside it. Raises as `Batch.put_known`, or `put` in its place."""
    times = {TIMES: state.times} if state is not None else {}
    # `put_known`, since a store of an older casfs has no times, and many a state has none.
    node = put(batch, type, {**payload, **times})
    # Under the node's hash, so after it; one commit makes both visible.
    if state is not None and state.local is not None:
        local_trees.put(batch, node.hash, LocalTree(state.local, state.local_times))
    return node


def put_turn(batch: Batch, payload: Payload) -> NodeDigest:
    """Puts a `react-turn`, whose payload has the tree and `fields` of its state, if any."""
    root = payload.get("workspace")
    state = None if root is None else RecordedState.of_fields(root, payload)
    # `local` is among the fields here; the schema does not know it, so `put_known` leaves it out.
    return put_node(batch, "react-turn", payload=payload, state=state)


def of_node(store: Store, hash: str, payload: Payload, field: str) -> RecordedState | None:
    """Returns the state that the node `hash` has: `field` of its payload names the work. None where
    it has none. Of a node that was pulled all is work here."""
    root = payload[field]
    if root is None:
        return None
    times = payload.get(TIMES)
    local = local_trees.get(store, hash)
    if local is None:
        return RecordedState(root, times=times)
    return RecordedState(root, local.root, times=times, local_times=local.times)


def of_turn(store: Store, hash: NodeHash) -> RecordedState | None:
    """Returns the state that the `react-turn` has; None where it has none, or none any more: its
    references to it are weak."""
    payload = store.node(hash, "react-turn").payload
    if "workspace" not in payload or not store.blobs.info([payload["workspace"]]):
        return None
    # The whole directory may be gone though the work is not: another node has the same work. That
    # work alone would be a directory whose private files were deleted.
    if local_trees.is_lost(store, hash):
        return None
    state = of_node(store, hash, payload, "workspace")
    if state is not None and state.times is not None and not store.blobs.info([state.times]):
        return state._replace(times=None)
    return state


def divide(
    store: Store,
    batch: Batch,
    full: DatedTree,
    local_paths: Iterable[bytes],
    base: TreeHash | None = None,
    kept: Iterable[bytes] = (),
) -> RecordedState:
    """Returns the state of the stored tree `full`; the work is all but these paths. Of a path in
    `kept`, a file that became private, the work keeps the version in the tree `base`: it was not
    deleted, and what applies the work elsewhere must not delete it there."""
    # None takes a path out of the work.
    changes: dict[bytes, Entry | None] = dict.fromkeys(_topmost(local_paths))
    if not changes:
        return RecordedState.of_tree(full)
    for path in kept:
        before = tree.find(store, base, path) if base and path in changes else None
        # A link or a directory there before was no version of this file.
        if isinstance(before, File):
            changes[path] = before
    # A directory that holds private files alone is kept in the work, empty.
    edited = edit.with_entries(store, batch, root=full.tree, changes=changes, keep_empty=True)
    work = edited.hash
    # The paths need not be in the tree. Then all is work, and needs no local tree.
    if work == full.tree:
        return RecordedState(work, times=full.times)
    # Before the times are made: these read the new directories from the store.
    batch.commit()
    times = dated.times_for(store, batch, tree=work, source=full)
    return RecordedState(work, full.tree, times=times, local_times=full.times)


def private_files(store: Store, state: RecordedState) -> dict[bytes, Entry]:
    """Returns the files and links of the directory that are not in the work as they are: those that
    are private. What is derived is whole directories."""
    entries = local_paths(store, state.tree, state.full)
    return {path: entry for path, entry in entries if not isinstance(entry, Subdirectory)}


def with_private(store: Store, state: RecordedState) -> TreeHash:
    """Returns the tree that a person here sees of a state: the work and the private files, without
    what is derived. What is put of it stays local."""
    if state.local is None:
        return state.tree
    private: dict[bytes, Entry | None] = {**private_files(store, state)}
    # A plain batch would make work of the private files, and show them to readers elsewhere.
    with store.local_writes().batch() as batch:
        return edit.with_entries(store, batch, root=state.tree, changes=private).hash


def with_local_of(store: Store, state: RecordedState, known: RecordedState | None) -> RecordedState:
    """Returns the state of a directory that held `known` once it holds the work of `state`: its
    private and derived files stay, where the work has nothing at their paths."""
    if known is None or known.local is None:
        return state
    kept: dict[bytes, Entry | None] = {}
    for path, entry in local_paths(store, known.tree, known.full):
        if not _is_taken(store, state.tree, path):
            kept[path] = entry
    # As in `with_private`: what stays must not become work.
    with store.local_writes().batch() as batch:
        full = edit.with_entries(store, batch, root=state.tree, changes=kept).hash
    return state if full == state.tree else state._replace(local=full, local_times=None)


def _is_taken(store: Store, work: TreeHash, path: bytes) -> bool:
    """Returns whether the tree has something at a path, or a file where a directory above it is."""
    names = path.split(b"/")
    for count in range(1, len(names) + 1):
        entry = tree.find(store, work, b"/".join(names[:count]))
        if entry is None:
            return False
        if not isinstance(entry, Subdirectory):
            return True
    return True


def local_paths(
    store: Store, work: TreeHash | None, full: TreeHash, above: bytes = b""
) -> Iterator[tuple[bytes, Entry]]:
    """Yields the topmost paths of the tree `full` that are not in the tree `work` as they are,
    with their entries."""
    if work == full:
        return
    shared = {} if work is None else tree.load(store, work)
    # What the work alone has is not looked for: a work is made of its whole.
    for name, entry in tree.load(store, full).items():
        other = shared.get(name)
        if entry == other:
            continue
        if isinstance(entry, Subdirectory) and isinstance(other, Subdirectory):
            below = above + name + b"/"
            yield from local_paths(store, other.digest.hash, entry.digest.hash, below)
        else:
            yield above + name, entry


class Totals(NamedTuple):
    """`entries`: files, links and empty directories."""

    entries: int = 0
    files: int = 0
    bytes: int = 0


def local_totals(store: Store, state: RecordedState) -> Totals:
    """Counts by how much the whole directory exceeds the work."""
    entries = files = size = 0
    for path, top in local_paths(store, state.tree, state.full):
        below = tree.walk(store, top.digest.hash) if isinstance(top, Subdirectory) else ()
        for entry in (top, *(entry for _, entry in below)):
            if isinstance(entry, File):
                files += 1
                size += entry.digest.size_bytes
            # A directory counts by its entries, and as one where it has none.
            if not isinstance(entry, Subdirectory) or not tree.load(store, entry.digest.hash):
                entries += 1
        kept = tree.find(store, state.tree, path)
        # An earlier version of the file, which counts in the work.
        if isinstance(kept, File):
            entries -= 1
            files -= 1
            size -= kept.digest.size_bytes
    return Totals(entries, files, size)


def _topmost(paths: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the paths that are below no other of them."""
    last: bytes | None = None
    # Sorted with the slash, else `a-b` would stand between `a` and `a/b`: `-` sorts before `/`.
    for path in sorted(paths, key=lambda path: path + b"/"):
        if last is None or not path.startswith(last + b"/"):
            last = path
            yield path
