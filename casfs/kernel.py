"""What is asked of the kernel by system call: mount, unmount, a namespace of one's own; and
its table of mounts. Nothing here knows what is mounted.

The calls are made directly, since mount(8) would put a loop device under a plain file and
is not everywhere. Paths in an overlay's options are escaped, so any path will do.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

MS_RDONLY, MS_NOSUID, MS_NODEV = 1, 2, 4
MS_REC, MS_PRIVATE = 1 << 14, 1 << 18
MNT_DETACH, UMOUNT_NOFOLLOW = 2, 8
CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
TABLE = Path("/proc/self/mounts")
MOST_OPTIONS = 4095  # bytes that mount(2) takes


class Mounted(NamedTuple):
    """A line of the table: where, of which type, from what."""

    point: Path
    type: str
    source: str


def mount(source: str, point: Path, type: str, flags: int, options: bytes = b"") -> None:
    """Raises OSError."""
    if len(options) > MOST_OPTIONS:
        raise OSError(errno.E2BIG, "the paths are too long for the options of a mount", str(point))
    _call("mount", source.encode(), os.fsencode(point), type.encode(), flags, options)


def unmount(point: Path, *, lazy: bool = False) -> None:
    """`lazy`: out of sight at once, gone when its last user is. Raises OSError."""
    _call("umount2", os.fsencode(point), UMOUNT_NOFOLLOW | (MNT_DETACH if lazy else 0))


def options(values: Mapping[str, str | list[Path]]) -> bytes:
    """Options of an overlay; a list of paths is a stack of layers, the topmost first."""
    parts = []
    for name, value in values.items():
        text = value.encode() if isinstance(value, str) else b":".join(map(_escaped, value))
        parts.append(name.encode() + b"=" + text if text else name.encode())
    return b",".join(parts)


def _escaped(path: Path) -> bytes:
    return re.sub(rb"([\\:,])", rb"\\\1", os.fsencode(path))


def unshare(flags: int) -> None:
    """Leave the namespaces of this process, for new ones. Raises OSError."""
    _call("unshare", flags)


def mounts() -> list[Mounted]:
    """Each mount that this process sees, in the order of mounting."""
    found = []
    for line in TABLE.read_bytes().splitlines():
        source, point, type = (_unescaped(part) for part in line.split(b" ")[:3])
        found.append(Mounted(Path(point), type, source))
    return found


def mounted_below(folder: Path) -> list[Path]:
    """The mount points in a directory, the last one mounted first."""
    return [one.point for one in reversed(mounts()) if folder in one.point.parents]


def _unescaped(part: bytes) -> str:
    plain = re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match[1], 8)]), part)
    return os.fsdecode(plain)


def _call(name: str, *arguments: int | bytes) -> None:
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    longs = [ctypes.c_ulong(one) if isinstance(one, int) else one for one in arguments]
    if function(*longs) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
