"""The processes that keep a mount busy: their cwd, root or program is in it, or they have a
file of it open or mapped.

Read from /proc alone: its links are text, and reading them sends no request to the mount.
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


def inside(tops: Iterable[Path], device: str) -> set[Path]:
    """Returns those of some directories of a mount in which a process works, or has a file or
    directory open; `device`: of the mount, not of what is mounted over such a directory. Only of
    processes that see them by these paths."""
    prefixes = {f"{top}/": top for top in tops}
    used = set()
    for name in filter(str.isdigit, os.listdir(PROC)):
        with suppress(OSError):  # exited, or another user's
            process = PROC / name
            links = [process / "cwd", process / "root"]
            links += [process / "fd" / fd for fd in os.listdir(process / "fd")]
            for link in links:
                with suppress(OSError):
                    path = f"{os.readlink(link)}/"
                    for prefix, top in prefixes.items():
                        if path.startswith(prefix) and _device(link) == device:
                            used.add(top)
    return used


def _device(path: Path) -> str:
    number = os.stat(path).st_dev
    return f"{os.major(number)}:{os.minor(number)}"


def _uses(process: Path, mount: mounts.Mounted) -> bool:
    top = os.fspath(mount.point)
    if any(path == top or path.startswith(f"{top}/") for path in _links(process)):
        return True
    return any(_open_files_in(process, mount)) or _maps(process, mount.device)


def _links(process: Path) -> Iterator[str]:
    for name in ("cwd", "root", "exe"):
        with suppress(OSError):
            yield os.readlink(process / name).removesuffix(DELETED_SUFFIX)


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
