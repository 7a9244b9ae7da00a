"""Mount points: checking one, finding the mounts of a store, unmounting.

A mount is found in the kernel's mount table: its type is `fuse.casfs` and its source
names the store. Which processes serve it is in `casfs.mount.registry`. Nothing here asks the mount,
which may be dead, but unmounting what is mounted over its trees (`casfs.mount.native_mounts`).
"""

from __future__ import annotations

import errno
import os
import time
from contextlib import ExitStack
from pathlib import Path

from casfs.errors import Failed, NotFound, Refused
from casfs.mount import attach, native_mounts, registry, users
from casfs.system import mounts
from casfs.system.store_mounts import TYPE, source

MAX_USERS_NAMED = 8  # in the message about a busy mount
MAX_TRIES = 5  # while a tree is just being mounted natively
TRY_INTERVAL_S = 0.02


def check(root: Path | None, mountpoint: Path) -> Path:
    """Returns the absolute path at which the store at `root` can be mounted. Raises NotFound,
    Refused (not an empty directory, or one in the other), Failed."""
    try:
        path = mountpoint.resolve(strict=True)
        if path.is_mount():
            raise Refused(f"{path} is a mount point already; `casfs umount` it first")
        names = os.listdir(path)
    except FileNotFoundError:
        raise NotFound(f"no directory {mountpoint}; make its parent first") from None
    except NotADirectoryError:
        raise Refused(f"{mountpoint} is not a directory; give an empty one") from None
    except OSError as error:
        if error.errno == errno.ENOTCONN:
            raise Refused(f"{mountpoint} is a dead mount; `casfs umount -l` it first") from None
        raise Failed(f"cannot use {mountpoint}: {error.strerror}") from None
    if names:
        raise Refused(f"{path} is not empty; give an empty directory")
    if root is not None:
        root = root.resolve()
        if root.is_relative_to(path):
            raise Refused(f"the store {root} is inside the mount point {path}")
        if path.is_relative_to(root):
            raise Refused(f"the mount point {path} is inside the store {root}")
    return path


def find(mountpoint: Path) -> mounts.Mounted:
    """Returns the casfs mount at that path. Raises NotFound."""
    path = Path(os.path.abspath(mountpoint))  # resolving it would stat a mount that may be dead
    path = path.parent.resolve() / path.name
    mount = mounts.mounted_at(path)
    if mount is None or mount.type != TYPE:
        raise NotFound(f"no casfs mount at {path}; see `casfs status`")
    return mount


def unmount(mountpoint: Path, *, root: Path | None = None, lazy: bool = False) -> None:
    """Unmounts, and waits for the end of the processes that served it; except where the file
    system is still mounted elsewhere (in a container, below an overlay), which goes on being
    served, and except if `lazy`: detached at once, served until its last user is gone.
    `root`: of the store, where the mount's source is not its path.

    Raises NotFound (no casfs mount there), Refused (busy, with its users), Failed.
    """
    mount = find(mountpoint)
    with ExitStack() as stack:
        waits = [stack.enter_context(state.end_waiter()) for state in _states(mount, root)]
        _detach(mount, lazy=lazy)
        if not lazy and not attach.is_mounted(mount.device):
            for wait in waits:
                wait()


def _detach(mount: mounts.Mounted, *, lazy: bool) -> None:
    """Raises Refused, Failed."""
    for _ in range(MAX_TRIES):
        # Unmounting lazily takes along what is mounted below.
        busy = None if lazy else native_mounts.unmount_over(mount, lazy=False)
        if busy is not None:
            raise Refused(_busy_message(busy))
        try:
            attach.detach(mount.point, lazy=lazy)
            return
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise Failed(f"cannot unmount {mount.point}: {error.strerror}") from None
        time.sleep(TRY_INTERVAL_S)
    raise Refused(_busy_message(mount))


def _states(mount: mounts.Mounted, root: Path | None) -> list[registry.MountState]:
    if mount.source.startswith("/"):
        root = Path(mount.source)
    elif root is None or source(root) != mount.source:
        return []
    return [state for state in registry.listing(root) if state.is_of(mount)]


def served(root: Path, mountpoint: Path) -> registry.MountState:
    """Returns the state of the store's mount at that path. Raises NotFound."""
    mount = find(mountpoint)
    for state in _states(mount, root):
        return state
    raise NotFound(f"no process of the store {root} is registered to serve {mount.point}")


def _busy_message(mount: mounts.Mounted) -> str:
    processes = users.find(mount)
    names = [str(process) for process in processes[:MAX_USERS_NAMED]]
    if len(processes) > MAX_USERS_NAMED:
        names.append(f"{len(processes) - MAX_USERS_NAMED} more")
    below = mounts.mounted_below(mount.point)[:MAX_USERS_NAMED]
    names += [f"the mount {point}" for point in below]
    used_by = ", ".join(names) or "a process that cannot be seen from here"
    return f"{mount.point} is busy: {used_by}; end what uses it, or unmount with -l"
