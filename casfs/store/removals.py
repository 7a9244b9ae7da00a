"""Removals: heads that a person removed, kept until gc forgets them, so that they can be undone.

    removed/<removal>/<head's name>      the head as it was: hash and record

One removal is what one command removed, under one id. In the transaction that deletes a head its
pair moves below `removed/`, and an undo moves it back: nothing is copied, and neither can be lost
halfway. Such a head is a root of gc for the grace period; the first run after it deletes the head,
and with it the way back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, islice

from casfs.backend.protocols import Head, HeadName, Swap
from casfs.errors import Conflict, NotFound, Refused
from casfs.store.nodes import head_kinds
from casfs.store.nodes.head_kinds import REMOVED, removed_name
from casfs.store.store import Store
from casfs.store.write_batch import Batch
from casfs.system.clock import moment_id, moment_of_id, now_ms, rfc3339

REPLACED_BY = "replacedBy"  # hash of the value that came in place of a kept one
KEYS = "keys/"  # a key that is used again stays with its new thread


@dataclass(frozen=True, slots=True)
class Removal:
    """`id`: its time and a part of a hash; `heads`: the names that were removed, with their
    values."""

    id: str
    heads: list[tuple[HeadName, Head]]

    @property
    def removed_at(self) -> int:
        """When it was removed, in ms since 1970 UTC."""
        return moment_of_id(self.id)

    @property
    def names(self) -> list[str]:
        return [label(name) for name, _ in self.heads]


def remove(store: Store, batch: Batch, heads: Iterable[tuple[HeadName, Head]]) -> str:
    """Removes heads when `batch` commits; returns the removal's id. A damaged head, or one that
    leads to nothing, is removed for good."""
    removed_heads = list(heads)
    id = _new_id(store, removed_heads[0][1])
    stored = store.blobs.info([head.hash for _, head in removed_heads if head.hash])
    for name, head in removed_heads:
        batch.swap(name, head, None)
        if head.hash in stored and head_kinds.fault(name, head) is None:
            batch.swap(_kept_name(id, name), None, head)
    return id


def replace(store: Store, batch: Batch, new: Mapping[HeadName, tuple[Head, Head]]) -> None:
    """Replaces heads by other values when `batch` commits: name → (old, new). An undo brings the
    old ones back, as long as the new ones are in their place."""
    id = ""
    for name, (old, head) in new.items():
        id = id or _new_id(store, old)
        batch.swap(name, old, head)
        kept = Head(old.hash, {**old.record, REPLACED_BY: head.hash})
        batch.swap(_kept_name(id, name), None, kept)


def _new_id(store: Store, head: Head) -> str:
    removed_at = max(
        now_ms(), *(removal.removed_at + 1 for removal in islice(_removals(store), 1)), 0
    )
    return moment_id(removed_at, head.hash or "0" * 8)


def listing(store: Store) -> list[Removal]:
    """Returns the removals that can be undone, newest first."""
    return list(_removals(store))


def undo(store: Store, text: str | None = None) -> Removal:
    """Undoes a removal: the newest, or the newest that `text` names by its id, a prefix of it, or
    a name that it removed. Raises NotFound, Conflict (an ambiguous prefix), Refused where a
    name is taken again."""
    removal = _find(store, text)
    swaps = []
    for name, head in removal.heads:
        taken = store.heads.get(name)
        record = {key: value for key, value in head.record.items() if key != REPLACED_BY}
        old = Head(head.hash, record)
        gives_way = taken is not None and taken.hash == head.record.get(REPLACED_BY)
        if taken not in (None, old) and not gives_way and not name.startswith(KEYS):
            raise Refused(f"{label(name)} has a new value since; remove that first")
        if taken is None or gives_way:
            swaps.append(Swap(name, taken, old))
        swaps.append(Swap(_kept_name(removal.id, name), head, new=None))
    store.backend.publish([], swaps)
    return removal


def label(name: str) -> str:
    """Returns a head's name as a person types it: NAME@ID of a checkpoint, else without kind."""
    kind, _, bare_name = name.partition("/")
    return bare_name.replace("/", "@", 1) if kind == "checkpoints" else bare_name


def kept_heads(removal: Removal) -> list[tuple[HeadName, Head]]:
    """Returns the heads that keep a removal."""
    return [(_kept_name(removal.id, name), head) for name, head in removal.heads]


def _kept_name(id: str, name: HeadName) -> HeadName:
    return HeadName(f"{REMOVED}{id}/{name}")


def _removals(store: Store) -> Iterator[Removal]:
    def id_of(named_head: tuple[HeadName, Head]) -> str:
        return named_head[0].split("/", 2)[1]

    for id, heads in groupby(store.heads.list(REMOVED, reverse=True), id_of):
        yield Removal(id, [(HeadName(removed_name(name)), head) for name, head in heads][::-1])


def _find(store: Store, text: str | None) -> Removal:
    known = listing(store)
    if text is None:
        if not known:
            raise NotFound("nothing to undo: no removal since gc ran")
        return known[0]
    by_id = [known_removal for known_removal in known if known_removal.id.startswith(text)]
    if len(by_id) > 1:
        raise Conflict(f"{text} is ambiguous: {by_id[0].id}, {by_id[1].id}; give more of the id")
    for removal in [*by_id, *known]:
        names = {*removal.names, *(name for name, _ in removal.heads), *_thread_names(removal)}
        if removal in by_id or text in names or text in {name.partition("@")[0] for name in names}:
            return removal
    raise NotFound(_why_not(store, text))


def _thread_names(removal: Removal) -> list[str]:
    """Returns the names that people gave to removed threads."""
    threads = [head for name, head in removal.heads if name.startswith("threads/")]
    return [name for head in threads if isinstance(name := head.record.get("name"), str)]


def _why_not(store: Store, text: str) -> str:
    """Returns why nothing that `text` names can be undone, from the journal of the heads."""
    removed_at = after = 0
    while moves := store.heads.moves(after):
        for move in moves:
            if text in (move.name, label(move.name), label(move.name).partition("@")[0]):
                removed_at = move.at_ms if move.hash is None else 0
        after = moves[-1].seq
    if removed_at:
        return f"{text} was removed at {rfc3339(removed_at)}, and gc has deleted it since"
    return f"no removal of {text!r}; see `casfs undo --list`"
