"""Mounts the native strategy: the kernel shows a tree from its image, without a process of ours.

The image (`casfs.native.images`) is mounted from its plain file, with no loop device and with the
packs that it names as its devices, and is a layer of an overlay over `objects/`, which is a
data-only layer:

    lowerdir=[CHANGES:]IMAGE[:UNRECORDED]::OBJECTS[::REMOTE], metacopy=on, redirect_dir=on
    [, upperdir, workdir]

REMOTE is there only where files of the tree are in a remote only: `.casfs/objects` of a FUSE mount
of the store, whose process lives as long as the overlay. Without it all but those files are read as
before, and those fail with ENOTCONN, until they are in `objects/` or the tree is mounted again.

Images are mounted in the folder of the workspace only until the overlay is mounted, which keeps
them by itself. By then a path may have lost its mount (a daemon that starts unmounts all below
`workspaces/`), so they are passed by descriptors of the mounts: an overlay over an empty directory
would be a tree with no files.

Devices are given by fsconfig(2): the options of mount(2) end after a page, some forty packs. An
image that was removed while it was mounted is not used, since gc may free ranges of its packs.

The kernel stacks two file systems and no more. The overlay is one; an image on a plain file
system counts in some kernels and not in others. So a container may or may not be able to
mount an overlay of its own over a native mount.

Linux 6.12 mounts images and devices from files, 6.5 knows data-only layers. Support is found by
trying (`unavailable`): where images can be mounted, a file of another kind is EINVAL. An image
must be on the store's file system, since some (tmpfs, overlayfs) cannot be mounted from.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path

from casfs.digest import is_hash
from casfs.errors import Failed, Invalid, NotFound
from casfs.native import images, object_protection
from casfs.native.erofs import devices
from casfs.native.image_tree import SHARD_LENGTH
from casfs.store.store import Store
from casfs.system import mounts
from casfs.system.files import os_errors
from casfs.trees.dated import DatedTree
from casfs.workspaces.overlay_mount import FLAGS, OverlayLayers

TYPE = "erofs"
REASONS = {
    errno.ENODEV: "this kernel has no EROFS",
    errno.ENOTBLK: "this kernel mounts no EROFS from a file, or not from this file system",
    errno.EPERM: "mounting is not permitted here",
    errno.EACCES: "mounting is not permitted here",
}


@cache
def unavailable(near: Path) -> str | None:
    """Returns why this machine or this user cannot mount images, None where it can. `near`: a
    file, not an image, on the file system of the store."""
    if os.geteuid() != 0:
        return "only root may mount an image"
    try:
        mounts.mount(str(near), near.parent, type=TYPE, flags=FLAGS | mounts.MS_RDONLY)
    except OSError as error:
        return REASONS.get(error.errno or 0)
    mounts.unmount(near.parent)  # it was an image after all
    return None


def image(store: Store, root: DatedTree, *, recheck: bool = False, verify: bool = False) -> Path:
    """Returns the image of a tree. `recheck`: looks at size and kind of its objects even if the
    image is there; `verify`: hashes them. Raises as `images.ensure`, but Failed for Invalid."""
    try:
        image_path = images.ensure(store, root, recheck=recheck)
        if verify:
            images.check(store, root, content=True)
        return image_path
    except Invalid as error:
        raise Failed(str(error)) from None


def mount(layers: OverlayLayers) -> None:
    """Mount an overlay whose `lower` is the tree's image. Raises NotFound (no such image), Failed:
    also where other users can write to the objects."""
    objects = images.objects(layers.lower)
    folder = layers.lower.parent.parent
    object_protection.check_owner(objects)
    if layers.unrecorded is not None:
        _check_unrecorded(layers.unrecorded)
    stack = [path for path in (layers.changes, layers.lower) if path is not None]
    with ExitStack() as mounted:
        lower: list[Path | None] = []
        for number, image in enumerate(stack):
            point = layers.work.with_name(f"lower-{number}")
            lower.append(mounted.enter_context(_mounted_image(image, point, folder)))
        values: dict[str, str | list[Path | None]] = {
            **{"metacopy": "on", "redirect_dir": "on", "index": "off", "xino": "off"},
            "lowerdir": [
                *lower,
                *([layers.unrecorded] if layers.unrecorded else []),
                *[None, objects],
                *([None, layers.remote] if layers.remote else []),
            ],
        }
        if not layers.read_only:
            values |= {"upperdir": [layers.upper], "workdir": [layers.work]}
        with os_errors(f"cannot mount an overlay over images at {layers.point}"):
            mounts.mount(
                layers.source,
                layers.point,
                type="overlay",
                flags=layers.flags,
                options=mounts.options(values),
            )


def _check_unrecorded(layer: Path) -> None:
    """Raises Failed where a path of the layer is that of an object: overlayfs would take it for the
    content of files of the image."""
    with os_errors(f"cannot read {layer}"), os.scandir(layer) as shards:
        for shard in shards:
            is_shard = len(shard.name) == SHARD_LENGTH and shard.is_dir(follow_symlinks=False)
            for name in os.listdir(shard.path) if is_shard else ():
                if is_hash(shard.name + name):
                    raise Failed(f"{shard.name}/{name} among ignored files is named as an object")


@contextmanager
def _mounted_image(image: Path, point: Path, folder: Path) -> Iterator[Path]:
    """Yields a path to the image's root that stays valid after any unmount.
    `folder`: of the store."""
    try:
        point.mkdir(exist_ok=True)
        fd = _mount_image(image, point, folder)
    except FileNotFoundError:
        raise NotFound(f"the image {image} or a pack that it needs has been removed") from None
    except OSError as error:
        raise Failed(f"cannot mount {image}: {error.strerror}") from None
    try:
        if not image.exists():
            raise NotFound(f"the image {image} has been removed")
        yield Path(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)
        with suppress(OSError):  # unmounted by another process
            mounts.unmount(point, lazy=True)
        with suppress(OSError):
            point.rmdir()


def _mount_image(image: Path, point: Path, folder: Path) -> int:
    """Returns a descriptor of the mount. Raises OSError, Failed, Corrupt."""
    with ExitStack() as opened:
        source = opened.enter_context(image.open("rb"))
        parameters = [(b"source", b"/proc/self/fd/%d" % source.fileno())]
        if needed := devices.read(source):
            folder_fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            opened.callback(os.close, folder_fd)
            for path in object_protection.check_devices(folder, needed):
                name = os.fsencode(path.relative_to(folder))
                parameters.append((b"device", b"/proc/self/fd/%d/%s" % (folder_fd, name)))
        return mounts.mount_with(
            TYPE, point, attributes=FLAGS | mounts.MS_RDONLY, parameters=parameters
        )
