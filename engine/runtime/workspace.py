"""A thread's workspace: the private directory `workspaces/<thread>` in which its agents work.

It is derived from the store at any time: `reset` makes it hold exactly a given tree, so a
step that is run again starts where the first attempt started. It is recorded as a work and a local
tree (`casfs.trees.recorded_state`): `.git` is work, derived directories are local. What is ignored
is recorded in neither; a copy of it lies beside the store's workspaces
(`casfs.workspaces.ignored_files`). Only the thread's own agents may write to it.

Here it is a copy; `engine.runtime.overlay_workspace` makes it an overlay where possible.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from casfs.digest import NodeHash
from casfs.errors import Failed, NotFound, Refused
from casfs.scanner import Scanner
from casfs.store.store import Store
from casfs.system import rmtree
from casfs.threads import threads
from casfs.threads.threads import Thread, ThreadId
from casfs.trees import recorded_state
from casfs.trees.git.index import TrackedFiles
from casfs.trees.git.recorded_index import RecordedTrackedFiles
from casfs.trees.recorded_state import RecordedState
from casfs.trees.restore.target import Target
from casfs.trees.snapshot import policy, walker, working_tree
from casfs.trees.snapshot.ignore import IgnoreRules
from casfs.trees.snapshot.report import (
    BY_PATTERN,
    ReadContent,
    SnapshotOptions,
    SnapshotReport,
)
from casfs.trees.snapshot.stat_cache import StatCache
from casfs.trees.snapshot.tracked_rules import TrackedRules
from casfs.workspaces import ignored_files
from casfs.workspaces.ignored_files import NOTHING_IGNORED, IgnoredFiles
from engine.threads.record import ALLOWS_SECRETS

FOLDER = "workspaces"
# The workspace of a thread, or a staging directory beside it.
THREAD_DIRECTORY = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}\Z|\.casfs\.[0-9a-f]{16}\Z")
FINISHED = (threads.ENDED, threads.CANCELLED)


class Workspace:
    """`state`: what it holds, None as soon as agents may have changed it; `max_bytes`: limit of
    what `record` stores; `ignored`: the files that lie in it without being recorded;
    `allows_secrets`: no file is scanned; `start`: the thread-start node."""

    max_bytes: int | None = None
    allows_secrets = False
    ignored: IgnoredFiles = NOTHING_IGNORED
    start: NodeHash | None = None

    def __init__(self, store: Store, path: Path) -> None:
        self._store = store
        self._policy = policy.load(store)
        self.path = path
        self.state: RecordedState | None = None
        self._begun: RecordedState | None = None  # what the last reset made of it
        self._report = SnapshotReport()  # of what was recorded since `take_report`
        self._named: set[bytes] = set()
        self._stats = StatCache()
        self._known: dict[bytes, ReadContent] = {}  # files of turns, by stat

    def reset(self, state: RecordedState) -> None:
        """Replaces its content by `state`. Raises as `casfs.trees.restore`."""
        if self.state != state:
            self.remove()
            # 20 modules, which stopping a thread, say, does without.
            from casfs.trees.restore.options import RestoreOptions
            from casfs.trees.restore.restore import restore

            restore(self._store, state, self.path, RestoreOptions(parents=True))
            self.ignored.copy_to(self.path)
        self._begun = state
        self.state = None  # an agent may write from now on

    def record(self) -> RecordedState:
        """Stores its content. Raises Failed and Refused (over `max_bytes`) as
        `casfs.trees.snapshot`."""
        self.state = self._record(self._report)
        return self.state

    def record_turn(self) -> RecordedState:
        """Stores its content while its agent works: neither `record` nor `reset` depends on it, and
        no file is read again. Raises as `record`, and where a file changes its kind meanwhile."""
        report = SnapshotReport(known=self._known)  # which a failure leaves
        self._known = {}
        state = self._record(report)
        self._known = report.known or {}
        return state

    def _record(self, report: SnapshotReport) -> RecordedState:
        options = SnapshotOptions(limit=self.max_bytes, scanner=self._scanner())
        rules = self._rules()
        with self._store.batch() as batch:
            full = walker.snapshot(
                batch, self.path, rules=rules, report=report, options=options, cache=self._stats
            )
            state = working_tree.divide(
                self._store,
                batch,
                full=full.dated,
                directory=self.path,
                report=report,
                earlier=working_tree.Earlier(base=self._begun, tracked_at_start=self._tracked),
            )
        self._stats.advance()
        return state

    def _scanner(self) -> Scanner | None:
        return None if self.allows_secrets else self._policy.scanner()

    def _rules(self) -> IgnoreRules:
        """Ignored is what was ignored when the thread began: an agent may have changed
        `.casfsignore` since. Raises Refused for an invalid pattern."""
        own = self._own_rules()
        # What the thread has is not deleted by a pattern that matches it.
        return own if self._begun is None else TrackedRules(own, self._store, self._begun)

    def _own_rules(self) -> IgnoreRules:
        try:
            own = IgnoreRules(
                self.ignored.patterns,
                defaults=True,
                keeps_derived=True,
                work=self._policy.work,
                private=self._policy.private,
            )
        except ValueError as error:
            raise Refused(f"{self.path}: an invalid pattern: {error}") from None
        own.excluded = dict.fromkeys(self.ignored.paths, BY_PATTERN)
        return own

    @cached_property
    def _tracked(self) -> TrackedFiles:
        """What git tracked when the thread began: its agents' commits make nothing work."""
        state = self._begun
        if self.start is not None:
            payload = self._store.node(self.start, "thread-start").payload
            state = recorded_state.of_node(
                self._store, self.start, payload=payload, field="workspace"
            )
        if state is None:
            return TrackedFiles(self.path, above=False)
        return RecordedTrackedFiles(self._store, state)

    def take_report(self) -> SnapshotReport:
        """Returns what `record` reported since the last call; a file is named once."""
        report = self._report
        self._report = SnapshotReport()
        named = frozenset(self._named)
        self._named.update(report.local, report.exposed)
        for paths in (report.local, report.exposed):
            for path in named.intersection(paths):
                del paths[path]
        return report

    def remove(self) -> None:
        """Deletes it, write-protected directories included, and the restore state of it.
        Raises Failed."""
        self.state = None
        self._stats = StatCache()
        rmtree.delete(self.path)
        Target(self._store, self.path).forget()


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


def thread_workspace(
    store: Store, thread: Thread, workspaces: Workspaces = COPYING, name: ThreadId | None = None
) -> Workspace:
    """Returns the workspace of a thread; one beside it with a `name`, which no thread has."""
    workspace = workspaces.open(store, store.root / FOLDER / (name or thread.id))
    workspace.max_bytes = workspaces.max_bytes
    workspace.start = thread.record["start"]
    workspace.allows_secrets = bool(thread.record.get(ALLOWS_SECRETS))
    workspace.ignored = ignored_files.of_thread(store, thread)
    return workspace


def _is_used(store: Store, id: ThreadId) -> bool:
    try:
        return threads.get(store, id).status not in FINISHED
    except NotFound:
        return False


def sweep(store: Store) -> int:
    """Deletes the workspaces of finished threads that a killed daemon left; returns how many.
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
        for directory in (path, path / "tree"):
            Target(store, directory).forget()
    return len(left)
