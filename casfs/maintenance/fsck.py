"""The integrity check: reads everything and trusts no cached result.

Checked: the SQLite file; every blob's bytes against its name; every node's canonical form,
schema, refs and their types; steps' indices and threads' depths against what they follow;
every head. Each fault lists the heads it affects: the threads, checkpoints, workflows and
schemas whose closure contains it. The checks of one blob are in `casfs.maintenance.blob_check`.

Damaged bytes are moved to `quarantine/`: they are never served, and a later put of the right
bytes repairs the store. Intact bytes that lost their type are moved as well, and get it back
when they are put again. A quarantined blob that is reachable counts as missing in every run
until it is back. Memory is bounded by the number of faults.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from casfs.backend.derived import in_remote, repairable
from casfs.backend.protocols import BlobInfo, DamagedHead, Head, HeadName, Total, targets
from casfs.checkpoints import revisions
from casfs.errors import CasfsError
from casfs.exchange.portable_heads import allowed_types, mismatch
from casfs.history import path_index
from casfs.maintenance.blob_check import (
    LOST_TYPE,
    NO_TOMBSTONE,
    Fault,
    check_blob,
    has_type,
    lost_type,
)
from casfs.native import images
from casfs.store import local_trees, referrers, tombstones
from casfs.store.nodes import head_kinds
from casfs.store.nodes.ref_collectors import Ref
from casfs.store.store import Store
from casfs.store.tombstones import Tombstone
from casfs.system.clock import now_ms

Progress = Callable[[int, int], None]  # blobs and bytes so far
NOT_PURGED = "not purged"
BROKEN = ("corrupt", "bad node", "missing")  # kinds of faults of a damaged blob


@dataclass(slots=True)
class Report:
    """`remote`: blobs that are in a remote only, and were not read."""

    blobs: int = 0
    remote: int = 0
    nodes: int = 0
    bytes: int = 0
    faults: list[Fault] = field(default_factory=list)
    quarantined: list[str] = field(default_factory=list)


def check(
    store: Store,
    *,
    quarantine: bool = True,
    progress: Progress = lambda blobs, bytes: None,
    sample: float = 1,
) -> Report:
    """Checks everything; `progress` gets what was read so far. `sample`: the share of the blobs
    that is read, at random; below 1 the store's own files are not looked at."""
    report = Report()
    repairs = repairable(store.blobs)
    with _as_fault(report):
        lines = repairs.faults() if sample == 1 else ()
        report.faults += [Fault("store", hash=None, message=line) for line in lines]
    with _as_fault(report):
        for _, hash, info in store.blobs.iterate():
            if sample < 1 and random.random() >= sample:
                continue
            report.blobs += 1
            report.bytes += info.size
            report.nodes += info.type is not None
            report.faults += check_blob(store, hash, info)
            progress(report.blobs, report.bytes)
        report.remote = sum(1 for _ in in_remote(store.blobs))
    with _as_fault(report):
        report.faults += _check_heads(store)
    _merge_missing(report)
    with _as_fault(report):
        _fill_affected_heads(store, report)
    if quarantine:
        _quarantine(store, report)
        _complete_purges(store, report)
    referrers.remove(store)
    path_index.remove(store)
    return report


@contextmanager
def _as_fault(report: Report) -> Iterator[None]:
    """Turns an error of the SQLite file itself into a fault, so that the check goes on."""
    try:
        yield
    except CasfsError as error:
        message = f"check is incomplete: {error.__cause__ or error}"
        report.faults.append(Fault("store", hash=None, message=message))


def _check_heads(store: Store) -> Iterator[Fault]:
    for tombstone in tombstones.parted(store):
        message = f"{tombstone.hash} has a tombstone, and its content is there"
        yield Fault(NOT_PURGED, hash=None, message=message)
    for name, head in store.heads.list():
        fault = head_kinds.fault(name, head) or _mismatch(store, name, head)
        if isinstance(head, DamagedHead):
            yield Fault("damaged head", hash=None, message=f"head {name!r}: {fault}", takes=[name])
            continue
        wanted = dict.fromkeys(targets(head))
        known = store.blobs.info(wanted.keys())
        for hash in wanted if not _may_dangle(store, name) else ():
            if hash not in known and store.heads.get(name) == head:
                message = f"head {name} leads to {hash}, which is missing"
                yield Fault("missing", hash, message=message, takes=[name])
        names = allowed_types(name)
        if names and head.hash in known and not has_type(store, known[head.hash], names):
            yield _wrong_head(store, name, hash=head.hash, info=known[head.hash], names=names)
        elif fault:
            yield Fault("damaged head", hash=None, message=f"head {name!r}: {fault}", takes=[name])


