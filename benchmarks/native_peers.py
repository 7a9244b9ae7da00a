"""Trees that the kernel shows alone, as a peer of the other ways to show one (`mount_peers`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.mount_peers import Kernel, Native, Peer, SquashLow
from benchmarks.workspaces_peers import run
from casfs.checkpoints import checkpoint
from casfs.checkpoints.checkpoint import Checkpoint
from casfs.digest import TreeHash
from casfs.store.store import Store
from casfs.system import mounts
from casfs.trees.dated import DatedTree
from casfs.trees.recorded_state import RecordedState
from casfs.trees.snapshot import walker
from casfs.trees.snapshot.ignore import IgnoreRules
from casfs.workspaces import lifecycle, registry, strategies
from casfs.workspaces.registry import Workspace


class Copy(Native):
    name = "plain copy"


class Fuse(Kernel):
    name = "FUSE mount"


class Alone(Fuse):
    """Shown by the kernel from the store's image of the tree."""

    name = "native mount"

    @contextmanager
    def shown(self) -> Iterator[Path]:
        with Store.open(self.place) as store:
            made = checkpoint.latest(store, "b")
            assert made is not None
            with native(store, made.root, self.point, read_only=True):
                yield self.point


class Mkfs(Peer):
    """Files are in the image, uncompressed."""

    name = "mkfs.erofs"
    needs = ("mkfs.erofs",)

    def prepare(self) -> None:
        run("mkfs.erofs", self.place, self.source)

    @contextmanager
    def shown(self) -> Iterator[Path]:
        self.point.mkdir(exist_ok=True)
        mounts.mount(str(self.place), self.point, "erofs", mounts.MS_RDONLY)
        try:
            yield self.point
        finally:
            mounts.unmount(self.point)


PEERS: tuple[type[Peer], ...] = (Copy, Alone, Fuse, Mkfs, SquashLow)


def opened(
    store: Store, root: TreeHash, point: Path, *, read_only: bool, origin: Checkpoint | None = None
) -> Workspace:
    def none(root: DatedTree) -> Path:
        raise AssertionError("a native workspace asks for no mount")

    strategy = strategies.STRATEGIES[strategies.NATIVE]
    state = RecordedState(root)
    return lifecycle.open(store, state, point, strategy, none, origin=origin, read_only=read_only)


@contextmanager
def native(store: Store, root: TreeHash, point: Path, *, read_only: bool) -> Iterator[Workspace]:
    found = opened(store, root, point, read_only=read_only)
    try:
        yield found
    finally:
        lifecycle.close(store, registry.find(store, point), force=True)


def stored(store: Store, folder: Path) -> TreeHash:
    with store.batch() as batch:
        return walker.snapshot(batch, folder, IgnoreRules()).node.hash
