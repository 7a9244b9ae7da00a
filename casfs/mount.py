"""Run a mount: one process serves one store at one mount point, and only reads.

A mount is found again in the kernel's table: its type is `fuse.casfs` and its source
names the store. The kernel enforces `ro`, `nodev`, `nosuid` and the permission bits
(`default_permissions`). SIGTERM and SIGINT unmount and return; so does an unmount from
outside. Putting the server in the background is the caller's business.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import trio

from . import kernel
from .digest import hash_bytes
from .errors import CasfsError, Failed, NotFound, Refused
from .fuse.reader import Reader
from .fuse.stats import Stats
from .fuse.views import root as make_root
from .log import Log, silent
from .store import Store

TYPE = "fuse.casfs"
DEVICE = Path("/dev/fuse")
SETTINGS = Path("/etc/fuse.conf")
HELPER = "fusermount3"
NOTE_EVERY = 30  # seconds
PLAIN_SOURCE = re.compile(r"[A-Za-z0-9/._+@:-]+\Z")


def serve(
    store: Store,
    mountpoint: Path,
    *,
    allow_other: bool = False,
    xattr: bool = False,
    on_ready: Callable[[], None] = lambda: None,
    log: Log = silent,
) -> None:
    """Mount `store` and serve it until it is unmounted or a signal comes.

    `on_ready` is called once, when the mount answers. Raises NotFound, Refused (the mount
    point), Failed (this machine cannot mount).
    """
    mountpoint = check(store, mountpoint)
    _check_machine(allow_other)
    trio.run(_serve, store, mountpoint, allow_other, xattr, on_ready, log)


async def _serve(
    store: Store,
    mountpoint: Path,
    allow_other: bool,
    xattr: bool,
    on_ready: Callable[[], None],
    log: Log,
) -> None:
    from .fuse import ops

    stats, reader = Stats(), Reader(store)
    operations = ops.Operations(make_root(reader, stats), stats, log, store=store.root, xattr=xattr)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_note_uses, reader, log)
        await ops.run(operations, str(mountpoint), _options(store, allow_other), on_ready)
        nursery.cancel_scope.cancel()


async def _note_uses(reader: Reader, log: Log) -> None:
    """Now and then tell the store what was read; the one thing that a mount writes."""
    try:
        while True:
            await trio.sleep(NOTE_EVERY)
            await trio.to_thread.run_sync(_note, reader, log)
    finally:
        _note(reader, log)


def _note(reader: Reader, log: Log) -> None:
    try:
        reader.note_uses()
    except CasfsError as error:  # a full disk must not end a mount
        log("uses not noted", error=str(error))


def _options(store: Store, allow_other: bool) -> set[str]:
    options = {"ro", "nodev", "nosuid", "default_permissions", "subtype=casfs"}
    options.add(f"fsname={source(store.root)}")
    if allow_other:
        options.add("allow_other")
    return options


def source(root: Path | None) -> str:
    """The name of a store in the mount table: its path, where that can stand there."""
    if root is None:
        return "casfs"
    path = os.fsencode(root.resolve())
    text = path.decode("ascii", "replace")
    return text if PLAIN_SOURCE.match(text) else f"casfs-{hash_bytes(path)[:16]}"


# -- before -----------------------------------------------------------------------------


def check(store: Store, mountpoint: Path) -> Path:
    """The mount point as an absolute path. Raises NotFound, Refused when it will not do."""
    try:
        path = mountpoint.resolve(strict=True)
        if path.is_mount():
            raise Refused(f"{path} is a mount point already; `casfs umount` it first")
        names = os.listdir(path)
    except FileNotFoundError:
        raise NotFound(f"no directory {mountpoint}; make it first") from None
    except NotADirectoryError:
        raise Refused(f"{mountpoint} is no directory; give an empty one") from None
    except OSError as error:
        if error.errno == errno.ENOTCONN:
            raise Refused(f"{mountpoint} is a dead mount; `casfs umount -l` it first") from None
        raise Failed(f"cannot use {mountpoint}: {error.strerror}") from None
    if names:
        raise Refused(f"{path} is not empty; give an empty directory")
    if store.root is not None:
        root = store.root.resolve()
        if root.is_relative_to(path):
            raise Refused(f"the store {root} is inside the mount point {path}")
        if path.is_relative_to(root):
            raise Refused(f"the mount point {path} is inside the store {root}")
    return path


def _check_machine(allow_other: bool) -> None:
    """Raises Failed, with what to do, where a mount could not succeed."""
    if not DEVICE.exists():
        raise Failed(f"no {DEVICE}: load the kernel's fuse module (`modprobe fuse`)")
    if not os.access(DEVICE, os.R_OK | os.W_OK):
        raise Failed(f"no access to {DEVICE}; as root: `chmod 666 {DEVICE}`")
    if os.geteuid() == 0:
        return
    if shutil.which(HELPER) is None:
        raise Failed(f"no {HELPER} to mount with; install the package fuse3")
    if allow_other and not _allows_other():
        raise Failed(f"--allow-other needs the line user_allow_other in {SETTINGS}")


def _allows_other() -> bool:
    try:
        lines = SETTINGS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    return "user_allow_other" in (line.strip() for line in lines)


# -- after ------------------------------------------------------------------------------


def mounted(root: Path) -> list[Path]:
    """Where the store at `root` is mounted, in the order of mounting."""
    name = source(root)
    return [one.point for one in kernel.mounts() if (one.type, one.source) == (TYPE, name)]


def unmount(mountpoint: Path, *, lazy: bool = False) -> None:
    """Unmount. `lazy`: out of sight at once, gone when its last user is.

    Raises NotFound (nothing of ours there), Refused (busy), Failed.
    """
    path = Path(os.path.abspath(mountpoint))  # resolving would ask a mount that may be dead
    path = _resolved_parent(path)
    if not any((one.point, one.type) == (path, TYPE) for one in kernel.mounts()):
        raise NotFound(f"no casfs mount at {path}; see `casfs status`")
    command = _command(lazy)
    done = subprocess.run(
        [*command, str(path)], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode == 0:
        return
    reason = " ".join(done.stderr.split()) or f"{command[0]} gave {done.returncode}"
    if "busy" in reason.lower():
        raise Refused(f"{path} is busy: end what uses it, or unmount with -l ({reason})")
    raise Failed(f"cannot unmount {path}: {reason}")


def _command(lazy: bool) -> list[str]:
    if helper := shutil.which(HELPER):
        return [helper, "-u", "-z"] if lazy else [helper, "-u"]
    if os.geteuid() == 0 and (tool := shutil.which("umount")):
        return [tool, "-l"] if lazy else [tool]
    raise Failed(f"no {HELPER} to unmount with; install the package fuse3")


def _resolved_parent(path: Path) -> Path:
    return path.parent.resolve() / path.name
