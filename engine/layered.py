"""A thread's workspace as an overlay over the mounted tree: a step costs what it changes.

    workspaces/<thread>/tree           what the agents see
    workspaces/<thread>/upper, work    what they changed since the last step

Every step starts with an empty upper over the tree of the step before, so that recording
one never reads what earlier steps wrote. Where mounting fails the tree is restored to the
same place, and recorded by reading it: a thread goes on, only slower.

The mounts are private to the daemon: what a killed one has left is unmounted by the next
(`clean`), whatever it was made for.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from casfs import kernel, scratch
from casfs.errors import CasfsError, Failed
from casfs.log import Log, silent
from casfs.store import Store
from casfs.trees import restore as restores
from casfs.workspaces import overlay, ways, workspace
from casfs.workspaces.ways import Layers
from engine.workspace import Workspace


class Layered(Workspace):
    def __init__(
        self, store: Store, folder: Path, trees: Callable[[str], Path], log: Log = silent
    ) -> None:
        """`trees`: where a mount of the store shows the tree of that root."""
        self._folder = folder.parent.resolve() / folder.name
        super().__init__(store, self._folder / "tree")
        self._trees = trees
        self._log = log
        self._base: str | None = None  # of the overlay, None without one

    @property
    def _upper(self) -> Path:
        return self._folder / "upper"

    def reset(self, root: str) -> None:
        """Make it hold the tree `root`, with an empty upper. Raises as `casfs.trees.restore`."""
        if not self.root == root == self._base:
            self.remove()
            try:
                self._mount(root)
                self._base = root
            except (CasfsError, OSError) as error:
                self._log("no overlay", workspace=str(self._folder), error=str(error))
                self.remove()
                super().reset(root)
        self.root = None

    def _mount(self, root: str) -> None:
        lower = self._trees(root)
        workspace.prepare(self._store, root, self._upper)
        self.path.mkdir()
        mount = ways.WAYS[ways.OVERLAY].mount
        assert mount is not None
        mount(Layers(lower, self._upper, self._upper.with_name("work"), self.path))

    def record(self) -> str:
        if self._base is None:
            return super().record()
        if not ways.is_mounted(self.path):
            raise Failed(f"the workspace {self.path} was unmounted by somebody")
        with self._store.batch() as batch:
            self.root = overlay.commit(self._store, batch, self._base, self._upper).hash
        return self.root

    def remove(self) -> None:
        """Unmount and delete it. A process that still stands in it keeps what it sees."""
        self.root = self._base = None
        ways.unmount(self.path, lazy=True)
        scratch.delete(self._folder)
        restores.forget(self._store, self.path)


def clean(root: Path) -> int:
    """Unmount whatever is mounted for threads of the store at `root`; returns how many.

    Raises Failed.
    """
    points = kernel.mounted_below(root.resolve() / "workspaces")
    for point in points:
        ways.unmount(point, lazy=True)
    return len(points)
