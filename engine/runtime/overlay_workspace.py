"""A thread's workspace as an overlay: a step costs only what it changes.

    workspaces/<thread>/tree           the merged directory, which the agents see
    workspaces/<thread>/upper, work    the changes since the last step
    workspaces/<thread>/changes        an image of the changes of earlier steps

Every step starts with an empty upper layer over the tree of the step before, so that recording
one never reads what earlier steps wrote. Below all of them is the copy of what is ignored
(`casfs.workspaces.ignored_files`). The others are, in this order of preference: the image of an
earlier tree of the thread and above it an image of the changes since (native: no process serves
it); the tree in a mount of the store. The base image is rebuilt when the changes have grown to a
fraction of it, so a step costs its changes and a share of that.
Where neither can be mounted the tree is restored to the same place, and recorded by reading
it: the thread goes on, only slower.

The mounts are private to the daemon: those that a killed daemon left are unmounted by the next
one (`unmount_all`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path

from casfs.digest import TreeHash
from casfs.errors import CasfsError, Failed
from casfs.native import images
from casfs.store.store import Store
from casfs.system import mounts, rmtree
from casfs.system.log import Log, silent
from casfs.trees import tree
from casfs.trees.dated import DatedTree
from casfs.trees.recorded_state import RecordedState
from casfs.trees.restore.target import Target
from casfs.trees.snapshot import working_tree
from casfs.trees.snapshot.report import SnapshotReport
from casfs.workspaces import (
    image_mount,
    lifecycle,
    overlay_mount,
    overlay_snapshot,
    strategies,
    strategy_choice,
)
from casfs.workspaces.overlay_mount import OverlayLayers
from casfs.workspaces.strategies import Strategy, TreeLocator
from engine.runtime.workspace import Workspace

PREFERRED = (strategies.NATIVE, strategies.OVERLAY)
# The base image is rebuilt when the changes reach this fraction of it, and at least this size.
REBASE_FRACTION = 4
REBASE_MIN_BYTES = 1 << 18


Names = dict[bytes, "Names"]  # of paths, by the names above


class OverlayWorkspace(Workspace):
    def __init__(
        self,
        store: Store,
        folder: Path,
        trees: TreeLocator,
        log: Log = silent,
        preferred: Sequence[str] = PREFERRED,
    ) -> None:
        """`trees`: the path of a tree in a mount of the store."""
        self._folder = folder.parent.resolve() / folder.name
        super().__init__(store, self._folder / "tree")
        self._trees = trees
        self._log = log
        available = strategy_choice.choose(None, store)
        self._strategies = [strategy for strategy in available if strategy.name in preferred]
        self._image: DatedTree | None = None  # the tree whose image is the lowest layer
        self._base: DatedTree | None = None  # of the overlay, None without one
        self._empty_upper: tuple[int, ...] | None = None  # its stat when it was last empty

    @property
    def _upper(self) -> Path:
        return self._folder / "upper"

    def reset(self, state: RecordedState) -> None:
        """Replaces its content by `state`, with an upper layer that has nothing but what was
        written to ignored files since it held another. Raises as `casfs.trees.restore`."""
        if not (self.state == state and state.whole == self._base):
            self.remove()
            if self._mount(state.whole):
                self._base = state.whole
            else:
                super().reset(state)
        self._empty_upper = self._stat_empty_upper() if self._base is not None else None
        self._begun = state
        self.state = None
        self._known = {}

    def _mount(self, root: DatedTree) -> bool:
        """Mounts an overlay by the first strategy that works; False where none does."""
        for strategy in self._strategies:
            try:
                lifecycle.create_upper(self._store, root, self._upper)
                self.path.mkdir()
                strategies.mount(strategy, partial(self._layers, strategy, root), self._trees)
            except (CasfsError, OSError) as error:
                named = {"strategy": strategy.name, "workspace": str(self._folder)}
                self._log("no overlay", **named, error=str(error))
                self.remove()
            else:
                return True
        return False

    def _layers(self, strategy: Strategy, root: DatedTree) -> OverlayLayers:
        lower, changes = self._images(root) if strategy.native else (self._trees(root), None)
        work = self._upper.with_name("work")
        return OverlayLayers(
            lower,
            self._upper,
            work=work,
            point=self.path,
            changes=changes,
            unrecorded=self.ignored.layer,
        )

    def _images(self, root: DatedTree) -> tuple[Path, Path | None]:
        """Returns the base image, and the image of the changes since, if any."""
        changes = self._folder / "changes"
        if self._image not in (None, root) and not self._hides_ignored(root):
            assert self._image is not None
            size = images.write_layer(self._store, self._image, new=root, path=changes)
            below = image_mount.image(self._store, self._image)
            if size < max(REBASE_MIN_BYTES, below.stat().st_size // REBASE_FRACTION):
                return below, changes
        below = image_mount.image(self._store, root)
        self._image = root
        return below, None

    def _hides_ignored(self, root: DatedTree) -> bool:
        """Returns whether the changes from the image to `root` remove or replace what is above an
        ignored path: their layer would hide that, too, until the image is made anew."""
        if self.ignored.layer is None or self._image is None:
            return False
        return _replaces(self._store, self._image.tree, root.tree, paths=self._ignored_names)

    @cached_property
    def _ignored_names(self) -> Names:
        names: Names = {}
        for path in self.ignored.paths:
            below = names
            for name in path.split(b"/"):
                below = below.setdefault(name, {})
        return names

    def _record(self, report: SnapshotReport) -> RecordedState:
        if self._base is None or self._begun is None:
            return super()._record(report)
        if not overlay_mount.is_mounted(self.path):
            raise Failed(f"the workspace {self.path} was unmounted by another process")
        if self._empty_upper is not None and self._empty_upper == self._stat_empty_upper():
            return self._begun  # nothing was written: the cost does not depend on the tree
        with self._store.batch() as batch:
            full = overlay_snapshot.snapshot(
                self._store,
                batch,
                base=self._begun.whole,
                upper=self._upper,
                report=report,
                limit=self.max_bytes,
                rules=lambda _: self._rules(),
                scanner=self._scanner(),
                view=self.path,
                unrecorded=self.ignored.layer,
            )
            return working_tree.divide(
                self._store,
                batch,
                full=full,
                directory=self.path,
                report=report,
                is_partial=True,
                earlier=working_tree.Earlier(base=self._begun, tracked_at_start=self._tracked),
            )

    def _stat_empty_upper(self) -> tuple[int, ...] | None:
        """Returns what every change of the upper directory changes; None where it is not empty."""
        upper_stat = self._upper.stat()
        if os.listdir(self._upper):
            return None
        return upper_stat.st_ctime_ns, upper_stat.st_mode, upper_stat.st_uid, upper_stat.st_gid

    def remove(self) -> None:
        """Unmounts and deletes it. A process that still works in it keeps its files, but for the
        ignored ones."""
        self.state = None
        self._base = None
        overlay_mount.unmount(self.path, lazy=True)
        rmtree.delete(self._folder)
        Target(self._store, self.path).forget()


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
    points = mounts.mounted_below(root.resolve() / "workspaces")
    for point in points:
        overlay_mount.unmount(point, lazy=True)
    return len(points)
