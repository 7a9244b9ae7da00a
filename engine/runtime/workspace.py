"""A thread's workspace: the private directory `workspaces/<thread>` in which its agents work.

It is derived from the store at any time: `reset` makes it hold exactly a given tree, so a
step that is run again starts where the first attempt started. It is recorded whole, `.git`
and derived files included. Only the thread's own agents may write to it.

Here it is a copy; `engine.runtime.overlay_workspace` makes it an overlay where possible.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from casfs import threads
from casfs.digest import Digest, TreeHash
from casfs.errors import Failed
from casfs.store import Store
from casfs.system import rmtree
from casfs.system.paths import printable
from casfs.threads import Thread
from casfs.trees.restore.restore import restore
from casfs.trees.restore.target import Target
from casfs.trees.snapshot import walker
from casfs.trees.snapshot.ignore import IgnoreRules
from casfs.trees.snapshot.report import SnapshotOptions, SnapshotReport
from casfs.trees.snapshot.stat_cache import StatCache

FOLDER = "workspaces"
# The workspace of a thread, or a staging directory beside it.
THREAD_DIRECTORY = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}\Z|\.casfs\.[0-9a-f]{16}\Z")
FINISHED = (threads.ENDED, threads.CANCELLED)


class Workspace:
    """`root`: the tree that it holds, None as soon as agents may have changed it; `max_bytes`:
    limit of what `record` stores."""

    max_bytes: int | None = None

    def __init__(self, store: Store, path: Path) -> None:
        self._store = store
        self.path = path
        self.root: TreeHash | None = None
        self._report = SnapshotReport()  # of all that was recorded
        self._named: set[bytes] = set()
        self._stats = StatCache()
        self._known: dict[bytes, Digest] = {}  # files of turns, by stat

    def reset(self, root: TreeHash) -> None:
        """Replaces its content by the tree `root`. Raises as `casfs.trees.restore`."""
        if self.root != root:
            self.remove()
            restore(self._store, root, self.path, parents=True)
        self.root = None  # an agent may write from now on

    def record(self) -> TreeHash:
        """Stores its content as a tree; returns the root. Raises Failed and Refused
        (over `max_bytes`) as `casfs.trees.snapshot`."""
        self.root = self._record(self._report)
        return self.root

    def record_turn(self) -> TreeHash:
        """Stores its content while its agent works: neither `record` nor `reset` depends on it, and
        no file is read again. Raises as `record`, and where a file changes its kind meanwhile."""
        report, self._known = SnapshotReport(known=self._known), {}  # which a failure leaves
        root, self._known = self._record(report), report.known or {}
        return root

    def _record(self, report: SnapshotReport) -> TreeHash:
        options = SnapshotOptions(limit=self.max_bytes)
        with self._store.batch() as batch:
            rules = IgnoreRules()
            root = walker.snapshot(
                batch, self.path, rules, report, options=options, cache=self._stats
            ).hash
        self._stats.advance()
        return root

    def new_secrets(self) -> list[str]:
        """Returns the recorded files that look like secrets and were not returned before."""
        found = set(self._report.secrets) - self._named
        self._named |= found
        self._report = SnapshotReport()
        return sorted(map(printable, found))

    def remove(self) -> None:
        """Deletes it, write-protected directories included, and the restore state of it.
        Raises Failed."""
        self.root, self._stats = None, StatCache()
        rmtree.delete(self.path)
        Target(self._store, self.path).forget()


class NoWorkspace(Workspace):
    """A store in memory has no place for a workspace; a thread without one needs none."""

    def reset(self, root: TreeHash) -> None:
        raise Failed("a store in memory has no place for workspaces")

    def remove(self) -> None:
        pass


@dataclass(frozen=True)
class Workspaces:
    """The kind of workspace of a daemon's threads: `open` makes one of the store and its path,
    `prepare` makes what all of them share before the first is opened, `release` frees it;
    `max_bytes`: limit of each."""

    open: Callable[[Store, Path], Workspace] = Workspace
    release: Callable[[], None] = lambda: None
    prepare: Callable[[], None] = lambda: None
    max_bytes: int | None = None


COPYING = Workspaces()


def thread_workspace(store: Store, thread: Thread, workspaces: Workspaces = COPYING) -> Workspace:
    """Returns the workspace of a thread; of a store in memory, one that cannot be used."""
    if store.root is None:
        return NoWorkspace(store, Path(os.devnull))
    found = workspaces.open(store, store.root / FOLDER / thread.id)
    found.max_bytes = workspaces.max_bytes
    return found


def sweep(store: Store) -> int:
    """Deletes the workspaces of finished threads that a killed daemon left; returns how many.
    Workspaces that `casfs workspace` opened are not touched.

    For a daemon that runs no thread yet. Raises Failed.
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
            Target(store, place).forget()
    return len(left)
