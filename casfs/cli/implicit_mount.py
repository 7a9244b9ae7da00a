"""The mount under overlay workspaces: an existing mount of the store, or one of their own.

Their own is in the runtime directory, beside the daemon's socket. It is an ordinary mount:
`casfs status` shows it, `casfs umount` ends it. An overlay on a mount keeps it
served after it was unmounted, until the overlay is unmounted too. It ends with the last workspace
that uses it, except while a daemon runs, whose threads may use it: then with that.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from casfs.cli import background
from casfs.errors import CasfsError, NotFound, Refused
from casfs.mount import mount_points
from casfs.store.store import Store
from casfs.system import daemon_socket, locks, store_mounts
from casfs.system.files import closing_fd, is_writable, os_errors
from casfs.system.start_failed import StartFailed
from casfs.trees.dated import DatedTree
from casfs.workspaces import registry
from casfs.workspaces.strategies import TreeLocator

LOCK = "workspaces.lock"  # in the store; shared while a workspace is opened
BUSY_WAIT_S = 2.0


def mount_point(root: Path, env: Mapping[str, str]) -> Path:
    """Returns the mount point of the workspaces' own mount, whether it is mounted or not."""
    return daemon_socket.socket_path(root, env).with_suffix(".mnt")


def tree_provider(store: Store, env: Mapping[str, str]) -> TreeLocator:
    """Returns a function from a tree to a directory that shows it. That function starts a
    mount where none shows the tree. It raises as mounting does, and NotFound where the new mount
    does not show the tree either."""

    def tree(root: DatedTree) -> Path:
        directory = _find(store.root, root.name)
        if directory is None:
            start(store.root, env)
            directory = _find(store.root, root.name)
        if directory is None:
            raise NotFound(f"no mount of {store.root} shows the tree {root.name}")
        return directory

    return tree


def end(root: Path, env: Mapping[str, str]) -> None:
    """Unmounts the workspaces' own mount, if there is one."""
    point = mount_point(root, env)
    if point in store_mounts.mounted(root):
        mount_points.unmount(point, lazy=True)
    with suppress(OSError):
        point.rmdir()


@contextmanager
def kept(root: Path) -> Iterator[None]:
    """Keeps the mount while a workspace is opened. Raises Failed."""
    if not is_writable(root):  # read-only: no workspace is opened, so no lock is needed
        yield
        return
    with os_errors(f"cannot open {root / LOCK}"):
        fd = os.open(root / LOCK, locks.LOCK_FILE, 0o600)
    with closing_fd(fd):
        fcntl.flock(fd, fcntl.LOCK_SH)
        yield


def end_unused(store: Store, env: Mapping[str, str]) -> None:
    """Unmounts the workspaces' own mount and waits for its processes. Leaves it mounted while a
    daemon runs, a workspace is being opened, an open workspace is on it, or a process uses it."""
    point = mount_point(store.root, env)
    if point not in store_mounts.mounted(store.root) or daemon_socket.runs(store.root):
        return
    fd = locks.lock_file(store.root / LOCK)
    if fd is None:
        return
    with closing_fd(fd):
        if not any(workspace.strategy.over_fuse for workspace in registry.listing(store)):
            with suppress(CasfsError):
                _unmount(point)
                point.rmdir()


def _unmount(point: Path) -> None:
    """Waits a moment for the server of the last overlay, which ends after that is unmounted."""
    end = time.monotonic() + BUSY_WAIT_S
    while True:
        try:
            return mount_points.unmount(point)
        except Refused:
            if time.monotonic() > end:
                raise
        time.sleep(0.2)


def _find(root: Path, name: str) -> Path | None:
    for point in store_mounts.mounted(root):
        path = point / "trees" / name
        # False for a dead mount, and for one that this user may not enter; `Path.is_dir` raises.
        if os.path.isdir(path):
            return path
    return None


def start(root: Path, env: Mapping[str, str]) -> None:
    """Mounts the workspaces' own mount, in place of a dead one. Raises as mounting does."""
    point = mount_point(root, env)
    daemon_socket.private_directory(point.parent)
    with suppress(CasfsError):
        mount_points.unmount(point, lazy=True)  # a dead one
    point.mkdir(exist_ok=True)
    try:
        mount_points.check(root, point)
        # The lower layer of a workspace has its private files; only the user enters its directory.
        background.start(root, ["mount", "--with-local", str(point)], "mount.err")
    except (Refused, StartFailed):
        if point not in store_mounts.mounted(root):  # else a concurrent start came first
            raise
