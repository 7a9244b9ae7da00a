"""A directory that holds a recorded state, is written by programs, and is recorded again: what a
step of a thread works in, and a command that is run on a tree.

    <folder>/tree           the directory
    <folder>/upper, work, changes    its layers (`casfs.workspaces.layers`)

It has no head, and is derived from the store at any time: `reset` makes it hold exactly a given
state, so a step that is run again starts where the first attempt started. As an overlay it has an
empty upper layer then, so recording never reads what was there before: a step costs only what it
changes. Where no overlay can be mounted the state is restored to the same place, and recorded by
reading it: slower, no more.

It is recorded as a work and a local tree (`casfs.trees.recorded_state`): `.git` is work, derived
directories are local. What is ignored is recorded in neither; a copy of it is the lowest layer
(`casfs.workspaces.ignored_files`).

The mounts are private to the process that made them: those that a killed one left are unmounted by
the next one (`unmount_all`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path

from casfs.digest import NodeHash, TreeHash
from casfs.errors import CasfsError, Failed, Refused
from casfs.scanner import Scanner
from casfs.store.store import Store
from casfs.system import mounts, rmtree
from casfs.system.log import Log, silent
from casfs.trees import recorded_state, tree
from casfs.trees.dated import DatedTree
from casfs.trees.git.index import TrackedFiles
from casfs.trees.git.recorded_index import RecordedTrackedFiles
from casfs.trees.recorded_state import RecordedState
from casfs.trees.restore.target import Target
from casfs.trees.snapshot import policy, walker, working_tree
from casfs.trees.snapshot.ignore import IgnoreRules
from casfs.trees.snapshot.report import BY_PATTERN, ReadContent, SnapshotOptions, SnapshotReport
from casfs.trees.snapshot.stat_cache import StatCache
from casfs.trees.snapshot.tracked_rules import TrackedRules
from casfs.workspaces import layers, overlay_mount, overlay_snapshot, strategies, strategy_choice
from casfs.workspaces.ignored_files import NOTHING_IGNORED, IgnoredFiles
from casfs.workspaces.layers import Stack
from casfs.workspaces.strategies import Strategy, TreeLocator, no_mount

FOLDER = "workspaces"  # of the store
OVERLAYS = (strategies.NATIVE, strategies.OVERLAY)
Names = dict[bytes, "Names"]  # of paths, by the names above


class Desk:
    """`state`: what it holds, None as soon as programs may have changed it; `max_bytes`: limit of
    what `record` stores; `ignored`: the files that lie in it without being recorded;
    `allows_secrets`: no file is scanned; `start`: the node with what it began as, if not with its
    first reset."""

    max_bytes: int | None = None
    allows_secrets = False
    ignored: IgnoredFiles = NOTHING_IGNORED
    start: NodeHash | None = None

    def __init__(
        self,
        store: Store,
        folder: Path,
        trees: TreeLocator = no_mount,
        log: Log = silent,
        preferred: Sequence[str] = (),
    ) -> None:
        """`trees`: the path of a tree in a mount of the store; `preferred`: the strategies that are
        tried before a copy."""
        self._store = store
        self._policy = policy.load(store)
        self._folder = folder.parent.resolve() / folder.name
        self.path = self._folder / "tree"
        self._trees = trees
        self._log = log
        self._preferred = preferred
        self.state: RecordedState | None = None
        self._begun: RecordedState | None = None  # what the last reset made of it
        self._lower: DatedTree | None = None  # of the overlay, None without one
        self._image: DatedTree | None = None  # the tree whose image is the lowest layer
        self._empty_upper: tuple[int, ...] | None = None  # its stat when it was last empty
        self._report = SnapshotReport()  # of what was recorded since `take_report`
        self._named: set[bytes] = set()
        self._stats = StatCache()
        self._known: dict[bytes, ReadContent] = {}  # files of turns, by stat

    @property
    def _upper(self) -> Path:
        return self._folder / "upper"

    def reset(self, state: RecordedState) -> None:
        """Replaces its content by `state`; the upper layer of an overlay has nothing then but what
        was written to ignored files since it held another. Raises as `casfs.trees.restore`."""
        if self.state != state or self._lower not in (None, state.whole):
            self.remove()
            names = (*self._preferred, strategies.COPY)
            candidates = strategy_choice.available(self._store, names)
            strategy_choice.first_working(candidates, partial(self._fill, state), self._failed)
        self._empty_upper = self._stat_empty_upper() if self._lower is not None else None
        self._begun = state
        self.state = None  # an agent may write from now on
        self._known = {}

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
        """Unmounts and deletes it, write-protected directories included. A process that still works
        in it keeps its files, but for the ignored ones. Raises Failed."""
        self.state = None
        self._lower = None
        self._stats = StatCache()
        overlay_mount.unmount(self.path, lazy=True)
        rmtree.delete(self._folder)
        Target(self._store, self.path).forget()

    # -- the layers -------------------------------------------------------------------------

    def _fill(self, state: RecordedState, strategy: Strategy) -> None:
        """Raises Failed."""
        root = state.whole
        similar = self._similar(root) if strategy.native else None
        stack = Stack(
            root,
            self._upper,
            point=self.path,
            changes=self._folder / "changes",
            similar=similar,
            unrecorded=self.ignored.layer,
        )
        if not strategy.layered:
            layers.fill(self._store, strategy, stack, state, self._trees)
            self.ignored.copy_to(self.path)
            return
        try:
            layers.make_upper(self._store, stack)
            self.path.mkdir()
            layers.fill(self._store, strategy, stack, state, self._trees)
        # Whatever stands in the way of an overlay, a copy works.
        except (OSError, Refused) as error:
            raise Failed(str(error)) from error
        self._lower = root
        if strategy.native:
            self._image = similar or root

    def _failed(self, strategy: Strategy, error: CasfsError) -> None:
        named = {"strategy": strategy.name, "workspace": str(self._folder)}
        self._log("no overlay", **named, error=str(error))
        self.remove()

    def _similar(self, root: DatedTree) -> DatedTree | None:
        """Returns the tree of the last image, where that can be below `root`."""
        image = self._image
        if image is None or image == root or self._hides_ignored(image, root):
            return None
        return image if layers.is_near(self._store, image, root) else None

    def _hides_ignored(self, image: DatedTree, root: DatedTree) -> bool:
        """Returns whether the changes from an image to `root` remove or replace what is above an
        ignored path: their layer would hide that, too."""
        if self.ignored.layer is None:
            return False
        return _replaces(self._store, image.tree, root.tree, paths=self._ignored_names)

    @cached_property
    def _ignored_names(self) -> Names:
        names: Names = {}
        for path in self.ignored.paths:
            below = names
            for name in path.split(b"/"):
                below = below.setdefault(name, {})
        return names

    def _stat_empty_upper(self) -> tuple[int, ...] | None:
        """Returns what every change of the upper directory changes; None where it is not empty."""
        upper_stat = self._upper.stat()
        if os.listdir(self._upper):
            return None
        return upper_stat.st_ctime_ns, upper_stat.st_mode, upper_stat.st_uid, upper_stat.st_gid

    # -- what is recorded -------------------------------------------------------------------

    def _record(self, report: SnapshotReport) -> RecordedState:
        base = None if self._lower is None else self._begun  # of an overlay
        if base is not None:
            if not overlay_mount.is_mounted(self.path):
                raise Failed(f"the workspace {self.path} was unmounted by another process")
            if self._empty_upper is not None and self._empty_upper == self._stat_empty_upper():
                return base  # nothing was written: the cost does not depend on the tree
        rules = self._rules()
        with self._store.batch() as batch:
            if base is not None:
                full = overlay_snapshot.snapshot(
                    self._store,
                    batch,
                    base=base.whole,
                    upper=self._upper,
                    report=report,
                    limit=self.max_bytes,
                    rules=lambda _: rules,
                    scanner=self._scanner(),
                    view=self.path,
                    unrecorded=self.ignored.layer,
                )
            else:
                options = SnapshotOptions(limit=self.max_bytes, scanner=self._scanner())
                full = walker.snapshot(
                    batch, self.path, rules=rules, report=report, options=options, cache=self._stats
                ).dated
            state = working_tree.divide(
                self._store,
                batch,
                full=full,
                directory=self.path,
                report=report,
                is_partial=base is not None,
                earlier=working_tree.Earlier(base=self._begun, tracked_at_start=self._tracked),
            )
        self._stats.advance()
        return state

    def _scanner(self) -> Scanner | None:
        return None if self.allows_secrets else self._policy.scanner()

    def _rules(self) -> IgnoreRules:
        """Ignored is what was ignored when it began: an agent may have changed `.casfsignore`
        since. Raises Refused for an invalid pattern."""
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
        # What it has is not deleted by a pattern that matches it.
        return own if self._begun is None else TrackedRules(own, self._store, self._begun)

    @cached_property
    def _tracked(self) -> TrackedFiles:
        """What git tracked when it began: commits of agents make nothing work."""
        state = self._begun
        if self.start is not None:
            payload = self._store.node(self.start, "thread-start").payload
            state = recorded_state.of_node(
                self._store, self.start, payload=payload, field="workspace"
            )
        if state is None:
            return TrackedFiles(self.path, above=False)
        return RecordedTrackedFiles(self._store, state)


def _replaces(store: Store, old: TreeHash, new: TreeHash, paths: Names) -> bool:
    """Returns whether what an old tree has at one of these paths, or above it, is gone in a new
    one, or of another kind. Directories that are equal are not looked into."""
    entries_before = tree.load(store, old)
    entries_after = tree.load(store, new)
    for name, below in paths.items():
        before = entries_before.get(name)
        after = entries_after.get(name)
        if before is None or before == after:
            continue
        if type(before) is not type(after):
            return True
        inner_old = tree.subtree(before)
        inner_new = tree.subtree(after)
        if inner_old and inner_new and _replaces(store, inner_old, inner_new, paths=below):
            return True
    return False


def unmount_all(root: Path) -> int:
    """Unmounts all that is mounted for threads of the store at `root`; returns how many.

    Raises Failed.
    """
    points = mounts.mounted_below(root.resolve() / FOLDER)
    for point in points:
        overlay_mount.unmount(point, lazy=True)
    return len(points)
