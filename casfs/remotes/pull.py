"""Pull: refs of a remote, and all that they reach and this store lacks.

A remote is hostile: each member is verified against its hash, each node against its schema and its
references, each ref as an import verifies a head. First blobs are stored, then nodes after their
references; then the heads move, all or none, as `casfs.exchange.arrivals` says. What is stored is
not fetched again by another pull.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, field

from casfs import config
from casfs.backend.capabilities import SharedByMachines
from casfs.backend.protocols import Head, HeadName, targets
from casfs.checkpoints import checkpoint
from casfs.errors import Conflict, Corrupt, Invalid, Refused
from casfs.exchange import arrivals
from casfs.exchange.arrivals import Asks, Names, Origin, Place
from casfs.exchange.portable_heads import allowed_types, mismatch, without_processes
from casfs.remotes import heads, purged
from casfs.remotes.fetch import Begin, Missing
from casfs.remotes.remote import Remote
from casfs.store import local_trees, removals, tombstones
from casfs.store.store import Store
from casfs.threads import threads


@dataclass(slots=True)
class Pulled:
    """`refs`: names here that are new or have moved; `skipped`: that this casfs does not know;
    `bytes`: of blobs; `purged`: number of contents that were purged in the remote, and have a
    tombstone here now; `kept`: hashes of those whose content is here, and stays. `replaced`: names
    that have moved, with the hash before; of checkpoints the newest. `renamed`: names there, with
    those here; `stayed`: names that did not move, with why."""

    refs: list[str] = field(default_factory=list)
    unchanged: int = 0
    skipped: list[str] = field(default_factory=list)
    nodes: int = 0
    blobs: int = 0
    bytes: int = 0
    purged: int = 0
    kept: list[str] = field(default_factory=list)
    replaced: dict[str, str] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)
    stayed: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PullOptions:
    """`purge`: what was purged there and is here is purged as well. `replace`: names of this store
    give way; `asks` whether a thread moves; `with_local`: local trees, too."""

    purge: bool = False
    replace: bool = False
    with_local: bool = False
    asks: Asks | None = None


DEFAULTS = PullOptions()


def pull(
    store: Store,
    remote: Remote,
    texts: list[str],
    *,
    lazy: bool,
    begin: Begin,
    options: PullOptions = DEFAULTS,
) -> Pulled:
    """Pulls the refs that texts name (`heads.of_remote`), all for none. A name that cannot move
    stays; where texts are given, none moves then. Raises Conflict, Invalid (such a name), Corrupt,
    NotFound, Refused."""
    if lazy and isinstance(store.backend, SharedByMachines):
        raise Refused("a shared store keeps all content itself; pull without --lazy")
    remote.catch_up()
    remote.load_indexes()
    done = Pulled()
    origin = _origin(store, remote, options)
    wanted = _wanted(remote, texts, done)
    places = _placed(Names(store, origin), wanted, done, is_strict=bool(texts))
    with closing(Missing(store, remote, whole=bool(places) and not texts)) as missing:
        missing.find({hash for name in places for hash in targets(wanted[name])})
        missing.add_remote(all=not lazy and not texts)
        kept = purged.kept_here(store, missing.purged)
        gone = [missing.purged[hash] for hash in kept if options.purge]
        missing.find({tombstone.substitute for tombstone in gone if tombstone.substitute})
        done.nodes, done.blobs, done.bytes = missing.totals()
        if lazy:
            missing.adopt_blobs()
        else:
            missing.store_blobs(begin)
        missing.store_nodes()
        if gone:
            purged.check_substitutes(store, gone)
            purged.purge(store, gone)
        done.purged = missing.marked + len(gone)
        done.kept = [] if options.purge else kept
    for name in places:
        _check(store, remote.name, name=name, new=wanted[name])
    names = Names(store, origin)  # as the store is now, after a long download
    places = _placed(
        names,
        {name: wanted[name] for name in places},
        done=done,
        is_strict=bool(texts),
        is_stored=True,
    )
    replaced: dict[HeadName, tuple[Head, Head]] = {}
    is_redacted = False
    newest = _newest(store, [arrival.name for arrival in places.values()])
    with store.batch() as batch:
        known = {name for name, _ in store.heads.list(threads.HEADS)} | places.keys()
        for name, destination in places.items():
            new = names.record(name, destination, without_processes(name, wanted[name], known))
            if destination.old is None:
                batch.swap(destination.name, None, new)
            elif arrivals.is_redacted_since(
                destination.old, new
            ):  # what was purged no undo brings back
                batch.swap(destination.name, destination.old, new)
                is_redacted = True
            else:
                replaced[destination.name] = destination.old, new
        removals.replace(store, batch, replaced)
    if is_redacted:
        tombstones.purgeable(store).erase_remains(lambda _: True)  # of the old records
    done.refs = sorted(arrival.name for arrival in places.values())
    done.renamed = {name: arrival.name for name, arrival in places.items() if name != arrival.name}
    done.replaced = {name: old.hash for name, (old, _) in replaced.items()} | newest
    if options.with_local:
        _pull_local(store, remote, begin)
    return done


def _pull_local(store: Store, remote: Remote, begin: Begin) -> None:
    """Takes the local trees that a remote has of nodes which are here, and have none. They say what
    a restore of the node writes: so a person asks for them."""
    refs = remote.state.refs(local_trees.HEADS)
    nodes = store.blobs.info([local_trees.node_of(HeadName(name)) for name in refs])
    names = [name for name in map(local_trees.head_name, nodes) if store.heads.get(name) is None]
    local = {name: heads.parsed(name, refs[name]) for name in names}
    with closing(Missing(store.local_writes(), remote, whole=False)) as missing:
        missing.find({hash for head in local.values() for hash in targets(head)})
        missing.store_blobs(begin)
        missing.store_nodes()
    for name, head in local.items():
        _check(store, remote.name, name=name, new=head)
    with store.batch() as batch:
        for name, head in local.items():
            batch.swap(name, None, head)


def _origin(store: Store, remote: Remote, options: PullOptions) -> Origin:
    remote_names = {*config.remotes(store.root)}
    return Origin(
        remote.name,
        is_own=remote.is_trusted,
        replaces=options.replace,
        purges=options.purge,
        pushed=remote.state.pushed(),
        other_remotes={config.IMPORT, *remote_names} - {remote.name},
        asks=options.asks,
    )


def _wanted(remote: Remote, texts: list[str], done: Pulled) -> dict[HeadName, Head]:
    """Returns the refs that texts name. Raises Corrupt where one is none; without texts it notes
    such a one as skipped."""
    refs = purged.named(remote.state.refs())
    wanted = {}
    for name in heads.of_remote(refs, texts):
        try:
            head = heads.parsed(name, refs[name])
        except Invalid as error:
            if texts:
                raise Corrupt(f"the remote {remote.name}: {error}") from None
            done.skipped.append(name)
            continue
        key = HeadName(name)
        wanted[key] = Head(head.hash, arrivals.without_marks(key, head.record))
    return wanted


def _placed(
    names: Names,
    wanted: Mapping[HeadName, Head],
    done: Pulled,
    is_strict: bool,
    *,
    is_stored: bool = False,
) -> dict[HeadName, Place]:
    """Returns where those heads arrive that do. `is_stored`: their nodes are here, so that it is
    known which threads may move. Notes which stay; raises Conflict, Invalid if `is_strict`."""
    destinations = {}
    for name, head in wanted.items():
        try:
            destination = names.place(name, head)
            if destination is not None and is_stored:
                names.check_move(destination, head)
        except (Conflict, Invalid) as error:
            if is_strict:
                raise type(error)(f"{error}; no name moved") from None
            done.stayed[name] = str(error)
            continue
        if destination is None:
            done.unchanged += 1
        else:
            destinations[name] = destination
    return destinations


def _check(store: Store, remote: str, name: HeadName, new: Head) -> None:
    """Raises Corrupt for a head that contradicts its node."""
    if store.node(new.hash).type not in allowed_types(name):
        raise Corrupt(f"{name} of the remote {remote} leads to a node of another type")
    if fault := mismatch(name, new, store.get(new.hash)):
        raise Corrupt(f"{name} of the remote {remote}: {fault}")


def _newest(store: Store, names: Collection[HeadName]) -> dict[str, str]:
    """Returns the checkpoints among these that become the newest of a NAME which has some, with
    the hash of the newest so far."""
    last: dict[str, HeadName] = {}
    for name in names:
        if name.startswith(checkpoint.HEADS):
            series = arrivals.series(name)
            last[series] = max(name, last.get(series, name))
    previous_hashes: dict[str, str] = {}
    for series, name in last.items():
        for old, head in store.heads.list(series, reverse=True):
            if old < name:
                previous_hashes[name] = head.hash
            break
    return previous_hashes
