"""Native mounts over the trees of a FUSE mount that are walked, made by a process of their own.

    worker     a tree is walked: a line (`casfs.mount.walked_trees`) into a pipe, nobody waits
    mounter    makes the tree's image (`casfs.native.images`), and mounts it over the tree's
               directory: from then on the kernel answers, and no request reaches the worker

A tree is walked where a directory below its root is listed (`casfs.fuse.session`). What was open
before goes on through FUSE.

The kernel drops a mount with the directory that it is over: when the name is removed, when a
content was purged, and when the FUSE mount is unmounted lazily. The mounter unmounts what the store
may not show any more, and all at its end, which comes when the supervisor and the worker, who hold
the other end of the pipe, have ended. Where all three are killed at once, unmounting the dead FUSE
mount takes along what is mounted over it.

At most MAX_MOUNTED are mounted: the oldest that is not in use goes first, but one that was used
since room was needed last gets a second chance (umount2(2), MNT_EXPIRE).

gc may free what no head keeps, and in place of that an image shows zeros. So the trees that are
mounted are touched each TOUCH_INTERVAL_S, which is short beside gc's time of grace.
"""

from __future__ import annotations

import os
import select
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from casfs.backend.capabilities import SharedByMachines
from casfs.backend.derived import in_remote
from casfs.errors import CasfsError
from casfs.mount import native_mounts, registry
from casfs.mount.walked_trees import WalkedTree
from casfs.store.store import FORMAT_FILE, Store
from casfs.system import mounts
from casfs.system.files import closing_fd
from casfs.system.log import Log
from casfs.system.processes import start_time
from casfs.trees.dated import DatedTree
from casfs.workspaces import image_mount
from casfs.workspaces.overlay_mount import OverlayLayers

MAX_MOUNTED = 32
MAX_WAITING = 4  # walks that are remembered while an image is made
MAX_FAILED = 1024  # trees that are remembered as such
RETRY_S = 60.0  # until a tree that could not be mounted is tried again
CHECK_INTERVAL_S = 0.1
TOUCH_INTERVAL_S = 3600.0
FOLDER_PREFIX = "native-"


@dataclass(frozen=True, slots=True)
class NativeTree:
    """A tree that is mounted, and its image."""

    root: DatedTree
    image: Path


def unavailable(store: Store) -> str | None:
    """Returns why trees of this store are not mounted natively; None if they are."""
    if isinstance(store.backend, SharedByMachines):
        return "the store is shared by machines"
    if next(iter(in_remote(store.blobs)), None) is not None:
        return "some files are in a remote only"  # making an image would fetch them
    return image_mount.unavailable(store.root / FORMAT_FILE)


