"""Tombstones in a remote: refs `purged/<hash>`, whose records are those of the heads.

What has one counts as not there: no push sends it, no pull takes it, and gc removes it from the
packs. Its substitute is there instead.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from casfs.backend.protocols import Head
from casfs.backend.purged_contents import PURGED
from casfs.errors import Corrupt, NotFound
from casfs.object_storage.retrying import parallel
from casfs.packs.index import PackIndex
from casfs.packs.reader import read_index
from casfs.remotes.log import Pack, pack_key
from casfs.remotes.remote import Remote
from casfs.remotes.state import LIVE, ORPHANED, PENDING
from casfs.store import local_trees, tombstones
from casfs.store.conflict_retry import retry_on_conflict
from casfs.store.nodes import head_kinds
from casfs.store.store import Store
from casfs.store.tombstones import Tombstone

Tombstones = Mapping[str, Tombstone]  # by the hash of what was purged


def of_refs(refs: Mapping[str, Any]) -> dict[str, Tombstone]:
    """Returns the sound tombstones among refs. A substitute that was purged later is replaced by
    its own."""
    sound_tombstones: dict[str, Tombstone] = {}
    for name, ref in refs.items():
        if not name.startswith(PURGED):
            continue
        head = Head(ref["hash"], ref["record"])
        if name == tombstones.head_name(head.hash) and head_kinds.fault(name, head) is None:
            sound_tombstones[head.hash] = tombstones.decode(head)
    return {
        tombstone.hash: tombstone._replace(substitute=_last(sound_tombstones, tombstone))
        for tombstone in sound_tombstones.values()
    }


def named(refs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the refs that a person names: no tombstones, and no local trees, which come with
    their nodes."""
    hidden = (PURGED, local_trees.HEADS)
    return {name: ref for name, ref in refs.items() if not name.startswith(hidden)}


def of_remote(remote: Remote) -> dict[str, Tombstone]:
    """Returns the tombstones in a remote, as new as its state."""
    return of_refs(remote.state.refs(PURGED))


def _last(purged: Tombstones, first: Tombstone) -> str | None:
    """Returns the substitute at the end of a chain; None where it leads back."""
    passed = {first.hash}
    substitute = first.substitute
    while substitute is not None and (after := purged.get(substitute)) is not None:
        if substitute in passed:
            return None
        passed.add(substitute)
        substitute = after.substitute
    return substitute


def as_ref(tombstone: Tombstone) -> dict[str, Any]:
    head = tombstone.head
    return {"hash": head.hash, "record": dict(head.record), "previous": None, "size": None}


def to_push(store: Store, remote: Remote, reached: Collection[str]) -> list[Tombstone]:
    """Returns the tombstones of this store that the remote needs: of what a push has `reached`, and
    of contents that are in its packs; and those whose substitute has changed."""
    there = of_remote(remote)
    wanted: list[Tombstone] = []
    ours = {listed.hash: listed for listed in tombstones.listing(store)}
    located = {*remote.state.locate(ours.keys()), *remote.state.locate(ours.keys(), ORPHANED)}
    for hash, tombstone in ours.items():
        known = there.get(hash)
        if known is None:
            is_wanted = hash in reached or hash in located
        else:
            is_wanted = tombstone.substitute != known.substitute and known.substitute in ours
        if is_wanted:
            wanted.append(tombstone)
    return wanted


def check_substitutes(store: Store, purged: Collection[Tombstone]) -> None:
    """Raises Corrupt for a substitute that changes more than a text. All are stored."""
    infos = store.blobs.info([tombstone.substitute for tombstone in purged if tombstone.substitute])
    for hash, info in infos.items():
        type = None if info.type is None else store.registry.name(info.type)
        tombstones.check_substitute(type, hash)


def take(store: Store, purged: Collection[Tombstone]) -> None:
    """Marks what was purged elsewhere and is not in this store, or only known from a lazy pull.
    Content that is here stays. Raises Corrupt for a substitute that changes more than a text."""
    check_substitutes(store, purged)

    def mark() -> None:
        known = store.blobs.info([tombstone.hash for tombstone in purged])
        tombstones.take(
            store.backend, [tombstone for tombstone in purged if tombstone.hash not in known]
        )
        lost = [
            tombstone
            for tombstone in purged
            if tombstone.hash in known and known[tombstone.hash].remote
        ]
        if lost:
            purge(store, lost)

    retry_on_conflict(mark)


def purge(store: Store, purged: Collection[Tombstone]) -> None:
    """Purges content that is here. Raises as `casfs.maintenance.purge.purge_all`."""
    from casfs.maintenance.purge import purge_all  # 25 ms, for what is rare

    purge_all(store, purged)


def kept_here(store: Store, purged: Tombstones) -> list[str]:
    """Returns what was purged elsewhere, and has its content in this store."""
    infos = store.blobs.info(purged.keys())
    return [hash for hash in purged if hash in infos and infos[hash].is_here]


def packs_with(remote: Remote, purged: Tombstones) -> set[str]:
    """Returns the names of the packs in the remote that hold a purged member, whatever their state;
    also those of interrupted pushes, which are in no entry. Reads the indexes of those alone that
    are not known yet."""
    if not purged:
        return set()
    known = {pack.name for pack in remote.state.packs(LIVE, ORPHANED, PENDING)}
    names = remote.state.holders(purged.keys())
    unindexed = [pack for pack in remote.state.packs(ORPHANED, PENDING) if pack.data is None]
    for key, item in remote.storage.list("packs/"):
        name = key.removeprefix("packs/").removesuffix(".pack")
        if name not in known:
            unindexed.append(Pack(name, "", size=item.size, offset=0))
    keys = [bytes.fromhex(hash) for hash in purged]
    for name, index in parallel([_reader(remote, pack) for pack in unindexed]):
        if index is not None and any(key in index.data for key in keys):
            names.add(name)
    return names


def _reader(remote: Remote, pack: Pack) -> Any:
    def read() -> tuple[str, PackIndex | None]:
        try:
            read_at = partial(remote.storage.get_range, pack_key(pack.name))
            return pack.name, read_index(read_at, pack.size)
        except (Corrupt, NotFound):  # being uploaded, or deleted meanwhile
            return pack.name, None

    return read
