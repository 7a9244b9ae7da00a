"""A checkpoint of a directory, and what of a directory is never recorded.

Only blobs and directory nodes that the store does not have are stored: a checkpoint costs
what changed (seed 004, SPEC-08.14).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from casfs.checkpoints import checkpoint
from casfs.checkpoints.checkpoint import MAX_CHANGED, Checkpoint, Content
from casfs.errors import Refused
from casfs.store import Store
from casfs.system import mounts
from casfs.system.paths import printable
from casfs.trees import tree
from casfs.trees.snapshot import walker
from casfs.trees.snapshot.ignore import Ignore
from casfs.trees.snapshot.stat_cache import Index
from casfs.trees.snapshot.walker import Options, Report

MOUNT = "fuse.casfs"  # the type of such a mount


@dataclass(slots=True)
class Created:
    """A new checkpoint and what making it took. `new_bytes`: stored by it alone."""

    checkpoint: Checkpoint
    report: Report
    stats: dict[str, int]
    new_bytes: int


def create(
    store: Store,
    name: str,
    directory: Path,
    message: str = "",
    *,
    defaults: bool = True,
    options: Options | None = None,
) -> Created:
    """Record the tree under `directory`. `defaults`: leave out the well-known directories.

    Raises Invalid (the name), NotFound (the directory), Failed (an unreadable file), Refused
    (over the limit, or the store itself); then nothing is visible.
    """
    checkpoint.check_name(name)
    how, report = options or Options(), Report()
    ignore = rules(store, directory, report, defaults=defaults)
    known = index(store, directory, ignore, ",".join(sorted(how.preserve)))
    with store.batch() as batch:
        previous = checkpoint.latest(store, name)
        root = walker.build(batch, directory, ignore, report, options=how, known=known)
        batch.commit()  # the tree is durable and comparable; no head leads to it yet
        changes, paths = _changes(store, previous, root.hash, report)
        stats = {"files": report.files, "bytes": report.bytes, **changes}
        content = Content(root.hash, message, stats, paths)
        made = checkpoint.put(batch, name, previous, content)
    if known is not None:
        known.save()
    return Created(made, report, stats, batch.new_bytes)


def rules(store: Store, directory: Path, report: Report, *, defaults: bool = True) -> Ignore:
    """What of a directory is not recorded by its own rules, and by ours (`leave_out`).

    Raises NotFound, Failed, Invalid as `Ignore.of`, and Refused.
    """
    ignore = Ignore.of(directory, defaults=defaults)
    leave_out(store, directory, ignore, report)
    return ignore


def leave_out(store: Store, directory: Path, ignore: Ignore, report: Report) -> None:
    """Leave out, whatever the rules say, the store, which would hold itself, and mounts of a
    store, which hold all that was ever recorded. Raises Refused for the store itself."""
    top = directory.resolve()
    ours = {one.point: "a mount of casfs" for one in mounts.mounts() if one.type == MOUNT}
    if store.root is not None:
        ours[store.root.resolve()] = "the store"
        if store.root.resolve() == top:
            raise Refused(f"{directory} is the store itself; record what is to be in it")
    inside = {path: what for path, what in ours.items() if top in path.parents}
    for path, what in inside.items():
        report.warnings.append(f"{printable(os.fsencode(path))}: left out, it is {what}")
    ignore.excluded |= {os.fsencode(path.relative_to(top)) for path in inside}


def index(store: Store, directory: Path, ignore: Ignore, way: str) -> Index | None:
    """What is known of the directory, recorded in just this way; None for a store in memory."""
    if store.root is None or not directory.is_dir():
        return None
    return Index.load(store.root, directory, f"{ignore.fingerprint}/{way}")


def _changes(
    store: Store, previous: Checkpoint | None, new: str, report: Report
) -> tuple[dict[str, int], list[str]]:
    """As `checkpoint.compare`; where nothing was before, all is new: no need to walk it all."""
    if previous is not None:
        return checkpoint.compare(store, previous.root, new)
    first = islice(tree.shown(store, tree.diff(store, None, new)), MAX_CHANGED)
    counts = {"added": report.entries, "modified": 0, "deleted": 0}
    return counts, [printable(change.path) for change in first]
