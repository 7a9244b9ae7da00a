"""Pull: refs of a remote, and all that they reach and this store lacks.

A remote is hostile: each member is verified against its hash, each node against its schema and its
references, each ref as an import verifies a head. First blobs are stored, then nodes after their
references; then the heads move, all or none. What is stored is not fetched again by another pull.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field

from casfs import removals, threads
from casfs.backend.capabilities import SharedByMachines
from casfs.backend.protocols import Head, HeadName, targets
from casfs.errors import Conflict, Corrupt, Invalid, Refused
from casfs.maintenance.head_kinds import (
    WORKFLOWS,
    allowed_types,
    mismatch,
    untrusted,
    without_processes,
)
from casfs.maintenance.purge import purge_all
from casfs.nodes.registry import HEADS as SCHEMAS
from casfs.remotes import heads, purged
from casfs.remotes.fetch import Begin, Missing
from casfs.remotes.remote import Remote
from casfs.removals import label
from casfs.store import Store


@dataclass(slots=True)
class Pulled:
    """`refs`: that moved here; `skipped`: that this casfs does not know; `bytes`: of blobs;
    `purged`: number of contents that were purged in the remote, and have a tombstone here now;
    `kept`: hashes of those whose content is here, and stays. `replaced`: workflows that moved here,
    with the hash before; `shipped`: that stay, as casfs itself has put them here."""

    refs: list[str] = field(default_factory=list)
    unchanged: int = 0
    skipped: list[str] = field(default_factory=list)
    nodes: int = 0
    blobs: int = 0
    bytes: int = 0
    purged: int = 0
    kept: list[str] = field(default_factory=list)
    replaced: dict[str, str] = field(default_factory=dict)
    shipped: list[str] = field(default_factory=list)


def pull(
    store: Store,
    remote: Remote,
    texts: list[str],
    *,
    lazy: bool,
    begin: Begin,
    purge: bool = False,
    replace: bool = False,
) -> Pulled:
    """Pulls the refs that texts name (`heads.of_remote`). `purge`: what was purged there and is
    here is purged as well. `replace`: workflows of this store give way, too. Raises Conflict,
    naming one that has moved here as well: then none moves; Corrupt, NotFound, Refused."""
    if lazy and isinstance(store.backend, SharedByMachines):
        raise Refused("a shared store keeps all content itself; pull without --lazy")
    remote.catch_up()
    remote.load_indexes()
    done, moves = Pulled(), {}
    refs = purged.named(remote.state.refs())
    for name in heads.of_remote(refs, texts):
        try:
            head = heads.parsed(name, refs[name])
        except Invalid as error:
            if texts:
                raise Corrupt(f"the remote {remote.name}: {error}") from None
            done.skipped.append(name)
            continue
        if _is_known(store, HeadName(name), head):
            done.unchanged += 1
        elif not texts and not replace and _is_shipped(store, HeadName(name)):
            done.shipped.append(name)
        else:
            moves[HeadName(name)] = head
    with closing(Missing(store, remote, whole=bool(moves) and not texts)) as missing:
        missing.find({hash for head in moves.values() for hash in targets(head)})
        missing.add_remote(all=not lazy and not texts)
        kept = purged.kept_here(store, missing.purged)
        gone = [missing.purged[hash] for hash in kept if purge]
        missing.find({one.substitute for one in gone if one.substitute})
        done.nodes, done.blobs, done.bytes = missing.totals()
        if lazy:
            missing.adopt_blobs()
        else:
            missing.store_blobs(begin)
        missing.store_nodes()
        if gone:
            purged.check_substitutes(store, gone)
            purge_all(store, gone)
        done.purged = missing.marked + len(gone)
        done.kept = [] if purge else kept
    replaced: dict[HeadName, tuple[Head, Head]] = {}
    with store.batch() as batch:
        known = {name for name, _ in store.heads.list(threads.HEADS)} | moves.keys()
        for name, head in moves.items():
            old = _checked(store, remote.name, name, head, replace=replace)
            new = untrusted(name, without_processes(name, head, known), remote.name, old)
            if old is not None and name.startswith(WORKFLOWS):
                replaced[name] = old, new
            else:
                batch.swap(name, old, new)
        for name, head in missing.local.items():
            if store.node(head.hash).type not in allowed_types(name):
                raise Corrupt(f"{name} of the remote {remote.name} leads to no tree")
            batch.swap(name, None, head)
        removals.replace(store, batch, replaced)
    done.refs = sorted(moves)
    done.replaced = {name: old.hash for name, (old, _) in replaced.items()}
    return done


def _is_known(store: Store, name: HeadName, head: Head) -> bool:
    here = store.heads.get(name)
    if here is None:
        return False
    if name.startswith(WORKFLOWS) and here.record.get("agents") != head.record.get("agents"):
        return False
    return name.startswith(SCHEMAS) or heads.is_ahead(store, name, here.hash, head.hash)


def _is_shipped(store: Store, name: HeadName) -> bool:
    here = store.heads.get(name)
    return name.startswith(WORKFLOWS) and here is not None and bool(here.record.get("builtin"))


def _checked(store: Store, remote: str, name: HeadName, new: Head, *, replace: bool) -> Head | None:
    """Returns the head here, which `new` may replace. Raises Conflict, Corrupt."""
    if store.node(new.hash).type not in allowed_types(name):
        raise Corrupt(f"{name} of the remote {remote} leads to a node of another type")
    if fault := mismatch(name, new, store.get(new.hash)):
        raise Corrupt(f"{name} of the remote {remote}: {fault}")
    old = store.heads.get(name)
    if old is None:
        return None
    if old.record.get("status") == threads.RUNNING:
        raise Conflict(
            f"{label(name)} runs here; pull when it is suspended or ended; no head moved"
        )
    if name.startswith(WORKFLOWS):
        # Only what this store has noted counts: `previous` of a ref is the remote's own word.
        if old.record.get("origin") != remote and not replace:
            raise Conflict(
                f"{label(name)} has moved in {remote}, and this store's own is another; no head"
                f" moved. `casfs pull {remote} {name} --replace` takes theirs (`casfs undo` brings"
                " yours back)"
            )
        return old
    if not heads.is_ahead(store, name, new.hash, old.hash):
        raise Conflict(
            f"{label(name)} has moved here and in {remote}; no head moved. To take theirs, remove"
            " yours (`casfs undo` brings it back) and pull again"
        )
    if _players(store, name, old) != _players(store, name, new):
        raise Conflict(
            f"{label(name)} has other agents or rules in {remote}; no head moved. To take theirs,"
            " remove yours (`casfs undo` brings it back) and pull again"
        )
    return old


def _players(store: Store, name: HeadName, head: Head) -> object:
    """Returns what decides which programs the next steps of a thread run; None for no thread."""
    if not name.startswith(threads.HEADS):
        return None
    thread = threads.of_head(name, head)
    return threads.agents(store, thread), threads.workflow(store, thread)
