"""A mount from outside: where one may stand, which there are, and how one ends.

A mount is found again in the kernel's table: its type is `fuse.casfs` and its source
names the store. Who serves it is another matter (`casfs.mount.supervisor`); nothing here asks the
mount itself, which may be dead.
"""

from __future__ import annotations

import errno
import os
import re
from contextlib import ExitStack
from pathlib import Path

from casfs.digest import hash_bytes
from casfs.errors import Failed, NotFound, Refused
from casfs.mount import attach, registry
from casfs.mount import users as holders
from casfs.system import mounts

TYPE = attach.TYPE
PLAIN_SOURCE = re.compile(r"[A-Za-z0-9/._+@:-]+\Z")
SHOWN = 8  # of those who use a busy mount


def source(root: Path | None) -> str:
    """The name of a store in the mount table: its path, where that can stand there."""
    if root is None:
        return "casfs"
    path = os.fsencode(root.resolve())
    text = path.decode("ascii", "replace")
    return text if PLAIN_SOURCE.match(text) else f"casfs-{hash_bytes(path)[:16]}"


def check(root: Path | None, mountpoint: Path) -> Path:
    """Where the store at `root` is to be mounted, as an absolute path.

    Raises NotFound, Refused when that will not do, Failed.
    """
    try:
        path = mountpoint.resolve(strict=True)
        if path.is_mount():
            raise Refused(f"{path} is a mount point already; `casfs umount` it first")
        names = os.listdir(path)
    except FileNotFoundError:
        raise NotFound(f"no directory {mountpoint}; make it first") from None
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


def mounted(root: Path) -> list[Path]:
    """Where the store at `root` is mounted, in the order of mounting."""
    name = source(root)
    return [one.point for one in mounts.mounts() if (one.type, one.source) == (TYPE, name)]


def find(mountpoint: Path) -> mounts.Mounted:
    """The mount of a store at that path. Raises NotFound."""
    path = Path(os.path.abspath(mountpoint))  # resolving would ask a mount that may be dead
    path = path.parent.resolve() / path.name
    found = mounts.mounted_at(path)
    if found is None or found.type != TYPE:
        raise NotFound(f"no casfs mount at {path}; see `casfs status`")
    return found


def unmount(mountpoint: Path, *, root: Path | None = None, lazy: bool = False) -> None:
    """Unmount; returns when whoever served it is gone. Nobody waits for that when it is seen
    elsewhere too (in a container, by an overlay): then it is served until that is over. The
    same for `lazy`: out of sight at once, and served until its last user is gone.
    `root`: of the store, where the mount's source is not its path.

    Raises NotFound (nothing of ours there), Refused (busy: by whom), Failed.
    """
    found = find(mountpoint)
    with ExitStack() as stack:
        waits = [stack.enter_context(one.watched()) for one in _records(found, root)]
        try:
            attach.detach(found.point, lazy=lazy)
        except OSError as error:
            if error.errno == errno.EBUSY:
                raise Refused(_busy(found)) from None
            raise Failed(f"cannot unmount {found.point}: {error.strerror}") from None
        if not lazy and not attach.lives(found.device):
            for wait in waits:
                wait()


def _records(found: mounts.Mounted, root: Path | None) -> list[registry.Record]:
    if found.source.startswith("/"):
        root = Path(found.source)
    elif root is None or source(root) != found.source:
        return []
    return [one for one in registry.listing(root) if one.shows(found)]


def served(root: Path, mountpoint: Path) -> registry.Record:
    """Who serves the mount of the store at that path. Raises NotFound."""
    found = find(mountpoint)
    for one in _records(found, root):
        return one
    raise NotFound(f"nobody of the store {root} is known to serve {found.point}")


def _busy(found: mounts.Mounted) -> str:
    users = holders.find(found)
    names = [str(one) for one in users[:SHOWN]]
    if len(users) > SHOWN:
        names.append(f"{len(users) - SHOWN} more")
    names += [f"the mount {point}" for point in mounts.mounted_below(found.point)[:SHOWN]]
    who = ", ".join(names) or "somebody who cannot be seen from here"
    return f"{found.point} is busy: {who}; end what uses it, or unmount with -l"