def _may_dangle(store: Store, name: HeadName) -> bool:
    """Returns whether the head is of a local tree that gc may have deleted: that of a turn."""
    if not name.startswith(local_trees.HEADS):
        return False
    try:
        return store.node(local_trees.node_of(name)).type == revisions.TURN
    except CasfsError:  # a fault of its own
        return False


def _mismatch(store: Store, name: HeadName, head: Head) -> str | None:
    try:
        return mismatch(name, head, store.get(head.hash))
    except CasfsError:  # a fault of its own
        return None


def _wrong_head(
    store: Store, name: HeadName, hash: str, info: BlobInfo, names: tuple[str, ...]
) -> Fault:
    if lost_type(store, hash, info=info, names=names):
        return Fault(
            LOST_TYPE, hash, message=f"head {name}: {hash} has lost its type", takes=[name]
        )
    return Fault(
        "wrong head",
        hash=None,
        message=f"head {name}: {hash} is not a {' or '.join(names)}",
        takes=[name],
    )


def _merge_missing(report: Report) -> None:
    """Merges the faults of one missing blob, however many nodes refer to it."""
    seen: dict[tuple[str, str | None, str], Fault] = {}
    for fault in report.faults:
        key = (fault.kind, fault.hash, "" if fault.hash else fault.message)
        if key in seen:
            seen[key].takes += fault.takes
        else:
            seen[key] = fault
    report.faults = list(seen.values())


def _fill_affected_heads(store: Store, report: Report) -> None:
    """Fills in `takes`, by passes over the store in order of arrival until a fixed point.

    A node arrives after its refs, so one pass usually carries a fault up to the heads; only
    repairs and repeated puts break that order.
    """
    causes = {fault.hash: {index} for index, fault in enumerate(report.faults) if fault.hash}
    if not causes:
        return
    local = {
        local_trees.node_of(name): targets(head)
        for name, head in store.heads.list(local_trees.HEADS)
    }
    changed = True
    while changed:
        changed = False
        for _, hash, info in store.blobs.iterate():
            if info.type is None:
                continue
            below = {info.type, *(ref.hash for ref in _refs(store, hash)), *local.get(hash, ())}
            inherited = set().union(*(causes.get(ref, ()) for ref in below))
            if not inherited <= causes.get(hash, set()):
                causes[hash] = causes.get(hash, set()) | inherited
                changed = True
    for name, head in store.heads.list():
        if name.startswith(local_trees.HEADS):
            continue  # a fault in there is one of its node
        hit = set().union(*(causes.get(hash, ()) for hash in targets(head)))
        for fault_index in sorted(hit):
            if name not in report.faults[fault_index].takes:
                report.faults[fault_index].takes.append(name)


def _refs(store: Store, hash: str) -> Iterable[Ref]:
    try:
        return store.refs(store.node(hash))
    except CasfsError:
        return ()


def _quarantine(store: Store, report: Report) -> None:
    for fault in report.faults:
        test = _is_untyped if fault.kind == LOST_TYPE else _is_broken
        if fault.hash and test(store, fault.hash):
            repairable(store.blobs).quarantine(fault.hash)
            report.quarantined.append(fault.hash)
    if report.quarantined:
        images.evict(store, lambda total: True, Total())  # they may show the damaged bytes


def _complete_purges(store: Store, report: Report) -> None:
    """Makes the missing tombstones, and takes away what has one: a later run finds no fault."""
    for fault in report.faults:
        info = store.blobs.info([fault.hash]).get(fault.hash) if fault.hash else None
        if fault.kind == NO_TOMBSTONE and info is not None and fault.hash is not None:
            tombstone = Tombstone(
                fault.hash, info.size, purged_at=now_ms(), why="", substitute=info.substitute
            )
            tombstones.add(store, [tombstone])
    if any(fault.kind == NOT_PURGED for fault in report.faults):
        tombstones.complete(store)


def _is_broken(store: Store, hash: str) -> bool:
    """Is a blob itself still damaged? It may have been put back meanwhile, and a blob that
    merely has another type than a ref requires is intact."""
    info = store.blobs.info([hash]).get(hash)
    faults = () if info is None else check_blob(store, hash, info)
    return any(fault.hash == hash and fault.kind in BROKEN for fault in faults)


def _is_untyped(store: Store, hash: str) -> bool:
    info = store.blobs.info([hash]).get(hash)
    return info is not None and info.type is None
