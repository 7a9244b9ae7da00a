"""Who keeps a mount busy: the processes that stand in it, run from it or have it open.

Read from /proc alone: the links there are text, and looking at them asks the mount nothing.
A process in another mount namespace names its files by other paths; it is found by the
device of what it has mapped. Processes of other users are seen by root only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from casfs.system import mounts

PROC = Path("/proc")
GONE = " (deleted)"
MOUNT_ID = re.compile(rb"^mnt_id:\s*(\d+)$", re.MULTILINE)


class Holder(NamedTuple):
    pid: int
    name: str

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.name})"


def find(mount: mounts.Mounted) -> list[Holder]:
    """In the order of their ids."""
    pids = sorted(int(name) for name in os.listdir(PROC) if name.isdigit())
    return [Holder(pid, _name(pid)) for pid in pids if _holds(PROC / str(pid), mount)]


def _holds(process: Path, mount: mounts.Mounted) -> bool:
    top = os.fspath(mount.point)
    if any(path == top or path.startswith(f"{top}/") for path in _links(process)):
        return True
    return any(_mounts(process, mount)) or _maps(process, mount.device)


def _links(process: Path) -> Iterator[str]:
    for name in ("cwd", "root", "exe"):
        with suppress(OSError):
            yield os.readlink(process / name).removesuffix(GONE)


def _mounts(process: Path, mount: mounts.Mounted) -> Iterator[bool]:
    """For each descriptor: is it of that mount?"""
    with suppress(OSError):
        for name in os.listdir(process / "fdinfo"):
            with suppress(OSError):
                found = MOUNT_ID.search((process / "fdinfo" / name).read_bytes())
                yield found is not None and int(found[1]) == mount.id


def _maps(process: Path, device: str) -> bool:
    major, minor = (int(part) for part in device.split(":"))
    wanted = b"%02x:%02x" % (major, minor)
    with suppress(OSError):
        lines = (process / "maps").read_bytes().splitlines()
        return any(wanted == fields[3] for fields in map(bytes.split, lines) if len(fields) > 5)
    return False


def _name(pid: int) -> str:
    try:
        return (PROC / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        return "gone"
