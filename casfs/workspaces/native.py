"""The native way: the kernel shows a tree from its image, with no process of ours behind it.

The image (`casfs.native.images`) is mounted from its plain file by mount(2), with no loop device,
and stands in an overlay over `objects/`, which only gives data:

    lowerdir=[CHANGES:]IMAGE::OBJECTS, metacopy=on, redirect_dir=on [, upperdir, workdir]

Images are mounted in the folder of the workspace for as long as it takes to mount the
overlay, which has its own hold on them. By then a path may have lost what it showed (a
daemon that starts unmounts what is below `workspaces/`), so they are named by descriptors
that have been looked at: an overlay over an empty directory would be a tree with no files.

The kernel stacks two file systems and no more. The overlay is one; an image on a plain file
system counts in some kernels and not in others. So a container may or may not be able to
lay an overlay of its own over a native mount.

Linux 6.12 mounts images from files, 6.5 knows layers that only give data. Trying is how one
finds out (`missing`): a file that is no image is EINVAL where an image would do. It must be
on the store's file system, since some (tmpfs, overlayfs) cannot be mounted from.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path

from casfs.errors import Failed, Invalid, NotFound
from casfs.native import images, verity
from casfs.store import Store
from casfs.system import mounts
from casfs.workspaces.layers import FLAGS, Layers

TYPE = "erofs"
WHY = {
    errno.ENODEV: "this kernel has no EROFS",
    errno.ENOTBLK: "this kernel mounts no EROFS from a file, or not from this file system",
    errno.EPERM: "mounting is not permitted here",
    errno.EACCES: "mounting is not permitted here",
}


@cache
def missing(near: Path) -> str | None:
    """Why this machine or this user cannot go this way, None when it can. `near`: a file, no
    image, on the file system of the store."""
    if os.geteuid() != 0:
        return "only root may mount an image"
    try:
        mounts.mount(str(near), near.parent, TYPE, FLAGS | mounts.MS_RDONLY)
    except OSError as error:
        return WHY.get(error.errno or 0)
    mounts.unmount(near.parent)  # it was an image after all
    return None


def image(store: Store, root: str) -> Path:
    """The image of a tree. Raises as `images.ensure`, but Failed where there can be none."""
    try:
        return images.ensure(store, root)
    except Invalid as error:
        raise Failed(str(error)) from None


def mount(layers: Layers) -> None:
    """`layers.lower` is the tree's image. Raises NotFound (no such image), Failed: also where
    the objects are not safe from other users."""
    objects = images.objects(layers.lower)
    verity.check(objects)
    stack = [path for path in (layers.changes, layers.lower) if path is not None]
    with ExitStack() as held:
        lower: list[Path | None] = []
        for number, image in enumerate(stack):
            spot = layers.work.with_name(f"lower-{number}")
            lower.append(held.enter_context(_mounted(image, spot)))
        values: dict[str, str | list[Path | None]] = {
            **{"metacopy": "on", "redirect_dir": "on", "index": "off", "xino": "off"},
            "lowerdir": [*lower, None, objects],
        }
        flags = FLAGS | mounts.MS_RDONLY
        if not layers.read_only:
            flags = FLAGS
            values |= {"upperdir": [layers.upper], "workdir": [layers.work]}
        try:
            mounts.mount(layers.source, layers.point, "overlay", flags, mounts.options(values))
        except OSError as error:
            raise Failed(
                f"cannot mount an overlay over images at {layers.point}: {error.strerror}"
            ) from None


@contextmanager
def _mounted(image: Path, spot: Path) -> Iterator[Path]:
    """A path to the image's root that means nothing else as long as the block lasts."""
    try:
        spot.mkdir(exist_ok=True)
        mounts.mount(str(image), spot, TYPE, FLAGS | mounts.MS_RDONLY)
    except FileNotFoundError:
        raise NotFound(f"the image {image} has been removed") from None
    except OSError as error:
        raise Failed(f"cannot mount {image}: {error.strerror}") from None
    try:
        fd = os.open(spot, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if os.fstat(fd).st_dev == spot.parent.stat().st_dev:
                raise Failed(f"{image} was unmounted by somebody")
            yield Path(f"/proc/self/fd/{fd}")
        finally:
            os.close(fd)
    finally:
        with suppress(OSError):  # unmounted by somebody
            mounts.unmount(spot, lazy=True)
        with suppress(OSError):
            spot.rmdir()
