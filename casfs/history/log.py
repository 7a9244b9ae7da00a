"""The log of a path: the versions that changed it, or anything below it, newest first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from casfs.digest import TreeHash
from casfs.history.blame import find_renamed
from casfs.history.version import Version
from casfs.history.versions import Chain, Place
from casfs.store.nodes.directory import File, Subdirectory
from casfs.system import interruption
from casfs.trees import tree
from casfs.trees.tree import Change


@dataclass(frozen=True, slots=True)
class Changed:
    """A version, what it changed at the path, and the tree before it; None before the first."""

    version: Version
    change: Change
    before: TreeHash | None

    @property
    def letter(self) -> str:
        """As of the change; M of a directory, as what is in it has changed."""
        is_directory = isinstance(self.change.old, Subdirectory)
        return (
            "M"
            if is_directory and isinstance(self.change.new, Subdirectory)
            else self.change.letter
        )


def log(position: Place | None, path: bytes, within: Chain | None = None) -> Iterator[Changed]:
    """Yields the versions, before a rename of a file those of its old path; after a step those of
    the threads that it called. `within`: only of this
    chain, of a called thread, but not what the calling step gave it."""
    path = b"/".join(tree.split_path(path))
    while position is not None:
        interruption.check()
        older = position.older
        if within is not None and (older is None or older.chain is not within):
            return
        new_path = path
        new = position.entry(path)
        old = older.entry(path) if older else None
        source = None
        if older is not None and old is None and isinstance(new, File):
            source = find_renamed(
                position.chain.store, older.version.root, new=position.version.root, path=path
            )
            old = old if source is None else older.entry(source)
        if new != old or source is not None:
            before = older.version.root if older else None
            yield Changed(position.version, Change(path, old, new=new, source=source), before)
        path = path if source is None else source
        for called in position.called():
            yield from log(called, new_path, called.chain)
        position = position.older_that_changed(path)
