"""The native mounts over trees of a FUSE mount, in the kernel's mount table (`casfs.mount.mounter`
makes them)."""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path

from casfs.mount.registry import FOLDER
from casfs.native import mounted_trees
from casfs.system import mounts
from casfs.system.mounts import Mounted
from casfs.system.processes import start_time

PREFIX = "native-"


def mounted_over(fuse: Mounted) -> list[Mounted]:
    """Returns those over trees of a FUSE mount, the oldest first."""
    return [
        mount
        for mount in mounts.mounts()
        if mount.parent == fuse.id and mount.source.startswith(mounted_trees.PREFIX)
    ]


def unmount_over(fuse: Mounted, *, lazy: bool) -> Mounted | None:
    """Unmounts those over trees of a FUSE mount. Returns the first that is busy. Where the way to
    one leads to a name that can go, the FUSE mount is asked for it."""
    for mount in reversed(mounted_over(fuse)):
        try:
            mounts.unmount(mount.point, lazy=lazy)
        except OSError as error:
            if error.errno == errno.EBUSY:
                return mount
            # It went with its directory; or the FUSE mount is dead, and takes it along.
    return None


def work_folder(store_root: Path, pid: int) -> Path:
    """Returns where a mounter has an image mounted until that is over a tree's directory."""
    return store_root / FOLDER / f"{PREFIX}{pid}"


def clean(store_root: Path, pid: int) -> None:
    """Removes that folder of a mounter that has ended."""
    folder = work_folder(store_root, pid)
    with suppress(OSError):
        for point in mounts.mounted_below(folder):
            mounts.unmount(point, lazy=True)
        for path in folder.iterdir():
            path.rmdir()
        folder.rmdir()


def clean_abandoned(store_root: Path) -> None:
    """Removes the folders of mounters that were killed together with their supervisor."""
    for folder in (store_root / FOLDER).glob(f"{PREFIX}*"):
        with suppress(ValueError):
            pid = int(folder.name.removeprefix(PREFIX))
            if start_time(pid) is None:
                clean(store_root, pid)
