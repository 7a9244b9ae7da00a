"""The private directory in which a thread's agents work: `workspaces/<thread>` in the store.

It is derived from the store at any time: `reset` makes it hold exactly a given tree, so a
step that is run again starts where the first try started. It is recorded whole, `.git`
and derived files included. Nobody but the thread's own agents may write in it.

Here it is a copy; `engine.runtime.overlay_workspace` makes it an overlay, where that can be.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from casfs import threads
from casfs.errors import Failed
from casfs.store import Store
from casfs.system import rmtree
from casfs.trees.restore import restore as restores
from casfs.trees.snapshot import walker
from casfs.trees.snapshot.ignore import Ignore

FOLDER = "workspaces"
THREAD_DIRECTORY = re.compile(
    r"[0-9A-HJKMNP-TV-Z]{26}\Z|\.casfs\.[0-9a-f]{16}\Z"
)  # a thread's, or beside it
FINISHED = (threads.ENDED, threads.CANCELLED)


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
            restores.restore(self._store, root, self.path)
        self.root = None  # an agent may write from now on

    def record(self) -> str:
        """Store what it holds and return the root. Raises Failed as `casfs.trees.snapshot`."""
        with self._store.batch() as batch:
            self.root = walker.build(batch, self.path, Ignore()).hash
        return self.root

    def remove(self) -> None:
        """Delete it, write-protected directories included, and what restores into it have
        left. Raises Failed."""
        self.root = None
        rmtree.delete(self.path)
        restores.forget(self._store, self.path)


@dataclass(frozen=True)
class Workspaces:
    """How a daemon makes the workspaces of its threads: `open` gets the store and the place,
    `release` ends what all of them needed."""

    open: Callable[[Store, Path], Workspace] = Workspace
    release: Callable[[], None] = lambda: None


COPYING = Workspaces()


def sweep(store: Store) -> int:
    """Delete the directories of threads that are over, which a killed daemon has left; returns
    how many. What is not a thread's, an opened workspace, is not looked at.

    For a daemon that runs nothing yet. Raises Failed.
    """
    if store.root is None:
        return 0
    folder = store.root / FOLDER
    try:
        found = [name for name in os.listdir(folder) if THREAD_DIRECTORY.match(name)]
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise Failed(f"cannot list {folder}: {error.strerror}") from None
    kept = {one.id for one in threads.list_threads(store) if one.status not in FINISHED}
    left = [folder / name for name in found if name not in kept]
    for path in left:
        rmtree.delete(path)
        for place in (path, path / "tree"):
            restores.forget(store, place)
    return len(left)
