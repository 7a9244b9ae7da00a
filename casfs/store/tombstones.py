"""Tombstones: which contents were purged, when and why, and what readers get instead.

    purged/<hash>      a head that leads to the purged blob itself; its record: size, at, why, and
                       the hash of the substitute or null

The head keeps the row of the purged blob, and its substitute, through gc. It is written in the
transaction that takes the bytes away; while it is there no put stores them again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from casfs.backend.capabilities import Purgeable
from casfs.backend.protocols import MAX_RECORD_BYTES, Backend, Head, HeadName, Purge, Swap
from casfs.backend.purged_contents import PURGED
from casfs.digest import BlobHash, NodeHash
from casfs.errors import Corrupt, NotFound, Refused
from casfs.store.conflict_retry import retry_on_conflict
from casfs.store.nodes import head_kinds
from casfs.store.store import Store

MARK = "‹purged›"  # stands for a purged text in a substitute
NEVER_SUBSTITUTED = ("directory", "schema")  # a purge of a text changes none
MAX_WHY_CHARS = MAX_RECORD_BYTES // 8  # of a reason: a character may take 6 bytes in a record


@runtime_checkable
class Markable(Protocol):
    """Blobs: marks can stand in place of contents, as `Purgeable.purge` says."""

    def purge(self, purges: Collection[Purge], swaps: Sequence[Swap] = ()) -> bool: ...


class Tombstone(NamedTuple):
    """`size`: of the purged content in bytes; `purged_at`: ms since 1970 UTC; `substitute`: the
    blob that readers get instead."""

    hash: str
    size: int
    purged_at: int
    why: str = ""
    substitute: str | None = None

    @property
    def head(self) -> Head:
        record = {
            "size": self.size,
            "at": self.purged_at,
            "why": self.why[:MAX_WHY_CHARS],
            "substitute": self.substitute,
        }
        return Head(NodeHash(BlobHash(self.hash)), record)


def head_name(hash: str) -> HeadName:
    return HeadName(f"{PURGED}{hash}")


def decode(head: Head) -> Tombstone:
    """Returns the tombstone of a sound head."""
    record = head.record
    return Tombstone(
        hash=head.hash,
        size=record["size"],
        purged_at=record["at"],
        why=record["why"],
        substitute=record.get("substitute"),
    )


def get(store: Store, hash: str) -> Tombstone | None:
    """Returns the tombstone of a blob, None where it was not purged. Raises Corrupt."""
    head = head_kinds.get(store.heads, head_name(hash))
    return None if head is None else decode(head)


def listing(store: Store) -> Iterator[Tombstone]:
    """Yields all tombstones, by hash; damaged heads are left out."""
    return (decode(head) for _, head in head_kinds.sound(store.heads, PURGED))


def add(store: Store, tombstones: Iterable[Tombstone]) -> bool:
    """Purges these blobs: takes their bytes away, if they are stored, and sets the tombstones, in
    one transaction. The substitutes must be stored. Where one of the blobs is the substitute of an
    older tombstone, that gets the new substitute. Returns False where copies may remain in the
    database's log for now. Raises NotFound, Invalid, Refused."""
    new = {tombstone.hash: tombstone for tombstone in tombstones}
    is_erased = retry_on_conflict(lambda: _add(store, new))
    store.purged.recheck()
    return is_erased


def _add(store: Store, new: dict[str, Tombstone]) -> bool:
    blobs = purgeable(store)
    new = dict(new)
    for old in listing(store):
        if old.hash not in new and old.substitute in new:
            new[old.hash] = old._replace(substitute=new[old.substitute].substitute)
    swaps = []
    for tombstone in new.values():
        name = head_name(tombstone.hash)
        swaps.append(Swap(name, store.heads.get(name), tombstone.head))
    purges = [
        Purge(new_tombstone.hash, new_tombstone.substitute, new_tombstone.size)
        for new_tombstone in new.values()
    ]
    return blobs.purge(purges, swaps)


def check_substitute(type: str | None, hash: str) -> None:
    """Raises Corrupt for a substitute from another store that would change more than a text."""
    if type in NEVER_SUBSTITUTED:
        raise Corrupt(f"{hash} cannot stand for a {type} that was purged elsewhere")


def take(backend: Backend, tombstones: Collection[Tombstone]) -> None:
    """Notes what was purged in another store, and is not in this one; the substitutes must be
    stored. Raises Conflict where one of the blobs was stored meanwhile, Refused."""
    if not tombstones:
        return
    purges = [
        Purge(tombstone.hash, tombstone.substitute, tombstone.size, is_new=True)
        for tombstone in tombstones
    ]
    names = [head_name(tombstone.hash) for tombstone in tombstones]
    swaps = [
        Swap(name, backend.heads.get(name), tombstone.head)
        for name, tombstone in zip(names, tombstones, strict=True)
    ]
    if not isinstance(backend.blobs, Markable):
        raise Refused("this kind of store cannot note what was purged in another one")
    backend.blobs.purge(purges, swaps)


def remove(store: Store, hash: str) -> Tombstone:
    """Lets a purged content be stored again, and returns its tombstone, which is gone. Until it is
    put, reading it raises Purged. Raises NotFound, Refused for a node: what it refers to is known
    by its substitute only."""
    name = head_name(hash)
    head = head_kinds.get(store.heads, name)
    if head is None:
        raise NotFound(f"{hash} was not purged in this store")
    info = store.blobs.info([hash]).get(hash)
    if info is not None and info.type is not None:
        type = store.registry.name(info.type)
        raise Refused(f"{hash} is a {type}: only a purge of a file can be taken back")
    if info is not None and info.purged:
        purgeable(store).unpurge(hash, [Swap(name, head, new=None)])
    else:
        store.backend.publish([], [Swap(name, head, new=None)])
    store.purged.recheck()
    return decode(head)


def parted(store: Store) -> list[Tombstone]:
    """Returns the tombstones of what has its bytes still, or again."""
    tombstones = {tombstone.hash: tombstone for tombstone in listing(store)}
    infos = store.blobs.info(tombstones.keys())
    return [
        tombstone
        for tombstone in tombstones.values()
        if tombstone.hash not in infos or not infos[tombstone.hash].purged
    ]


def complete(store: Store) -> list[Tombstone]:
    """Takes away the bytes of what has a tombstone; returns the tombstones where there were any.
    A purge needs it never: it writes both at once. Heads that came alone do."""
    tombstones = parted(store)
    if tombstones:
        add(store, tombstones)
    return tombstones


def purgeable(store: Store) -> Purgeable:
    """Returns the blobs of a store that can purge. Raises Refused for another one's."""
    if not isinstance(store.blobs, Purgeable):
        raise Refused("this kind of store cannot purge a blob; remove what has it, and run gc")
    return store.blobs
