"""Creates checkpoints: of a directory, or of a state that is stored already.

Only blobs and directory nodes that the store does not have are stored: a checkpoint costs
what changed (seed 004, SPEC-08.14).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from casfs.backend.protocols import Head
from casfs.checkpoints import checkpoint
from casfs.checkpoints.checkpoint import Checkpoint
from casfs.digest import NodeHash, TreeHash
from casfs.errors import Conflict
from casfs.store.nodes.directory import File
from casfs.store.store import Store
from casfs.store.write_batch import Batch
from casfs.system.clock import moment_id, now_ms
from casfs.system.paths import printable
from casfs.trees import recorded_state, tree
from casfs.trees.recorded_state import RecordedState
from casfs.trees.restore import applied_steps
from casfs.trees.restore.target import Target, record_state
from casfs.trees.snapshot import exclusions, policy, working_tree
from casfs.trees.snapshot.report import SnapshotOptions, SnapshotReport

MAX_CHANGED_PATHS = 1000  # that a checkpoint node names
MAX_RECORD_MESSAGE = 500  # characters; a head's record holds at most 4 KiB
COUNTERS = {"A": "added", "M": "modified", "T": "modified", "D": "deleted"}
Comparison = tuple[dict[str, int], list[str]]  # counts of changes, and the first paths


class Content(NamedTuple):
    """Payload of a checkpoint. `stats` and `paths`: the changes since the previous one;
    `applied`: steps that the directory got files from."""

    state: RecordedState
    message: str
    stats: Mapping[str, int]
    paths: list[str]
    applied: Sequence[NodeHash] = ()


@dataclass(slots=True)
class Created:
    """A new checkpoint of a directory. `new_bytes`: stored by it alone; `skipped`: nothing had
    changed, so it is the previous one."""

    checkpoint: Checkpoint
    report: SnapshotReport
    stats: dict[str, int]
    new_bytes: int
    skipped: bool = False


class CreateOptions(NamedTuple):
    """`defaults`: leave out derived directories; `patterns`: what else to leave out; `snapshot`:
    how files are read; `skip_if_unchanged`: return the previous checkpoint where it has the same
    trees; `with_derived`: keep derived directories, in the local tree; `allow_secret`: scan no
    file."""

    defaults: bool = True
    patterns: Sequence[str] = ()
    snapshot: SnapshotOptions | None = None
    skip_if_unchanged: bool = False
    with_derived: bool = False
    allow_secret: bool = False


DEFAULTS = CreateOptions()


def create(
    store: Store,
    name: str,
    directory: Path,
    message: str = "",
    options: CreateOptions = DEFAULTS,
) -> Created:
    """Record what is in `directory`. Raises Invalid (the name, a pattern), NotFound (the
    directory), Failed, Refused (over the limit, or the store itself); then nothing is visible. A
    file that cannot be read is left out, and in the report."""
    checkpoint.check_name(name)
    snapshot_options = options.snapshot or SnapshotOptions()
    report = SnapshotReport()
    if not options.allow_secret:
        snapshot_options.scanner = policy.load(store).scanner()
    # `.git` is left out even with the derived directories: git has what is in it.
    rules = exclusions.ignore_rules(
        store,
        directory,
        report,
        defaults=options.defaults,
        patterns=options.patterns,
        keeps_derived=options.with_derived,
        keeps_git=False,
    )
    began_ms = now_ms()
    # The steps that gave the directory files since its last checkpoint of this name. Leaving the
    # block notes that this one carries them, but for those of after `began_ms`: the look may have
    # missed what they wrote, so the next checkpoint carries them, too.
    steps = applied_steps.carried(store, directory, name=name, looked_at=began_ms)
    # The batch ends first: steps count as carried only once the checkpoint is committed.
    created: Checkpoint | None = None
    try:
        with steps as applied, store.batch() as batch:
            previous = checkpoint.latest(store, name)
            base = None if previous is None else checkpoint.recorded(store, previous)
            known = Target(store, directory).restored_state()
            state = working_tree.snapshot(
                store,
                batch,
                directory=directory,
                rules=rules,
                report=report,
                options=snapshot_options,
                earlier=working_tree.Earlier(base=base, known=known),
            )
            stats, paths = _statistics(store, previous, state, report)
            skipped = options.skip_if_unchanged and state.is_equal(base)
            content = Content(state, message, stats=stats, paths=paths, applied=applied)
            if skipped and previous:
                created = previous
            else:
                created = put(batch, name, previous=previous, content=content)
    except Conflict:
        # Another thread or process has recorded an equal tree, after the same one, in the same
        # millisecond: this is the checkpoint that was asked for.
        if created is None or not checkpoint.is_recorded(store, created):
            raise
    # After the commit: the note must not name a checkpoint that was never made.
    record_state(store, directory, state=state, name=f"{created.name}@{created.id}")
    return Created(created, report, stats=stats, new_bytes=batch.new_bytes, skipped=skipped)


def _statistics(
    store: Store, previous: Checkpoint | None, state: RecordedState, report: SnapshotReport
) -> Comparison:
    """Returns the statistics of the work, where the report is of the whole directory, and the first
    paths that have changed."""
    local = recorded_state.local_totals(store, state)
    if previous is not None:
        changes, paths = compare(store, previous.root, state.tree)
    else:  # all is new: the tree need not be walked
        changes = {"added": report.entries - local.entries, "modified": 0, "deleted": 0}
        additions = tree.changes(store, old=None, new=state.tree)
        paths = [printable(change.path) for change in islice(additions, MAX_CHANGED_PATHS)]
    files = report.files - local.files
    size = report.bytes - local.bytes
    return {"files": files, "bytes": size, **changes}, paths


def create_of_state(
    store: Store,
    name: str,
    state: RecordedState,
    message: str = "",
    batch: Batch | None = None,
    applied: Sequence[NodeHash] = (),
) -> Checkpoint:
    """Record a stored state under `name`; when `batch` commits, if there is one. Raises Invalid
    (the name), NotFound."""
    checkpoint.check_name(name)
    root = state.tree
    # No report counts this state: it is of a step or revision.
    files = [entry for _, entry in tree.walk(store, root) if isinstance(entry, File)]
    previous = checkpoint.latest(store, name)
    counts, paths = _compare_with(store, previous, root)
    size = sum(file.digest.size_bytes for file in files)
    stats = {"files": len(files), "bytes": size, **counts}
    content = Content(state, message, stats=stats, paths=paths, applied=applied)
    with nullcontext(batch) if batch else store.batch() as writing:
        return put(writing, name, previous=previous, content=content)


def create_from_base(
    store: Store,
    batch: Batch,
    name: str,
    base: NodeHash,
    state: RecordedState,
    message: str,
    applied: Sequence[NodeHash] = (),
) -> Checkpoint:
    """Record a stored state under `name`; the caller commits. `base`: the checkpoint node that the
    work began from, not always the latest of the name. The statistics are computed from those of
    `base` and the diff, without a walk of the tree."""
    root = state.tree
    origin = store.node(base, "checkpoint").payload
    # The changes are those since the latest of the name, as of every checkpoint, not since `base`.
    previous = checkpoint.latest(store, name)
    counts, paths = _compare_with(store, previous, root)
    files = origin["stats"]["files"]
    size = origin["stats"]["bytes"]
    for change in tree.diff(store, origin["root"], root):
        for entry, sign in ((change.old, -1), (change.new, 1)):
            if isinstance(entry, File):
                files += sign
                size += sign * entry.digest.size_bytes
    stats = {"files": files, "bytes": size, **counts}
    content = Content(state, message, stats=stats, paths=paths, applied=applied)
    return put(batch, name, previous=previous, content=content)


def put(batch: Batch, name: str, previous: Checkpoint | None, content: Content) -> Checkpoint:
    """Put the checkpoint node of a stored tree and its head; the caller commits."""
    root = content.state.tree
    message = content.message
    created_at = now_ms()
    previous_hash = None
    if previous is not None:  # later than the previous one even when the clock went back
        created_at = max(created_at, previous.created_at + 1)
        previous_hash = previous.hash
    payload: dict[str, Any] = {"root": root, "previous": previous_hash}
    payload |= {"name": name, "createdAt": created_at, "message": message}
    payload |= {"stats": dict(content.stats), "changed_files": content.paths}
    if content.applied:
        payload["applied"] = list(content.applied)
    node = recorded_state.put_node(batch, "checkpoint", payload=payload, state=content.state)
    id = moment_id(created_at, node.hash)
    # What a listing shows, so that it loads no node; the node has the whole message.
    record = {"root": root, "createdAt": created_at, "message": message[:MAX_RECORD_MESSAGE]}
    # Also here, for the mount, which dates the files of a checkpoint by its head.
    if content.state.times is not None:
        record["times"] = content.state.times
    # A new head: of two checkpoints of a name at once both stay, with the same `previous`.
    batch.swap(checkpoint.head_name(name, id), None, Head(node.hash, record))
    return Checkpoint(name, id, hash=node.hash, root=root, created_at=created_at, message=message)


def _compare_with(store: Store, previous: Checkpoint | None, root: TreeHash) -> Comparison:
    return compare(store, previous.root if previous else None, root)


def compare(store: Store, old: TreeHash | None, new: TreeHash) -> Comparison:
    """Returns the counts of changes between two trees, and the first MAX_CHANGED_PATHS paths."""
    counts = dict.fromkeys(("added", "modified", "deleted"), 0)
    paths: list[str] = []
    # To the end, since all changes are counted, though only the first are named.
    for change in tree.changes(store, old, new):
        counts[COUNTERS[change.letter]] += 1
        if len(paths) < MAX_CHANGED_PATHS:
            paths.append(printable(change.path))
    return counts, paths
