"""The native mounts over trees of a FUSE mount, in the kernel's mount table (`casfs.mount.mounter`
makes them)."""

from __future__ import annotations

import errno
from pathlib import Path

from casfs.system import mounts

SOURCE = "casfs-native"


def mounted_below(point: Path) -> list[mounts.Mounted]:
    """Returns those over trees of the FUSE mount at `point`, the oldest first."""
    return [
        mount
        for mount in mounts.mounts()
        if mount.source == SOURCE and point in mount.point.parents
    ]


def unmount_below(point: Path, *, lazy: bool) -> mounts.Mounted | None:
    """Unmounts those over trees of the FUSE mount at `point`. Returns the first that is busy."""
    for mount in reversed(mounted_below(point)):
        try:
            mounts.unmount(mount.point, lazy=lazy)
        except OSError as error:
            if error.errno == errno.EBUSY:
                return mount
            # It went with its directory, or the FUSE mount is dead and takes it along.
    return None
