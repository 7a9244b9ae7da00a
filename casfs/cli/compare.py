"""What `diff` and `status` compare: revisions, and directories as they are now.

Nothing of a directory is stored: it is recorded in a view of the store. Without a revision beside
it, it is compared with the tree that it, or the nearest directory above it, is known to hold.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from casfs.checkpoints import checkpoint
from casfs.checkpoints.checkpoint import Checkpoint
from casfs.checkpoints.revisions import resolve, resolve_tree
from casfs.cli.output import warn
from casfs.digest import TreeHash
from casfs.errors import NotFound
from casfs.store.store import Store
from casfs.system.home import refuse_home_or_root
from casfs.system.paths import printable
from casfs.trees.recorded_state import RecordedState
from casfs.trees.scratch_store import ScratchStore
from casfs.workspaces import directories
from casfs.workspaces.directories import KnownDirectory

HERE = "."
PATH_BEGINNINGS = ("/", "./", "../")
MAX_BYTES = 20 << 30  # of a directory


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two states, in `store`; `paths`: only these of them, or all. `directory`: which the second is
    of; `known`: what it is known to hold."""

    store: Store
    old: RecordedState
    new: RecordedState
    paths: tuple[bytes, ...] = ()
    directory: Path | None = None
    known: KnownDirectory | None = None


def comparison(store: Store, sides: Sequence[str], paths: Sequence[str] = ()) -> Comparison:
    """Resolves [A] [B], each a revision or a directory. Raises NotFound, Refused."""
    wanted = tuple(map(os.fsencode, paths))
    scratch = ScratchStore(store)
    if len(sides) < 2:
        side = sides[0] if sides else HERE
        if sides and not is_directory(store, side):
            return against(store, HERE, revision=side, paths=wanted)
        return against(store, side, revision=None, paths=wanted)
    states = [None if is_directory(store, side) else resolve(store, side).state for side in sides]
    base = states[0] or states[1]
    old, new = (
        state or _record(scratch, Path(side), known=_at(store, Path(side)), base=base)
        for side, state in zip(sides, states, strict=True)
    )
    return Comparison(scratch, old, new=new, paths=wanted)


def against(
    store: Store, directory: str, revision: str | None, paths: tuple[bytes, ...] = ()
) -> Comparison:
    """Compares a directory with a revision, or with what it is known to hold; `paths` are relative
    to it. Raises NotFound, Refused."""
    directory_path = Path(directory)
    if not directory_path.is_dir():
        raise NotFound(f"no directory {directory}")
    known = directories.find(store, directory_path)
    if revision is not None:
        base = resolve(store, revision).state
    elif known is not None:
        base = known.state
    else:
        raise NotFound(
            f"{directory} was not recorded or restored by casfs before; use `casfs checkpoint"
            " create`, or name a revision to compare it with"
        )
    if known is not None:
        directory_path = known.path
        if known.below:
            paths = tuple(b"/".join([known.below, path]) for path in paths or (b"",))
    scratch = ScratchStore(store)
    return Comparison(
        store=scratch,
        old=base,
        new=_record(scratch, directory_path, known=known, base=base),
        paths=paths,
        directory=directory_path,
        known=known,
    )


def name_of(store: Store, root: TreeHash, known: KnownDirectory | None = None) -> str | None:
    """Returns a checkpoint of a tree, as a revision: the one that the directory `known` was opened
    from or recorded as, else the newest."""
    record = known.workspace.record if known and known.workspace else {}

    def rank(candidate: Checkpoint) -> tuple[bool, bool, str]:
        own = known is not None and known.name == f"{candidate.name}@{candidate.id}"
        own = own or candidate.hash == record.get("checkpoint")
        return (
            own,
            candidate.name == record.get("name"),
            candidate.id,
        )

    candidates = [candidate for candidate in checkpoint.listing(store) if candidate.root == root]
    best = max(candidates, key=rank, default=None)
    return None if best is None else f"{best.name}@{best.id}"


def is_directory(store: Store, text: str) -> bool:
    """Returns whether a text stands for a directory: it is written as a path, or it is the name of
    a directory and of no revision."""
    if text in (HERE, "..") or text.startswith(PATH_BEGINNINGS):
        return True
    try:
        resolve_tree(store, text)
    except NotFound:
        return Path(text).is_dir()
    return False


def _at(store: Store, directory: Path) -> KnownDirectory | None:
    """Returns what this directory, and not one above it, is known to hold."""
    known = directories.find(store, directory)
    return None if known is None or known.below else known


def _record(
    store: ScratchStore, directory: Path, known: KnownDirectory | None, base: RecordedState | None
) -> RecordedState:
    if known is None:
        refuse_home_or_root(directory, force=None)
    from casfs.cli.progress import progress
    from casfs.trees.snapshot.report import SnapshotOptions, SnapshotReport

    report = SnapshotReport()
    with progress("comparing", "files") as update:
        options = SnapshotOptions(limit=MAX_BYTES, progress=update)
        tree = None if base is None else base.tree
        state = directories.record(
            store, directory, known=known, base=tree, report=report, options=options
        )
    for warning in report.warnings:
        warn(warning)
    if report.unreadable:
        from casfs.cli.snapshot_options import print_unreadable

        print_unreadable(report)
    if report.purged and base is not None:
        state = state._replace(
            tree=_with_purged(store, state.tree, base=base.tree, purged=report.purged)
        )
    store.looked_at(directory, state.full)
    store.looked_at(directory, state.tree)
    return state


def _with_purged(
    store: ScratchStore, root: TreeHash, base: TreeHash, purged: Mapping[bytes, str]
) -> TreeHash:
    """Returns the tree of a directory with the entries that `base` has of files that are there,
    but whose content was purged: it was not recorded, and is not deleted."""
    from casfs.trees import edit, tree

    recorded = {path: tombstone.hash for path, tombstone in tree.missing(store, base)}
    for path, hash in purged.items():
        if recorded.get(path) != hash:
            warn(f"{printable(path)}: its content was purged; not compared")
    entries = {path: tree.find(store, base, path) for path in purged}
    kept = {path: entry for path, entry in entries.items() if entry is not None}
    with store.batch() as batch:
        return edit.with_entries(store, batch, root=root, changes=kept, like=base).hash
