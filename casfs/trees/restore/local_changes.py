"""Local changes: what a restore would overwrite that is in no tree.

`current` is the tree of what a directory holds (`casfs.trees.snapshot.tracked`), `olds` are the
trees that it may have been restored to, `new` is the one to come; None is an empty tree. An entry
that is as in none of them was changed locally. What is missing is no local change: nothing is
lost when it comes back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from casfs.digest import TreeHash
from casfs.store.nodes.directory import Entry, File, Subdirectory, Symlink
from casfs.store.store import Store
from casfs.trees import tree
from casfs.trees.restore.write import file_mode

COMPARED_BITS = 0o755  # of a mode: without the write bits of others, which a tree may not keep


def local_changes(
    store: Store, current: TreeHash, roots: Sequence[TreeHash | None], above: bytes = b""
) -> Iterator[bytes]:
    """Yields the paths that are as in none of `roots`: the trees `olds` and `new`; a directory
    before what is in it."""
    if current in roots:
        return
    trees = [tree.load(store, root) for root in roots if root is not None]
    for name, entry in tree.load(store, current).items():
        theirs = [entries.get(name) for entries in trees]
        if not any(_is_same(store, entry, their_entry) for their_entry in theirs):
            yield above + name
        if isinstance(entry, Subdirectory):
            below = [tree.subtree(their_entry) for their_entry in theirs]
            yield from local_changes(
                store, entry.digest.hash, roots=below, above=above + name + b"/"
            )


def replaced_directories(
    store: Store, current: TreeHash, new: TreeHash, above: bytes = b""
) -> Iterator[tuple[bytes, TreeHash]]:
    """Yields the directories of `current`, path and tree, in whose place `new` has no directory."""
    if current == new:
        return
    after = tree.load(store, new)
    for name, entry in tree.load(store, current).items():
        to = after.get(name)
        if to is None or not isinstance(entry, Subdirectory):
            continue
        if isinstance(to, Subdirectory):
            below = (entry.digest.hash, to.digest.hash)
            yield from replaced_directories(store, *below, above + name + b"/")
        else:
            yield above + name, entry.digest.hash


def _is_same(store: Store, entry: Entry, other: Entry | None) -> bool:
    """Compares kind, content and mode, but neither times nor the content of directories."""
    if isinstance(entry, File) and isinstance(other, File):
        same: bool = entry.digest.hash == other.digest.hash
        return (
            same
            and (file_mode(entry, set_id=False) ^ file_mode(other, set_id=False)) & COMPARED_BITS
            == 0
        )
    if isinstance(entry, Symlink) and isinstance(other, Symlink):
        return entry.target == other.target
    if isinstance(entry, Subdirectory) and isinstance(other, Subdirectory):
        modes = [
            tree.directory_mode(store, subdirectory.digest.hash) for subdirectory in (entry, other)
        ]
        return (modes[0] ^ modes[1]) & COMPARED_BITS == 0
    return False
