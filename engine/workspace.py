"""The private directory in which a thread's agents work: `workspaces/<thread>` in the store.

It is derived from the store at any time: `reset` makes it hold exactly a given tree, so a
step that is run again starts where the first try started. It is recorded whole, `.git`
and derived files included. Nobody but the thread's own agents may write in it.

Here it is a copy; `engine.layered` makes it an overlay, where that can be.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from casfs import scratch
from casfs.store import Store
from casfs.trees import snapshot
from casfs.trees.ignore import Ignore
from casfs.trees.restore import restore


class Workspace:
    """`root` is the tree it holds, None as soon as that is not certain."""

    def __init__(self, store: Store, path: Path) -> None:
        self._store = store
        self.path = path
        self.root: str | None = None

    def reset(self, root: str) -> None:
        """Make it hold the tree `root`, whatever was there. Raises as `casfs.trees.restore`."""
        if self.root != root:
            self.remove()
            restore(self._store, root, self.path)
        self.root = None  # an agent may write from now on

    def record(self) -> str:
        """Store what it holds and return the root. Raises Failed as `casfs.trees.snapshot`."""
        with self._store.batch() as batch:
            self.root = snapshot.build(batch, self.path, Ignore()).hash
        return self.root

    def remove(self) -> None:
        """Delete it, write-protected directories included, and what a restore that was
        killed left beside it. Raises Failed."""
        self.root = None
        for path in (self.path, *self.path.parent.glob(f".{self.path.name}.*")):
            scratch.delete(path)


@dataclass(frozen=True)
class Workspaces:
    """How a daemon makes the workspaces of its threads: `open` gets the store and the place,
    `release` ends what all of them needed."""

    open: Callable[[Store, Path], Workspace] = Workspace
    release: Callable[[], None] = lambda: None


PLAIN = Workspaces()
