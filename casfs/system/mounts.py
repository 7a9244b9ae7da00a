"""mount(2), umount2(2) and unshare(2), and the kernel's mount table, for any file system.

The calls are made directly, since mount(8) would put a loop device under a plain file and
may be missing. Paths in an overlay's options are escaped, so any path is valid.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from casfs.system.files import closing_fd
from casfs.system.syscalls import call

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_BIND = 1 << 12
MS_REC = 1 << 14
MS_PRIVATE = 1 << 18
MS_SLAVE = 1 << 19
MNT_DETACH = 2
MNT_EXPIRE = 4
UMOUNT_NOFOLLOW = 8
CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
TABLE = Path("/proc/self/mountinfo")
PROCESSES = Path("/proc")
MAX_OPTIONS_BYTES = 4095  # of mount(2)
MOVE_MOUNT = 429  # system calls; libc had them late
FSOPEN = 430
FSCONFIG = 431
FSMOUNT = 432
CLOEXEC = 1  # of fsopen(2) and fsmount(2)
SET_STRING = 1  # of fsconfig(2)
CREATE = 6
AT_FDCWD = -100  # of move_mount(2)
EMPTY_PATH = 4


class Mounted(NamedTuple):
    """An entry of the mount table: mount point, type, source, device as `major:minor`; `parent`:
    the id of the mount that it is on; `root`: which directory of its file system it shows."""

    point: Path
    type: str
    source: str
    device: str
    id: int
    parent: int
    root: Path


def mount(source: str, point: Path, type: str, flags: int, options: bytes = b"") -> None:
    """Raises OSError."""
    if len(options) > MAX_OPTIONS_BYTES:
        raise OSError(errno.E2BIG, "the paths are too long for the options of a mount", str(point))
    call("mount", os.fsencode(source), os.fsencode(point), type.encode(), flags, options)


def mount_with(
    type: str, point: Path, attributes: int, parameters: Iterable[tuple[bytes, bytes]]
) -> int:
    """Mounts with any number of parameters of up to 255 bytes, its source among them, and returns a
    descriptor of the mount's root. `attributes`: MS_RDONLY, MS_NOSUID, MS_NODEV. Raises OSError."""
    context = call("syscall", FSOPEN, type.encode(), CLOEXEC)
    with closing_fd(context):
        for key, value in parameters:
            call("syscall", FSCONFIG, context, SET_STRING, key, value, 0)
        call("syscall", FSCONFIG, context, CREATE, 0, 0, 0)
        mount_fd = call("syscall", FSMOUNT, context, CLOEXEC, attributes)
    try:
        call("syscall", MOVE_MOUNT, mount_fd, b"", AT_FDCWD, os.fsencode(point), EMPTY_PATH)
    except OSError:
        os.close(mount_fd)
        raise
    return mount_fd


def unmount(point: Path, *, lazy: bool = False) -> None:
    """`lazy`: detached at once, ended with its last user. Raises OSError."""
    call("umount2", os.fsencode(point), UMOUNT_NOFOLLOW | (MNT_DETACH if lazy else 0))


def expire(point: Path) -> None:
    """Unmounts what was not used since the last call for it. Raises OSError: EAGAIN where it was,
    EBUSY where it is in use."""
    call("umount2", os.fsencode(point), UMOUNT_NOFOLLOW | MNT_EXPIRE)


def options(values: Mapping[str, str | Sequence[Path | None]]) -> bytes:
    """Returns the options of an overlay; a list of paths is a stack of layers, the topmost first.
    None precedes each data-only layer (`lowerdir=LOWER::DATA`)."""
    parts = []
    for name, value in values.items():
        text = value.encode() if isinstance(value, str) else b":".join(map(_escaped, value))
        parts.append(name.encode() + b"=" + text if text else name.encode())
    return b",".join(parts)


def _escaped(path: Path | None) -> bytes:
    return b"" if path is None else re.sub(rb"([\\:,])", rb"\\\1", os.fsencode(path))


def unshare(flags: int) -> None:
    """Moves this process into new namespaces. Raises OSError."""
    call("unshare", flags)


def enter_user_namespace() -> None:
    """Moves this process, which must have one thread, to a user and a mount namespace of its own,
    as the same user. Raises OSError."""
    user = os.geteuid()
    group = os.getegid()
    unshare(CLONE_NEWUSER | CLONE_NEWNS)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def mounts(table: Path = TABLE) -> list[Mounted]:
    """Returns the mounts that this process sees (or the owner of `table`), in mount order."""
    return list(_parsed(table.read_bytes()))


# Asked at each look at a directory, and it changes rarely.
@lru_cache(maxsize=4)
def _parsed(table: bytes) -> tuple[Mounted, ...]:
    mount_list = []
    for line in table.splitlines():
        about, _, filesystem = line.partition(b" - ")
        id, parent, device, root, point, *_ = about.split(b" ")
        type, source, *_ = filesystem.split(b" ")
        mount_list.append(
            Mounted(
                Path(unescaped(point)), unescaped(type), source=unescaped(source),
                device=device.decode(), id=int(id), parent=int(parent), root=Path(unescaped(root)),
            )
        )  # fmt: skip
    return tuple(mount_list)


def foreign(table: Path = TABLE) -> Iterator[Mounted]:
    """Yields the mounts that show something else than what is in their places without them. The
    sandbox of an agent mounts files and directories on themselves, to make them read-only."""
    by_id = {mounted.id: mounted for mounted in mounts(table)}
    for mounted in by_id.values():
        below = by_id.get(mounted.parent)
        if below is None or mounted.device != below.device or not _is_itself(mounted, below):
            yield mounted


def _is_itself(mounted: Mounted, below: Mounted) -> bool:
    try:
        return mounted.root == below.root / mounted.point.relative_to(below.point)
    except ValueError:  # a process that has another root sees neither
        return False


def device_name(device: int) -> str:
    """Returns a device number, as of stat(2), as the mount table has it."""
    return f"{os.major(device)}:{os.minor(device)}"


def mounted_at(point: Path) -> Mounted | None:
    """Returns the mount that is visible at this absolute path: the last one there."""
    return next((mounted for mounted in reversed(mounts()) if mounted.point == point), None)


def is_mounted_anywhere(source: str) -> bool:
    """Returns True when any process sees a mount from that source, containers included."""
    return any(True for _ in points_anywhere(source))


def points_anywhere(source: str) -> Iterator[Path]:
    """Yields where any process sees a mount from that source, by its own paths."""
    return (mounted.point for mounted in anywhere() if mounted.source == source)


def anywhere() -> Iterator[Mounted]:
    """Yields the mounts that any process sees, those of containers included."""
    seen = set()
    for process in PROCESSES.iterdir():
        with suppress(OSError):  # exited, or another user's
            if process.name.isdigit():
                namespace = os.readlink(process / "ns" / "mnt")
                if namespace not in seen:
                    seen.add(namespace)
                    yield from mounts(process / "mountinfo")


def mounted_below(folder: Path) -> list[Path]:
    """Returns the mount points in a directory, the last one mounted first."""
    return [mounted.point for mounted in reversed(mounts()) if folder in mounted.point.parents]


def unescaped(part: bytes) -> str:
    """Returns a field of a mount table as it is: there a space is `\\040`."""
    plain = re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), part)
    return os.fsdecode(plain)
