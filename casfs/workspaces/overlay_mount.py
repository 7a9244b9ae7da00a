"""Mounts overlays: by the kernel, or by fuse-overlayfs. Unmounts them.

Options of the kernel's overlay, each for a reason:

    redirect_dir=on, metacopy=on   renaming a directory and chmod of a large file cost one entry
                   in the upper, and `casfs.workspaces.overlay_snapshot` understands them
    index=off      an index is bound to file handles, and ours are another mount's tomorrow
    xino=off       inode numbers need not be unique beyond the overlay
    nosuid, nodev  a tree from elsewhere brings no privileges
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from casfs.errors import Failed, Refused
from casfs.system import mounts, processes
from casfs.system.files import os_errors

if TYPE_CHECKING:
    from subprocess import CompletedProcess

SOURCE = "casfs"  # of an overlay in the table of mounts, where its owner does not matter
FLAGS = mounts.MS_NOSUID | mounts.MS_NODEV
FUSE_OVERLAYFS = "fuse-overlayfs"
FUSERMOUNT = "fusermount3"
# Opened by an agent, the mount does not end with its step.
OUTLIVING = ("env", "-u", processes.RUN_VARIABLE)


@dataclass(frozen=True, slots=True)
class OverlayLayers:
    """The layers of one workspace. `lower`: the tree in a mount, or its image; `point`: the mount
    point; `changes`: an image of the differences between the tree and the image in `lower`;
    `remote`: the objects of remotes in a mount, where an image needs them; `unrecorded`: a
    directory of files that are seen but in no tree, below all others: of the kernel's overlays
    that can be written to alone."""

    lower: Path
    upper: Path
    work: Path
    point: Path
    read_only: bool = False
    changes: Path | None = None
    remote: Path | None = None
    unrecorded: Path | None = None
    source: str = SOURCE

    @property
    def flags(self) -> int:
        return FLAGS | (mounts.MS_RDONLY if self.read_only else 0)


def mount_overlay(layers: OverlayLayers) -> None:
    """Mount by the kernel. A read-only overlay is the tree over an empty directory: the kernel
    wants two layers. Raises Failed."""
    values: dict[str, str | Sequence[Path]] = {"index": "off", "xino": "off"}
    if layers.read_only:
        values |= {"lowerdir": [layers.lower, layers.upper]}
    else:
        below = [layers.lower, layers.unrecorded] if layers.unrecorded else [layers.lower]
        values |= {"lowerdir": below, "upperdir": [layers.upper]}
        values |= {"workdir": [layers.work], "redirect_dir": "on", "metacopy": "on"}
    with os_errors(f"cannot mount an overlay at {layers.point}"):
        mounts.mount(
            layers.source,
            layers.point,
            type="overlay",
            flags=layers.flags,
            options=mounts.options(values),
        )


def mount_fuse_overlayfs(layers: OverlayLayers) -> None:
    """Relative paths need no escaping. Without `writeback` the upper is always up to date.

    Raises Failed.
    """
    if set(str(layers.lower)) & set(":,\\"):
        raise Failed(
            f"{FUSE_OVERLAYFS} cannot use the path {layers.lower}; mount the store elsewhere"
        )
    upper = f",upperdir={layers.upper.name},workdir={layers.work.name}"
    where = f"lowerdir={layers.lower}{'' if layers.read_only else upper}"
    options = ["-o", f"{where},writeback=0,nosuid,nodev"]  # it mounts with suid for root
    if layers.read_only:
        options += ["-o", "ro"]
    command = [*OUTLIVING, FUSE_OVERLAYFS, *options, str(layers.point)]
    processes.remove_mark()
    done = _run(command, layers.upper.parent)
    if done.returncode != 0:
        reason = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise Failed(f"cannot mount at {layers.point}: {reason}")


def forgets_deletions() -> bool:
    """Returns whether the fuse-overlayfs here is one that shows a deleted file again, as release
    1.10 does after `mv new old; mv old new`: what a build deletes would be there. Raises Failed."""
    from tempfile import TemporaryDirectory  # most commands do without it

    with os_errors("cannot try fuse-overlayfs"), TemporaryDirectory() as folder:
        top = Path(folder)
        lower, upper, work, point = (top / name for name in ("lower", "upper", "work", "point"))
        for directory in (lower, upper, work, point):
            directory.mkdir()
        (lower / "old").write_text("of the tree")
        mount_fuse_overlayfs(OverlayLayers(lower, upper, work, point))
        try:
            (point / "new").write_text("")
            (point / "new").rename(point / "old")
            (point / "old").rename(point / "new")
            return (point / "old").exists()
        finally:
            unmount(point, lazy=True)


def unmount(point: Path, *, lazy: bool = False) -> None:
    """Unmount a workspace, or do nothing where it is not mounted. Raises Refused (busy), Failed."""
    if not is_mounted(point):
        return
    try:
        if os.geteuid() == 0:
            mounts.unmount(point, lazy=lazy)
        else:
            _fusermount(point, lazy)
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise Refused(f"{point} is busy: leave it and end the programs in it") from None
        raise Failed(f"cannot unmount {point}: {error.strerror}") from None


def is_mounted(point: Path) -> bool:
    """Reads the table of mounts for an absolute path, since a dead mount does not answer."""
    return mounts.mounted_at(point) is not None


def _fusermount(point: Path, lazy: bool) -> None:
    done = _run([FUSERMOUNT, "-u", *["-z"] * lazy, str(point)])
    if done.returncode != 0:
        busy = "busy" in done.stderr.lower()
        raise OSError(errno.EBUSY if busy else errno.EIO, " ".join(done.stderr.split()))


def _run(command: list[str], cwd: Path = Path("/")) -> CompletedProcess[str]:
    import subprocess

    with os_errors(f"cannot run {command[0]}"):
        return subprocess.run(
            command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
