"""Local changes: what a restore would overwrite that is in no tree.

`here` is the tree of what a directory holds (`casfs.trees.snapshot.tracked`), `olds` are the
trees that it may have been restored to, `new` is the one to come; None is an empty tree. An entry
that is as in none of them was changed locally. What is missing is no local change: nothing is
lost when it comes back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from casfs.digest import TreeHash
from casfs.nodes.directory import Entry, File, Subdirectory, Symlink
from casfs.store import Store
from casfs.trees import tree
from casfs.trees.restore.write import file_mode

COMPARED_BITS = 0o755  # of a mode: without the write bits of others, which a tree may not keep


def local_changes(
    store: Store, here: TreeHash, others: Sequence[TreeHash | None], above: bytes = b""
) -> Iterator[bytes]:
    """Yields the paths that are as in none of `others`: the trees `olds` and `new`; a directory
    before what is in it."""
    if here in others:
        return
    trees = [tree.load(store, one) for one in others if one is not None]
    for name, entry in tree.load(store, here).items():
        theirs = [entries.get(name) for entries in trees]
        if not any(_is_same(store, entry, one) for one in theirs):
            yield above + name
        if isinstance(entry, Subdirectory):
            below = [tree.subtree(one) for one in theirs]
            yield from local_changes(
                store, entry.digest.hash, others=below, above=above + name + b"/"
            )


def replaced_directories(
    store: Store, here: TreeHash, new: TreeHash, above: bytes = b""
) -> Iterator[tuple[bytes, TreeHash]]:
    """Yields the directories of `here`, path and tree, in whose place `new` has no directory."""
    if here == new:
        return
    after = tree.load(store, new)
    for name, entry in tree.load(store, here).items():
        to = after.get(name)
        if to is None or not isinstance(entry, Subdirectory):
            continue
        if isinstance(to, Subdirectory):
            below = (entry.digest.hash, to.digest.hash)
            yield from replaced_directories(store, *below, above + name + b"/")
        else:
            yield above + name, entry.digest.hash


def _is_same(store: Store, here: Entry, other: Entry | None) -> bool:
    """Compares kind, content and mode, but neither times nor the content of directories."""
    if isinstance(here, File) and isinstance(other, File):
        same: bool = here.digest.hash == other.digest.hash
        return (
            same
            and (file_mode(here, set_id=False) ^ file_mode(other, set_id=False)) & COMPARED_BITS
            == 0
        )
    if isinstance(here, Symlink) and isinstance(other, Symlink):
        return here.target == other.target
    if isinstance(here, Subdirectory) and isinstance(other, Subdirectory):
        modes = [tree.directory_mode(store, one.digest.hash) for one in (here, other)]
        return (modes[0] ^ modes[1]) & COMPARED_BITS == 0
    return False
