"""What is asked of the kernel by system call: mount, unmount, a namespace of one's own; and
its table of mounts. Nothing here knows what is mounted.

The calls are made directly, since mount(8) would put a loop device under a plain file and
is not everywhere. Paths in an overlay's options are escaped, so any path will do.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from casfs.system.syscalls import call

MS_RDONLY, MS_NOSUID, MS_NODEV = 1, 2, 4
MS_REC, MS_PRIVATE = 1 << 14, 1 << 18
MNT_DETACH, UMOUNT_NOFOLLOW = 2, 8
CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
TABLE = Path("/proc/self/mountinfo")
PROCESSES = Path("/proc")
MOST_OPTIONS = 4095  # bytes that mount(2) takes


class Mounted(NamedTuple):
    """A line of the table: where, of which type, from what, and the device as `major:minor`."""

    point: Path
    type: str
    source: str
    device: str
    id: int


def mount(source: str, point: Path, type: str, flags: int, options: bytes = b"") -> None:
    """Raises OSError."""
    if len(options) > MOST_OPTIONS:
        raise OSError(errno.E2BIG, "the paths are too long for the options of a mount", str(point))
    call("mount", source.encode(), os.fsencode(point), type.encode(), flags, options)


def unmount(point: Path, *, lazy: bool = False) -> None:
    """`lazy`: out of sight at once, gone when its last user is. Raises OSError."""
    call("umount2", os.fsencode(point), UMOUNT_NOFOLLOW | (MNT_DETACH if lazy else 0))


def options(values: Mapping[str, str | Sequence[Path | None]]) -> bytes:
    """Options of an overlay; a list of paths is a stack of layers, the topmost first. None
    stands before each layer that only gives data (`lowerdir=LOWER::DATA`)."""
    parts = []
    for name, value in values.items():
        text = value.encode() if isinstance(value, str) else b":".join(map(_escaped, value))
        parts.append(name.encode() + b"=" + text if text else name.encode())
    return b",".join(parts)


def _escaped(path: Path | None) -> bytes:
    return b"" if path is None else re.sub(rb"([\\:,])", rb"\\\1", os.fsencode(path))


def unshare(flags: int) -> None:
    """Leave the namespaces of this process, for new ones. Raises OSError."""
    call("unshare", flags)


def mounts(table: Path = TABLE) -> list[Mounted]:
    """Each mount that this process sees, or whose table it is, in the order of mounting."""
    found = []
    for line in table.read_bytes().splitlines():
        about, _, rest = line.partition(b" - ")
        id, _, device, _, point, *_ = about.split(b" ")
        type, source, *_ = rest.split(b" ")
        found.append(
            Mounted(
                Path(_unescaped(point)), _unescaped(type), _unescaped(source),
                device.decode(), int(id),
            )
        )  # fmt: skip
    return found


def mounted_at(point: Path) -> Mounted | None:
    """What is seen at this absolute path: the last one mounted there."""
    return next((one for one in reversed(mounts()) if one.point == point), None)


def is_mounted_anywhere(source: str) -> bool:
    """Does any process see a mount from that source? Some may be in a container of their own."""
    seen = set()
    for process in PROCESSES.iterdir():
        with suppress(OSError):  # it is gone, or another user's
            if process.name.isdigit():
                namespace = os.readlink(process / "ns" / "mnt")
                if namespace not in seen:
                    seen.add(namespace)
                    if any(one.source == source for one in mounts(process / "mountinfo")):
                        return True
    return False


def mounted_below(folder: Path) -> list[Path]:
    """The mount points in a directory, the last one mounted first."""
    return [one.point for one in reversed(mounts()) if folder in one.point.parents]


def _unescaped(part: bytes) -> str:
    plain = re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), part)
    return os.fsdecode(plain)
