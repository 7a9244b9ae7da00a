"""The ways of making a tree a writable directory. Which one it was does not show in the
directory; it shows in what opening it costs, and in who can see it.

    native           the kernel's overlayfs over the tree's image and the objects, with no process
                     of ours behind it (`casfs.workspaces.native`); root alone may mount it
    overlay          the kernel's overlayfs over the tree in a FUSE mount; root alone as well
    namespace        the kernel's overlayfs in a user namespace: seen by nobody but the command
                     that runs in there (`casfs workspace exec`)
    fuse-overlayfs   an overlay in user space, seen by all; after the kernel's, since its
                     release 1.10 can forget a deletion: after `mv new old; mv old new` it shows
                     the tree's `old` again. What it shows is committed, wrong as it is
    copy             no mount at all: the tree is restored, and recorded by reading it

A way gets `Layers`: the tree in a mount or its image, the upper and work directories, the
point. Upper and work are on one file system and never within the lower; the layers outlive
the mount, so a workspace can be mounted again after a crash.

Options of the kernel's overlay, each for a reason:

    redirect_dir=on, metacopy=on   renaming a directory and chmod of a large file cost one entry
                   in the upper, and `casfs.workspaces.overlay` understands them. In a user
                   namespace (`userxattr`) the kernel allows neither: there mv copies, as it
                   does across file systems
    index=off      an index is bound to file handles, and ours are another mount's tomorrow
    xino=off       nobody needs inode numbers that are unique beyond the overlay
    nosuid, nodev  a tree from elsewhere brings no powers
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from casfs.errors import Failed, NotFound, Refused
from casfs.store import FORMAT_FILE, Store
from casfs.system import mounts, processes
from casfs.workspaces import native, overlay
from casfs.workspaces.layers import FLAGS, Layers
from casfs.workspaces.overlay import Marks

NATIVE, OVERLAY, NAMESPACE = "native", "overlay", "namespace"
FUSE, COPY = "fuse-overlayfs", "copy"
TOOL, HELPER = "fuse-overlayfs", "fusermount3"
OUTLIVING = ("env", "-u", processes.TOKEN)  # opened by an agent, it does not end with its step
MAX_NAMESPACES = Path("/proc/sys/user/max_user_namespaces")
HERE = Path(__file__)
ANY_FUSE = "fuse"  # whichever overlay over a FUSE mount will do
Trees = Callable[[str], Path]  # where a mount of the store shows the tree of that root


@dataclass(frozen=True, slots=True)
class Way:
    """`lacks` says why this machine or this user cannot go it, None when it can, where a store
    has that file; `mount` is None where there is nothing to mount for all to see."""

    name: str
    lacks: Callable[[Path], str | None]
    marks: Marks = overlay.TRUSTED
    mount: Callable[[Layers], None] | None = None

    def missing(self, near: Path = HERE) -> str | None:
        return self.lacks(near)

    @property
    def layered(self) -> bool:
        """Has it an upper?"""
        return self.name != COPY

    @property
    def native(self) -> bool:
        """Does it stand on an image, and not in a mount of the store?"""
        return self.name == NATIVE


def choices(name: str | None, store: Store) -> list[Way]:
    """The ways of that name (`fuse`: overlays over a FUSE mount), or all, that are open here; the
    best one first. Raises Refused where none is."""
    near = HERE if store.root is None else store.root / FORMAT_FILE
    asked = [way for way in WAYS.values() if name in (None, way.name) or _is_any_fuse(name, way)]
    found = [way for way in asked if way.missing(near) is None]
    if not found:
        reasons = "; ".join(f"{way.name}: {way.missing(near)}" for way in asked)
        raise Refused(f"no workspace by {name} here: {reasons}")
    return found


def _is_any_fuse(name: str | None, way: Way) -> bool:
    return name == ANY_FUSE and way.layered and not way.native


def lowers(store: Store, way: Way, trees: Trees) -> Trees:
    """What the way needs of a tree: its image, or where a mount shows it."""
    return partial(native.image, store) if way.native else trees


def mount(way: Way, layers: Callable[[], Layers]) -> None:
    """Mount for all to see. Asks twice for layers where gc has taken an image away meanwhile.

    Raises Failed and what `layers` raises.
    """
    assert way.mount is not None
    first = layers()
    try:
        way.mount(first)
    except NotFound:
        way.mount(layers())


def unmount(point: Path, *, lazy: bool = False) -> None:
    """End what a way has mounted; nothing where nothing is. Raises Refused (busy), Failed."""
    if not is_mounted(point):
        return
    try:
        if os.geteuid() == 0:
            mounts.unmount(point, lazy=lazy)
        else:
            _fusermount(point, lazy)
    except OSError as error:
        if error.errno == errno.EBUSY:
            raise Refused(f"{point} is busy: leave it and end what runs in there") from None
        raise Failed(f"cannot unmount {point}: {error.strerror}") from None


def is_mounted(point: Path) -> bool:
    """Does something cover this absolute path? Asks the table: a dead mount answers nothing."""
    return mounts.mounted_at(point) is not None


def _fusermount(point: Path, lazy: bool) -> None:
    done = _run([HELPER, "-u", *["-z"] * lazy, str(point)])
    if done.returncode != 0:
        busy = "busy" in done.stderr.lower()
        raise OSError(errno.EBUSY if busy else errno.EIO, " ".join(done.stderr.split()))


# -- the ways -----------------------------------------------------------------------------


def _no_overlay() -> str | None:
    return None if os.geteuid() == 0 else "only root may mount an overlay for all to see"


def _mount_overlay(layers: Layers) -> None:
    """Read-only is an overlay too, of the tree over an empty directory: there must be two."""
    flags = FLAGS | (mounts.MS_RDONLY if layers.read_only else 0)
    _overlay(layers, flags, redirect_dir="on", metacopy="on")


def _overlay(layers: Layers, flags: int, **more: str) -> None:
    values: dict[str, str | Sequence[Path]] = {"index": "off", "xino": "off"}
    if layers.read_only:
        values |= {"lowerdir": [layers.lower, layers.upper]}
    else:
        values |= {"lowerdir": [layers.lower], "upperdir": [layers.upper]}
        values |= {"workdir": [layers.work], **more}
    try:
        mounts.mount(layers.source, layers.point, "overlay", flags, mounts.options(values))
    except OSError as error:
        raise Failed(f"cannot mount an overlay at {layers.point}: {error.strerror}") from None


def _no_fuse() -> str | None:
    if shutil.which(TOOL) is None:
        return f"no {TOOL}; install the package of that name"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "no access to /dev/fuse"
    return None


def _mount_fuse(layers: Layers) -> None:
    """Relative paths need no escaping. Without `writeback` the upper is always up to date."""
    if set(str(layers.lower)) & set(":,\\"):
        raise Failed(f"{TOOL} cannot use the path {layers.lower}; mount the store elsewhere")
    upper = f",upperdir={layers.upper.name},workdir={layers.work.name}"
    where = f"lowerdir={layers.lower}{'' if layers.read_only else upper}"
    options = ["-o", f"{where},writeback=0"]
    if layers.read_only:
        options += ["-o", "ro"]
    command = [*OUTLIVING, TOOL, *options, str(layers.point)]
    done = _run(command, layers.upper.parent)
    if done.returncode != 0:
        reason = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise Failed(f"cannot mount at {layers.point}: {reason}")


def _run(command: list[str], cwd: Path = Path("/")) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
    except OSError as error:
        raise Failed(f"cannot run {command[0]}: {error.strerror}") from None


def _no_namespace() -> str | None:
    with suppress(OSError, ValueError):
        if int(MAX_NAMESPACES.read_text()) > 0:
            return None
    return "this kernel gives users no namespaces of their own"


def enter(layers: Layers) -> None:
    """Move this process, which must have one thread, to namespaces of its own, where the
    workspace is mounted; its user stays who he is. Raises Failed."""
    user, group = os.geteuid(), os.getegid()
    try:
        mounts.unshare(mounts.CLONE_NEWUSER | mounts.CLONE_NEWNS)
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        mounts.mount("none", Path("/"), "none", mounts.MS_REC | mounts.MS_PRIVATE)
    except OSError as error:
        raise Failed(f"no namespace of its own: {error.strerror}") from None
    flags = FLAGS | (mounts.MS_RDONLY if layers.read_only else 0)
    _overlay(layers, flags, userxattr="")


WAYS = {
    way.name: way
    for way in (
        Way(NATIVE, native.missing, overlay.TRUSTED, native.mount),
        Way(OVERLAY, lambda near: _no_overlay(), overlay.TRUSTED, _mount_overlay),
        Way(NAMESPACE, lambda near: _no_namespace(), overlay.USER),
        Way(FUSE, lambda near: _no_fuse(), overlay.FUSE, _mount_fuse),
        Way(COPY, lambda near: None),
    )
}
