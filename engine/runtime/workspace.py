"""The workspaces of threads: the desk of each, `workspaces/<thread>` in the store, in which its
agents work. Only the thread's own agents may write to it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from casfs.errors import Failed, NotFound
from casfs.store.store import Store
from casfs.system import rmtree
from casfs.system.log import Log, silent
from casfs.threads import threads
from casfs.threads.threads import Thread, ThreadId
from casfs.trees.restore.target import Target
from casfs.workspaces import ignored_files
from casfs.workspaces.desk import FOLDER, Desk
from casfs.workspaces.strategies import TreeLocator, no_mount
from engine.threads.record import ALLOWS_SECRETS

# The desk of a thread, or a staging directory beside it.
THREAD_DIRECTORY = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}\Z|\.casfs\.[0-9a-f]{16}\Z")
FINISHED = (threads.ENDED, threads.CANCELLED)


@dataclass(frozen=True)
class Workspaces:
    """What the desks of a daemon's threads have in common. `trees`, `preferred`: as of `Desk`;
    `prepare`: makes what they need before the first is opened, `release` frees it; `max_bytes`:
    limit of each."""

    trees: Callable[[Store], TreeLocator] = lambda store: no_mount
    preferred: Sequence[str] = ()
    release: Callable[[], None] = lambda: None
    prepare: Callable[[], None] = lambda: None
    max_bytes: int | None = None
    log: Log = silent


COPYING = Workspaces()


def thread_workspace(
    store: Store, thread: Thread, workspaces: Workspaces = COPYING, name: ThreadId | None = None
) -> Desk:
    """Returns the desk of a thread; one beside it with a `name`, which no thread has."""
    folder = store.root / FOLDER / (name or thread.id)
    trees = workspaces.trees(store)
    desk = Desk(store, folder, trees, log=workspaces.log, preferred=workspaces.preferred)
    desk.max_bytes = workspaces.max_bytes
    desk.start = thread.record["start"]
    desk.allows_secrets = bool(thread.record.get(ALLOWS_SECRETS))
    desk.ignored = ignored_files.of_thread(store, thread)
    return desk


def _is_used(store: Store, id: ThreadId) -> bool:
    try:
        return threads.get(store, id).status not in FINISHED
    except NotFound:
        return False


def sweep(store: Store) -> int:
    """Deletes the desks of finished threads that a killed daemon left; returns how many.
    Workspaces that `casfs workspace` opened are not touched.

    For a daemon that runs no thread yet. Raises Failed.
    """
    ignored_files.sweep(store)
    folder = store.root / FOLDER
    try:
        names = [name for name in os.listdir(folder) if THREAD_DIRECTORY.match(name)]
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise Failed(f"cannot list {folder}: {error.strerror}") from None
    left = [folder / name for name in names if not _is_used(store, ThreadId(name))]
    for path in left:
        rmtree.delete(path)
        Target(store, path / "tree").forget()
    return len(left)
