"""The rules by which a directory is recorded, with the stores and mounts below it excluded.

What is mounted in a directory is not part of it, as of `find -xdev`: it may be another directory of
the same disk, and what is written there is written elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from casfs.errors import Refused
from casfs.store.store import Store
from casfs.system import mounts
from casfs.system.paths import printable, real_path, shown_path
from casfs.trees.snapshot import policy
from casfs.trees.snapshot.ignore import IgnoreRules
from casfs.trees.snapshot.report import MOUNT, OTHER_MOUNT, STORE, SnapshotReport

MOUNT_TYPE = "fuse.casfs"  # of a mount of a store in the kernel's table
KERNEL_TYPES = set(
    "proc sysfs devtmpfs devpts mqueue cgroup cgroup2 securityfs debugfs tracefs configfs bpf "
    "pstore efivarfs fusectl binfmt_misc".split()
)
NAMED = 3  # of what is left out
DEVICES = Path("/dev")  # in a container a tmpfs


def ignore_rules(
    store: Store,
    directory: Path,
    report: SnapshotReport,
    *,
    defaults: bool = True,
    patterns: Sequence[str] = (),
    keeps_derived: bool = False,
    keeps_git: bool = True,
) -> IgnoreRules:
    """Returns the directory's own rules and those of the settings, plus `exclude_stores`. Raises
    NotFound, Failed, Invalid as `IgnoreRules.of`, and Refused."""
    settings = policy.load(store)
    rules = IgnoreRules.of(
        directory,
        defaults=defaults,
        patterns=patterns,
        keeps_derived=keeps_derived,
        keeps_git=keeps_git,
        work=settings.work,
        private=settings.private,
    )
    exclude_stores(store, directory, rules=rules, report=report)
    return rules


def exclude_stores(
    store: Store, directory: Path, rules: IgnoreRules, report: SnapshotReport
) -> None:
    """Exclude the store, which would record itself, and what is mounted there. Raises Refused where
    `directory` is the store."""
    refuse_unrecordable(store, directory)
    top = real_path(directory)
    foreign = {
        mount.point: MOUNT if mount.type == MOUNT_TYPE else OTHER_MOUNT
        for mount in mounts.foreign()
    }
    foreign[store.root.resolve()] = STORE
    inside = {path: kind for path, kind in foreign.items() if top in path.parents}
    report.warnings += _lines(top, inside)
    excluded = {os.fsencode(path.relative_to(top)): kind for path, kind in inside.items()}
    rules.excluded = {**rules.excluded, **excluded}


def _lines(top: Path, inside: Mapping[Path, str]) -> Iterator[str]:
    if len(inside) <= NAMED:
        for path, kind in inside.items():
            yield f"{printable(os.fsencode(path))}: left out, it is {kind}"
        return
    names = [printable(os.fsencode(path.relative_to(top))) for path in sorted(inside)]
    shown = f"{', '.join(names[:NAMED])} and {len(names) - NAMED} more"
    yield f"{printable(os.fsencode(top))}: left out, as they are mounts: {shown}"


def refuse_unrecordable(store: Store, directory: Path) -> None:
    """Raises Refused for the store, and for directories whose files the kernel makes up."""
    top = real_path(directory)
    shown = shown_path(directory)
    if top.is_relative_to(store.root.resolve()):
        raise Refused(f"{shown} is the store itself, or in it; record another directory")
    above = [mount for mount in mounts.mounts() if top.is_relative_to(mount.point)]
    holder = max(above, key=lambda mount: len(mount.point.parts), default=None)
    is_below = any(mount.type in ("sysfs", "proc") for mount in above)  # a tmpfs with cgroups
    if top == DEVICES or is_below or (holder is not None and holder.type in KERNEL_TYPES):
        raise Refused(f"{shown} has files of the kernel; record another directory")