class Mounter:
    """Mounts trees of one store over their directories in its FUSE mount at `point`."""

    def __init__(self, store: Store, point: Path, log: Log) -> None:
        self._store = store
        self._point = point
        self._log = log
        self._folder = store.root / registry.FOLDER / f"{FOLDER_PREFIX}{os.getpid()}"
        self._waiting: dict[str, WalkedTree] = {}  # by path, the newest last
        self._mounted: dict[Path, NativeTree] = {}
        self._failed: dict[DatedTree, float] = {}  # when
        self._rest = b""  # of the pipe, a line that has no end yet
        self._purged = store.purged.replaced()
        self._touched_at = time.monotonic()

    def run(self, pipe: int) -> None:
        """Mounts what is told by a pipe that does not block, until its other end is closed."""
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        while self._receive(pipe):
            self._drop_ended()
            if self._waiting:
                self._mount(self._waiting.popitem()[1])
            else:
                poll.poll(CHECK_INTERVAL_S * 1000 if self._mounted else None)

    def _receive(self, pipe: int) -> bool:
        """Reads what has been told; returns False at the end."""
        try:
            while data := os.read(pipe, 1 << 16):
                *lines, self._rest = (self._rest + data).split(b"\n")
                for walk in map(WalkedTree.parse, lines):
                    self._waiting.pop(walk.path, None)
                    self._waiting[walk.path] = walk
                while len(self._waiting) > MAX_WAITING:
                    del self._waiting[next(iter(self._waiting))]
        except BlockingIOError:
            return True
        return False

    def _mount(self, walk: WalkedTree) -> None:
        point = self._point / walk.path
        if time.monotonic() - self._failed.get(walk.root, -RETRY_S) < RETRY_S:
            return
        try:
            with closing_fd(fd := os.open(point, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)):
                # The name may be another tree by now; or the tree is mounted already.
                if os.fstat(fd).st_ino != walk.ino:
                    return
                self._touch([walk.root])
                image = image_mount.image(self._store, walk.root, recheck=True)
                if self._make_room():
                    self._mount_over(fd, image)
                    self._mounted[point] = NativeTree(walk.root, image)
        except (CasfsError, OSError) as error:
            if len(self._failed) >= MAX_FAILED:
                self._failed.clear()
            self._failed[walk.root] = time.monotonic()
            self._log("not mounted natively", path=point, error=str(error))

    def _mount_over(self, directory: int, image: Path) -> None:
        """Raises NotFound, Failed, OSError."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        image_mount.mount(
            OverlayLayers(
                lower=image,
                upper=self._folder / "upper",
                work=self._folder / "work",
                point=Path(f"/proc/self/fd/{directory}"),
                read_only=True,
                source=native_mounts.SOURCE,
            )
        )

    def _make_room(self) -> bool:
        """Unmounts one where MAX_MOUNTED are mounted; returns False where all are in use."""
        mounted = native_mounts.mounted_below(self._point)
        if len(mounted) < MAX_MOUNTED:
            return True
        # In the first round one that was used lately only loses its mark.
        for mount in [*mounted, *mounted]:
            with suppress(OSError):
                mounts.expire(mount.point)
                return True
        return False

    def _drop_ended(self) -> None:
        """Unmounts what the store may not show any more; forgets what others have unmounted."""
        points = {mount.point for mount in native_mounts.mounted_below(self._point)}
        try:
            purged = self._store.purged.replaced()
            for point, native in list(self._mounted.items()):
                if point not in points:
                    del self._mounted[point]
                # gc removes the image of a tree that is gone
                elif purged is not self._purged or not native.image.exists():
                    with suppress(OSError):
                        mounts.unmount(point, lazy=True)
            if purged is not self._purged:
                self._purged = purged
                self._failed.clear()  # an image that was made meanwhile may have failed for that
            if time.monotonic() - self._touched_at > TOUCH_INTERVAL_S:
                self._touched_at = time.monotonic()
                self._touch([native.root for native in self._mounted.values()])
        except CasfsError as error:
            self._log("native mounts not checked", mount=self._point, error=str(error))

    def _touch(self, roots: list[DatedTree]) -> None:
        """Has gc keep trees for its time of grace. Raises NotFound."""
        backend = self._store.backend
        hashes = {hash for root in roots for hash in root if hash is not None}
        backend.publish([], require=hashes, local=backend.blobs.local_among(hashes))


def run(store_root: Path, point: Path, pipe: int, log: Log) -> None:
    """The mounter of the FUSE mount at `point`, until the other end of `pipe` is closed. Raises
    CasfsError."""
    with ExitStack() as stack:
        _clean(store_root, point)
        stack.callback(_clean, store_root, point)
        select.select([pipe], [], [])  # the store is opened when a tree is walked
        store = stack.enter_context(Store.open(store_root))
        if (reason := unavailable(store)) is not None:
            log("no native mounts", mount=point, reason=reason)
            return
        Mounter(store, point, log).run(pipe)


def _clean(store_root: Path, point: Path) -> None:
    """Unmounts what is mounted over trees; also what a mounter that was killed has left."""
    native_mounts.unmount_below(point, lazy=True)
    for folder in (store_root / registry.FOLDER).glob(f"{FOLDER_PREFIX}*"):
        pid = int(folder.name.removeprefix(FOLDER_PREFIX))
        if pid == os.getpid() or start_time(pid) is None:
            for image_point in mounts.mounted_below(folder):
                with suppress(OSError):
                    mounts.unmount(image_point, lazy=True)
            with suppress(OSError):
                for path in folder.iterdir():
                    path.rmdir()
                folder.rmdir()
