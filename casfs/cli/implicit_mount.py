"""A mount of the store for workspaces to stand on: one that is there, or one of their own.

Their own is in the runtime directory, beside the daemon's socket. It is a mount like any
other: `casfs status` shows it, `casfs umount` ends it. An overlay that stands on a mount
keeps it served when it has been unmounted, until the overlay is gone too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from casfs.cli import background
from casfs.errors import CasfsError, NotFound, Refused
from casfs.mount import mount_points
from casfs.store import Store


def point(root: Path, env: Mapping[str, str]) -> Path:
    """Where the mount of their own is, or would be."""
    from casfs import daemon_socket

    return daemon_socket.socket_path(root, env).with_suffix(".mnt")


def tree(store: Store, env: Mapping[str, str], hash: str) -> Path:
    """A directory that shows the tree; a mount is started where none does.

    Raises what mounting raises, NotFound where it does not show the tree all the same.
    """
    assert store.root is not None
    found = _shown(store.root, hash)
    if found is None:
        _start(store, point(store.root, env))
        found = _shown(store.root, hash)
    if found is None:
        raise NotFound(f"no mount of {store.root} shows the tree {hash}")
    return found


def trees(store: Store, env: Mapping[str, str]) -> Callable[[str], Path]:
    """`tree`, for whoever asks later."""
    return lambda hash: tree(store, env, hash)


def end(root: Path, env: Mapping[str, str]) -> None:
    """End the mount of their own, if there is one."""
    where = point(root, env)
    if where in mount_points.mounted(root):
        mount_points.unmount(where, lazy=True)
    with suppress(OSError):
        where.rmdir()


def _shown(root: Path, hash: str) -> Path | None:
    for where in mount_points.mounted(root):
        path = where / "trees" / hash
        if path.is_dir():  # false for a dead mount, and for one that is not ours to look into
            return path
    return None


def _start(store: Store, where: Path) -> None:
    from casfs import daemon_socket

    assert store.root is not None
    daemon_socket.private_directory(where.parent)
    with suppress(CasfsError):
        mount_points.unmount(where, lazy=True)  # a dead one
    where.mkdir(exist_ok=True)
    try:
        mount_points.check(store.root, where)
        arguments = ["--store", str(store.root), "mount", str(where)]
        background.detach(arguments, store.root / "log" / "mount.err")
    except (Refused, background.Declined):
        if where not in mount_points.mounted(store.root):  # else somebody was faster
            raise
