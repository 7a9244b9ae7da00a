"""Native mounts over the trees of a FUSE mount that are walked, made by a process of their own.

    worker     a tree is walked: writes a line (`casfs.mount.walked_trees`) to a pipe that does not
               block
    mounter    makes the tree's image (`casfs.native.images`), and mounts it over the tree's
               directory: from then on the kernel answers, and no request reaches the worker

A tree is walked where a directory below its root is listed (`casfs.fuse.session`). It is mounted
when it is not in use any more: a walk that goes up by `..` would cross into the mount, where the
device and inode numbers are others, and fts(3) ends a walk for that.

The kernel drops a mount with the directory that it is over: when the name is removed, when a
content was purged, and when the FUSE mount is unmounted lazily. The mounter unmounts what the store
may not show any more, and all at its end, which comes when the supervisor and the worker, who hold
the other end of the pipe, have ended. Where all three are killed at once, unmounting the dead FUSE
mount lazily takes along what is mounted over it.

At most MAX_MOUNTED are mounted: the oldest that is not in use goes first, but one that was used
since room was needed last gets a second chance (umount2(2), MNT_EXPIRE).

gc keeps what is mounted (`casfs.native.mounted_trees`), and what was touched since it began, as a
tree is before it is mounted.
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
from casfs.mount import native_mounts, users
from casfs.mount.walked_trees import WalkedTree
from casfs.native import images, mounted_trees, object_protection
from casfs.store.store import FORMAT_FILE, Store
from casfs.system import mounts
from casfs.system.files import closing_fd
from casfs.system.log import Log
from casfs.system.mounts import Mounted
from casfs.trees.dated import DatedTree
from casfs.workspaces import image_mount
from casfs.workspaces.overlay_mount import OverlayLayers

MAX_MOUNTED = 32
MAX_WAITING = 4  # trees
WAIT_S = 60.0  # until a tree that stays in use is dropped; its next walk reports it again
MAX_FAILED = 1024  # trees that are remembered as such
RETRY_S = 60.0  # until a tree that could not be mounted is tried again
CHECK_INTERVAL_S = 0.5


@dataclass(frozen=True, slots=True)
class NativeTree:
    """The image of a tree that is mounted; `is_new`: it was made for that."""

    image: Path
    is_new: bool


def unavailable(store: Store) -> str | None:
    """Returns why trees of this store are not mounted natively; None if they are."""
    if isinstance(store.backend, SharedByMachines):
        return "the store is shared by machines"
    try:
        object_protection.check_owner(store.root / "objects")
    except CasfsError as error:
        return str(error)
    return image_mount.unavailable(store.root / FORMAT_FILE)


class Mounter:
    """Mounts trees of one store over their directories in a FUSE mount of it."""

    def __init__(self, store: Store, fuse: Mounted, log: Log) -> None:
        self._store = store
        self._fuse = fuse
        self._log = log
        self._folder = native_mounts.work_folder(store.root, os.getpid())
        self._waiting: dict[str, tuple[WalkedTree, float]] = {}  # by path, the newest last
        self._mounted: dict[Path, NativeTree] = {}
        self._failed: dict[DatedTree, float] = {}  # when
        self._rest = b""  # of the pipe, a line that has no end yet
        self._purged = store.purged.replaced()

    def run(self, pipe: int) -> None:
        """Mounts what a pipe that does not block reports, until its other end is closed."""
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        while self._receive(pipe):
            self._check_mounted()
            walk = self._next()
            if walk is not None:
                self._mount(walk)
            else:
                is_idle = not self._mounted and not self._waiting
                poll.poll(None if is_idle else CHECK_INTERVAL_S * 1000)

    def _receive(self, pipe: int) -> bool:
        """Reads what the pipe has; returns False at its end."""
        try:
            while data := os.read(pipe, 1 << 16):
                *lines, self._rest = (self._rest + data).split(b"\n")
                for walk in map(WalkedTree.parse, lines):
                    self._waiting.pop(walk.path, None)
                    self._waiting[walk.path] = walk, time.monotonic()
                while len(self._waiting) > MAX_WAITING:
                    del self._waiting[next(iter(self._waiting))]
        except BlockingIOError:
            return True
        return False

    def _next(self) -> WalkedTree | None:
        """Returns the newest walk of a tree that is not in use."""
        oldest = time.monotonic() - WAIT_S
        self._waiting = {
            path: (walk, reported_at)
            for path, (walk, reported_at) in self._waiting.items()
            if reported_at > oldest and not self._has_failed(walk.root)
        }
        paths = {self._point(walk): walk for walk, _ in self._waiting.values()}
        used = users.trees_in_use(paths, self._fuse.device) if paths else set()
        newest = next((point for point in reversed(paths) if point not in used), None)
        return None if newest is None else self._waiting.pop(paths[newest].path)[0]

    def _point(self, walk: WalkedTree) -> Path:
        return self._fuse.point / walk.path

    def _has_failed(self, root: DatedTree) -> bool:
        return time.monotonic() - self._failed.get(root, -RETRY_S) < RETRY_S

    def _note_failure(self, root: DatedTree) -> None:
        if len(self._failed) >= MAX_FAILED:
            self._failed.clear()
        self._failed[root] = time.monotonic()

    def _mount(self, walk: WalkedTree) -> None:
        try:
            # The directory is open only while it is mounted over: one that is open keeps the FUSE
            # mount from being unmounted, and making an image may take long.
            if not self._is_there(walk):
                return
            native = self._native_tree(walk.root) if self._make_room() else None
            if native is None:
                self._note_failure(walk.root)
            elif not self._is_in_use(walk):
                self._mount_over(walk, native)
        except (CasfsError, OSError) as error:
            self._note_failure(walk.root)
            self._log("not mounted natively", path=self._point(walk), error=str(error))

    def _is_in_use(self, walk: WalkedTree) -> bool:
        return bool(users.trees_in_use([self._point(walk)], self._fuse.device))

    def _native_tree(self, root: DatedTree) -> NativeTree | None:
        """Returns the image of a tree; None where files are in a remote only, which making it would
        fetch. Raises CasfsError."""
        if next(iter(in_remote(self._store.blobs)), None) is not None:
            return None
        self._touch(root)
        before = images.of_tree(self._store, root)
        image = image_mount.image(self._store, root, recheck=True)
        return None if images.needs_remote(image) else NativeTree(image, is_new=before != image)

    def _touch(self, root: DatedTree) -> None:
        """Has a gc that runs keep the tree, though it has looked at the mounts already. Raises
        NotFound."""
        hashes = {hash for hash in root if hash is not None}
        local = self._store.blobs.local_among(hashes)
        self._store.backend.publish([], require=hashes, local=local)

    def _is_there(self, walk: WalkedTree) -> bool:
        with closing_fd(self._open(walk)) as fd:
            return self._is_tree(fd, walk)

    def _open(self, walk: WalkedTree) -> int:
        return os.open(self._point(walk), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def _is_tree(self, fd: int, walk: WalkedTree) -> bool:
        """Returns False where the name is another tree by now, the tree is mounted already, or
        another FUSE mount is there."""
        info = os.fstat(fd)
        device = mounts.device_name(info.st_dev)
        return (info.st_ino, device) == (walk.ino, self._fuse.device)

    def _mount_over(self, walk: WalkedTree, native: NativeTree) -> None:
        """Raises NotFound, Failed, OSError."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        point = self._point(walk)
        with closing_fd(self._open(walk)) as fd:
            if not self._is_tree(fd, walk):
                return
            image_mount.mount(
                OverlayLayers(
                    lower=native.image,
                    upper=self._folder / "upper",
                    work=self._folder / "work",
                    point=Path(f"/proc/self/fd/{fd}"),
                    read_only=True,
                    source=mounted_trees.source(self._store.root, walk.root),
                )
            )
        self._mounted[point] = native
        # A process may have entered it between the last look and the mount.
        if self._is_in_use(walk):
            self._unmount(point)

    def _make_room(self) -> bool:
        """Unmounts one where MAX_MOUNTED are mounted; returns False where all are in use."""
        mounted = native_mounts.mounted_over(self._fuse)
        if len(mounted) < MAX_MOUNTED:
            return True
        # In the first round one that was used lately only loses its mark.
        for mount in [*mounted, *mounted]:
            with suppress(OSError):
                mounts.expire(mount.point)
                # Walking many trees must not leave an image of each. A mounted one may go, too.
                native = self._mounted.get(mount.point)
                if native is not None and native.is_new:
                    native.image.unlink(missing_ok=True)
                return True
        return False

    def _unmount(self, point: Path) -> None:
        with suppress(OSError):
            mounts.unmount(point, lazy=True)

    def _check_mounted(self) -> None:
        """Unmounts what the store may not show any more; forgets what others have unmounted."""
        points = {mount.point for mount in native_mounts.mounted_over(self._fuse)}
        try:
            purged = self._store.purged.replaced()
        except CasfsError as error:
            self._log("native mounts not checked", mount=self._fuse.point, error=str(error))
            return
        for point, native in list(self._mounted.items()):
            if point not in points:
                del self._mounted[point]
            # gc removes the image of a tree that is gone.
            elif purged is not self._purged or not native.image.exists():
                self._unmount(point)
        if purged is not self._purged:
            self._purged = purged
            self._failed.clear()  # an image that was made meanwhile may have failed for that


def run(store_root: Path, device: str, pipe: int, log: Log) -> None:
    """The mounter of the FUSE mount on `device`, until the other end of `pipe` is closed. Raises
    CasfsError."""
    fuse = next((mount for mount in mounts.mounts() if mount.device == device), None)
    if fuse is None:  # unmounted at once
        return
    with ExitStack() as stack:
        stack.callback(native_mounts.clean, store_root, os.getpid())
        native_mounts.unmount_over(fuse, lazy=True)  # what one that was killed has left
        stack.callback(native_mounts.unmount_over, fuse, lazy=True)
        select.select([pipe], [], [])  # the store is opened when a tree is walked
        store = stack.enter_context(Store.open(store_root))
        if (reason := unavailable(store)) is not None:
            log("no native mounts", mount=fuse.point, reason=reason)
            return
        native_mounts.clean_abandoned(store_root)
        Mounter(store, fuse, log).run(pipe)
