"""Control groups: a directory that holds all descendants of a process, whatever they do to leave.

Version 2 and the hierarchies of version 1 are used side by side, as a machine has them: UNIFIED
or, without it, a controller of version 1 says what belongs together; MEMORY and PIDS set limits.
Directories of ours have names that begin with PREFIX and lie below the group of the process that
makes them, so that limits of the machine hold for them too.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from casfs.system import mounts

PREFIX = "casfs-"
OWN = f"{PREFIX}daemon"  # for a daemon whose group gives its controllers to groups below
UNIFIED = "unified"
MEMORY = "memory"
PIDS = "pids"
PROCS = "cgroup.procs"
CONTROL = "cgroup.subtree_control"
PROBE = "probe-"  # and the id of the process that tries
END_TIMEOUT_S = 10.0
MAX_PIDS = 1 << 22  # of the kernel, which refuses more


def parents() -> dict[str, Path]:
    """Returns the directory of this process by hierarchy, where groups of it are made: above those
    of ours that it is in. Of version 1, by each controller."""
    directories: dict[str, Path] = {}
    own = dict(_own_paths())
    for names, root, point in _mounts():
        path = own.get(",".join(sorted(names)), "")
        if path == root or path.startswith(f"{root.rstrip('/')}/"):
            inner = Path(path).relative_to(root).parts
            ours = (i for i, part in enumerate(inner) if part.startswith(PREFIX))
            directories |= dict.fromkeys(names, point.joinpath(*inner[: next(ours, len(inner))]))
    return directories


def _own_paths() -> Iterator[tuple[str, str]]:
    for line in _lines("cgroup"):
        _, controllers, path = line.split(":", 2)
        yield ",".join(sorted(controllers.split(","))) or UNIFIED, path


def _mounts() -> Iterator[tuple[list[str], str, Path]]:
    """Yields the controllers, the root and the mount point of each mounted hierarchy."""
    for line in _lines("mountinfo"):
        about, _, filesystem = line.partition(" - ")
        kind, _, options = filesystem.split(" ", 2)
        # /proc/self/cgroup has no such escapes, and a unit of systemd has backslashes in its name.
        root, point = (mounts.unescaped(os.fsencode(part)) for part in about.split(" ")[3:5])
        if kind == "cgroup2":
            yield [UNIFIED], root, Path(point)
        elif kind == "cgroup":
            flags = {"rw", "ro", "xattr", "noprefix", "clone_children"}
            yield (
                [option for option in options.split(",") if option not in flags],
                root,
                Path(point),
            )


def _lines(name: str) -> list[str]:
    """Returns a file of this process in /proc; nothing where the kernel lacks it."""
    try:
        return Path("/proc/self", name).read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []


def delegate() -> None:
    """Lets groups below that of this process have limits for memory and processes, where its group
    has these controllers and holds no other process, which has to be moved for that: so where a
    service manager has made the group for it."""
    group = parents().get(UNIFIED)
    with suppress(OSError):
        if group is None or not (wanted := _controllers(group) - _enabled(group)):
            return
        if (group / PROCS).read_text().split() == [str(os.getpid())]:
            (group / OWN).mkdir(exist_ok=True)
            (group / OWN / PROCS).write_text("0")
        (group / CONTROL).write_text(" ".join(f"+{name}" for name in sorted(wanted)))


def _controllers(group: Path) -> set[str]:
    return {MEMORY, PIDS} & {*(group / "cgroup.controllers").read_text().split()}


def _enabled(group: Path) -> set[str]:
    return {MEMORY, PIDS} & {*(group / CONTROL).read_text().split()}


def usable() -> dict[str, Path]:
    """Returns the directory in which groups are made: of UNIFIED (the main hierarchy, whichever it
    is), and of MEMORY and PIDS where groups have these limits. Empty where none can be made."""
    directories = parents()
    main = next(
        (name for name in (UNIFIED, PIDS, MEMORY) if _writable(directories.get(name))), None
    )
    if main is None:
        return {}
    groups = {UNIFIED: directories[main]}
    for name in (MEMORY, PIDS):
        if main == UNIFIED and name in _enabled(directories[main]):
            groups[name] = directories[main]
        elif name in directories and _writable(directories[name]):
            groups[name] = directories[name]
    return groups


def _writable(group: Path | None) -> bool:
    if group is None:
        return False
    probe = group / f"{PREFIX}{PROBE}{os.getpid()}"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError:
        return False
    return True


def limit(group: Path, name: str, value: int) -> None:
    """Sets the limit of MEMORY in bytes or PIDS. Raises OSError."""
    if name == PIDS:
        (group / "pids.max").write_text(str(min(value, MAX_PIDS)))
        return
    files = {"memory.max": value, "memory.swap.max": 0, "memory.oom.group": 1}
    if not (group / "memory.max").exists():
        files = {"memory.limit_in_bytes": value, "memory.memsw.limit_in_bytes": value}
    for number, (file, text) in enumerate(files.items()):
        try:
            (group / file).write_text(str(text))
        except OSError:  # only the first is everywhere
            if number == 0:
                raise


def was_reached(group: Path, name: str) -> bool:
    """Returns whether processes of the group were killed for its limit of MEMORY, or not started
    for that of PIDS."""
    for file, key in (
        ("pids.events", "max") if name == PIDS else ("memory.events", "oom_kill"),
        ("memory.oom_control", "oom_kill"),
    ):
        if (count := _counts(group / file).get(key)) is not None:
            return count > 0
    return False


def cpu_seconds(group: Path) -> float | None:
    """Returns the processor time of the group; None in version 1."""
    used = _counts(group / "cpu.stat").get("usage_usec")
    return None if used is None else used / 1e6


def _counts(path: Path) -> Mapping[str, int]:
    try:
        lines = [line.split() for line in path.read_text().splitlines()]
    except OSError:
        return {}
    return {line[0]: int(line[1]) for line in lines if len(line) == 2 and line[1].isdigit()}


def end(group: Path) -> None:
    """Kills every process in the group and the groups below, and removes these. One that a process
    cannot leave yet is left."""
    deadline = time.monotonic() + END_TIMEOUT_S
    while group.exists() and time.monotonic() < deadline:
        below = [Path(path) for path, _, _ in os.walk(group, topdown=False)]
        for subgroup in below:
            kill(subgroup)
        try:
            for subgroup in below:
                subgroup.rmdir()
        except OSError as error:
            if error.errno not in (errno.EBUSY, errno.ENOENT, errno.ENOTEMPTY):
                return
            time.sleep(0.001)


def kill(group: Path) -> None:
    """Kills the processes of a group; where the kernel can, also of those below."""
    with suppress(OSError):
        try:
            (group / "cgroup.kill").write_text("1")
        except FileNotFoundError:  # version 1, or Linux before 5.14
            for pid in (group / PROCS).read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)


def leave() -> None:
    """Moves this process out of groups of ours, into the one that holds them."""
    own = dict(_own_paths())
    if not any(f"/{PREFIX}" in path for path in own.values()):
        return
    for group in {*parents().values()}:
        for directory in (group, group / OWN):  # the first may have given its controllers away
            with suppress(OSError):
                (directory / PROCS).write_text("0")
                break


def remove_abandoned(prefix: str) -> None:
    """Removes empty groups named `prefix` and the id of a process that has ended. A group with
    processes stays: the id may be of another namespace of processes."""
    for group in named(prefix):
        number = group.name.removeprefix(PREFIX + prefix).partition("-")[0]
        if number.isdecimal() and not Path("/proc", number).exists():
            with suppress(OSError):
                group.rmdir()


def named(prefix: str) -> list[Path]:
    """Returns the groups on this machine whose name, after PREFIX, begins with `prefix`."""
    groups = []
    for point in {point for names, _, point in _mounts() if {UNIFIED, MEMORY, PIDS} & {*names}}:
        for path, names, _ in os.walk(point):
            ours = [name for name in names if name.startswith(PREFIX)]
            groups += [Path(path, name) for name in ours if name.startswith(PREFIX + prefix)]
            names[:] = [name for name in names if name not in ours]
    return groups
