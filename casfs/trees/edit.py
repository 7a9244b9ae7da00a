"""Edits trees: a tree with some of its entries replaced."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from casfs.digest import TreeDigest, TreeHash
from casfs.store.nodes import directory
from casfs.store.nodes.directory import Entry, File, Properties, Subdirectory
from casfs.store.store import Store
from casfs.store.write_batch import Batch
from casfs.trees import tree


def with_entries(
    store: Store,
    batch: Batch,
    root: TreeHash | None,
    changes: Mapping[bytes, Entry | None],
    like: TreeHash | None = None,
    *,
    keep_empty: bool = False,
) -> TreeDigest:
    """Puts the tree `root` (None: an empty one) with these entries at their paths; None deletes
    one, and, unless `keep_empty`, the directories that it leaves empty. A directory that `root`
    does not have gets the properties that it has in the tree `like`."""
    return _edited(store, batch, root=root, changes=changes, like=like, keep_empty=keep_empty)[0]


def of_names(store: Store, batch: Batch, paths: Iterable[bytes]) -> TreeDigest:
    """Puts a tree that has these paths, with empty files."""
    nothing = batch.put(b"")
    batch.commit()
    files: dict[bytes, Entry | None] = {
        path: File(path.rpartition(b"/")[2], nothing, executable=False) for path in paths
    }
    root = with_entries(store, batch, root=None, changes=files)
    batch.commit()
    return root


def with_directory_modes(
    store: Store, batch: Batch, root: TreeHash, modes: Mapping[bytes, int]
) -> TreeDigest:
    """Puts the tree `root` with these modes of the directories at these paths, which are made where
    nothing is; `.` is the root itself."""
    entries = dict(tree.load(store, root))
    own = tree.directory_properties(store, root)
    below: dict[bytes, dict[bytes, int]] = {}
    for path, mode in modes.items():
        if path == tree.TOP:
            kept = None if mode == tree.DIRECTORY_MODE else mode
            own = Properties(None if own is None else own.mtime, kept)
        else:
            name, _, subpath = path.partition(b"/")
            below.setdefault(name, {})[subpath or tree.TOP] = mode
    for name, inner in below.items():
        entry = entries.get(name)
        if entry is None or isinstance(entry, Subdirectory):
            subtree = tree.subtree(entry)
            if subtree is None:
                subtree = batch.put_directory(directory.encode([])).hash
                batch.commit()
            digest = with_directory_modes(store, batch, subtree, inner)
            entries[name] = Subdirectory(name, digest)
    is_plain = own is None or own == Properties()
    return batch.put_directory(directory.encode(entries.values(), None if is_plain else own))


def emptied(store: Store, root: TreeHash, paths: Iterable[bytes]) -> dict[bytes, Entry]:
    """Returns the directories above these paths that are empty in the tree `root`: where the paths
    go again, they stay."""
    directories: dict[bytes, Entry] = {}
    looked_at = set()
    for path in paths:
        parts = path.split(b"/")[:-1]
        while parts and (above := b"/".join(parts)) not in looked_at:
            looked_at.add(above)
            entry = tree.find(store, root, above)
            if isinstance(entry, Subdirectory) and not tree.load(store, entry.digest.hash):
                directories[above] = entry
            parts.pop()
    return directories


def _edited(
    store: Store,
    batch: Batch,
    root: TreeHash | None,
    changes: Mapping[bytes, Entry | None],
    like: TreeHash | None,
    keep_empty: bool,
) -> tuple[TreeDigest, bool]:
    """Returns (the tree, whether it is empty)."""
    entries = {} if root is None else dict(tree.load(store, root))
    theirs = {} if like is None else tree.load(store, like)
    below: dict[bytes, dict[bytes, Entry | None]] = {}
    for path, entry in changes.items():
        name, _, subpath = path.partition(b"/")
        if subpath:
            below.setdefault(name, {})[subpath] = entry
        elif entry is None:
            entries.pop(name, None)
        else:
            entries[name] = entry
    for name, inner in below.items():
        subtree = tree.subtree(entries.get(name))
        there = tree.subtree(theirs.get(name))
        digest, is_empty = _edited(
            store, batch, root=subtree, changes=inner, like=there, keep_empty=keep_empty
        )
        stays = keep_empty and subtree is not None
        if not is_empty or stays or isinstance(changes.get(name), Subdirectory):
            entries[name] = Subdirectory(name, digest)
        elif subtree is not None:
            del entries[name]
    source = root or like
    own = None if source is None else tree.directory_properties(store, source)
    return batch.put_directory(directory.encode(entries.values(), own)), not entries
