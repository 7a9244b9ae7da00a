"""The processes that keep a mount busy: their cwd, root or program is in it, or they have a
file of it open or mapped.

Read from /proc: its links are text, and reading them sends no request to the mount.
A process in another mount namespace names its files by other paths; it is found by the
device of its mappings. Processes of other users are visible to root only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from casfs.system import mounts

PROC = Path("/proc")
DELETED_SUFFIX = " (deleted)"
MOUNT_ID = re.compile(rb"^mnt_id:\s*(\d+)$", re.MULTILINE)


class MountUser(NamedTuple):
    pid: int
    name: str

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.name})"


def find(mount: mounts.Mounted) -> list[MountUser]:
    """Returns the processes that use the mount, by pid."""
    pids = sorted(int(name) for name in os.listdir(PROC) if name.isdigit())
    return [MountUser(pid, _command(pid)) for pid in pids if _uses(PROC / str(pid), mount)]


def trees_in_use(tops: Iterable[Path], device: str) -> set[Path]:
    """Returns those of some directories in which a process works, or has a file or directory open;
    `device`: of the mount that they are in, not of what is mounted over them. Only of processes
    that see them by these paths. Asks the mount for attributes, where there is such a process."""
    used = set()
    for name in filter(str.isdigit, os.listdir(PROC)):
        for link, path in _links(PROC / name, with_open_files=True):
            for top in tops:
                if _is_below(path, top) and _device(link) == device:
                    used.add(top)
    return used


def _device(link: Path) -> str | None:
    try:
        return mounts.device_name(os.stat(link).st_dev)
    except OSError:  # the process has exited, or closed it
        return None


def _is_below(path: str, top: Path) -> bool:
    return path == os.fspath(top) or path.startswith(f"{top}/")


def _uses(process: Path, mount: mounts.Mounted) -> bool:
    if any(_is_below(path, mount.point) for _, path in _links(process)):
        return True
    return any(_open_files_in(process, mount)) or _maps(process, mount.device)


def _links(process: Path, *, with_open_files: bool = False) -> Iterator[tuple[Path, str]]:
    """Yields the links of a process to what it uses, with the path of that."""
    links = [process / name for name in ("cwd", "root", "exe")]
    if with_open_files:
        with suppress(OSError):  # exited, or another user's
            links += [process / "fd" / name for name in os.listdir(process / "fd")]
    for link in links:
        with suppress(OSError):
            yield link, os.readlink(link).removesuffix(DELETED_SUFFIX)


def _open_files_in(process: Path, mount: mounts.Mounted) -> Iterator[bool]:
    """Yields for each open descriptor whether its file is in the mount."""
    with suppress(OSError):
        for name in os.listdir(process / "fdinfo"):
            with suppress(OSError):
                match = MOUNT_ID.search((process / "fdinfo" / name).read_bytes())
                yield match is not None and int(match[1]) == mount.id


def _maps(process: Path, device: str) -> bool:
    major, minor = (int(part) for part in device.split(":"))
    wanted = b"%02x:%02x" % (major, minor)
    with suppress(OSError):
        lines = (process / "maps").read_bytes().splitlines()
        return any(wanted == fields[3] for fields in map(bytes.split, lines) if len(fields) > 5)
    return False


def _command(pid: int) -> str:
    try:
        return (PROC / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        return "ended"
