"""Push: heads and all that they reach, to a remote that lacks a part of it.

First the packs are uploaded, then one entry of the log names them and moves the refs: a push that
ends early has changed nothing. Each pack is noted in the local state before its upload, so the next
push finds it again and sends only the rest.
"""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from casfs.backend import derived
from casfs.backend.protocols import Head, HeadName, targets
from casfs.errors import Conflict
from casfs.exchange import arrivals
from casfs.object_storage.retrying import parallel
from casfs.packs.layout import TRAILER, FrameRef
from casfs.packs.reader import read_index
from casfs.packs.writer import PackWriter
from casfs.remotes import heads, purged, push_plan
from casfs.remotes.log import BLOBS, NODES, Entry, Pack, pack_key
from casfs.remotes.push_plan import Item, Plan
from casfs.remotes.remote import Remote
from casfs.remotes.shared_blocks import Block, SharedBlocks, is_large
from casfs.remotes.state import LIVE
from casfs.store import tombstones
from casfs.store.nodes.registry import HEADS as SCHEMAS
from casfs.store.removals import label
from casfs.store.store import Store

PLAIN_BYTES = {NODES: 192 << 20, BLOBS: 64 << 20}  # of a pack, before compression
HELD_BYTES = 8 << 20  # a smaller pack is made in memory
PACKERS = 3  # at once: one uploads while others compress
MAX_INLINE_BYTES = 16 << 20  # of indexes in one entry

# called with the numbers of blobs and bytes in all; then with those so far
Begin = Callable[[int, int], AbstractContextManager[Callable[[int, int], None]]]


@dataclass(slots=True)
class Pushed:
    """`refs`: that moved; `bytes`: before compression; `sent`: of packs that were uploaded;
    `tombstones`: that are new in the remote. `purged`: what was left out, as it was purged here or
    there, and has no substitute here."""

    refs: list[str] = field(default_factory=list)
    unchanged: int = 0
    nodes: int = 0
    blobs: int = 0
    bytes: int = 0
    packs: int = 0
    sent: int = 0
    tombstones: int = 0
    purged: list[str] = field(default_factory=list)


class _Lost(Exception):
    """The remote lost content since the plan was made, or had some purged."""


def push(
    store: Store,
    remote: Remote,
    wanted: dict[HeadName, Head],
    *,
    dry_run: bool,
    begin: Begin,
    with_local: bool = False,
) -> Pushed:
    """Pushes what `heads.of_store` returned. `with_local`: what is local as well, that of heads
    which are there already too. Raises Conflict where a ref has moved elsewhere."""
    remote.catch_up()
    remote.load_indexes()
    push_plan.drop_lost_packs(remote)
    while True:
        moves = _moves(store, remote, wanted)
        sent = wanted if with_local else moves
        roots = [hash for head in sent.values() for hash in targets(head)]
        plan = push_plan.make(store, remote, [*dict.fromkeys(roots)], with_local=with_local)
        moves |= _moves(store, remote, plan.local)
        total = sum(planned.size for planned in (*plan.nodes, *plan.blobs))
        done = Pushed([name for name in sorted(moves) if name in wanted])
        done.unchanged = len(wanted) - len(done.refs)
        done.nodes = len(plan.nodes)
        done.blobs = len(plan.blobs)
        done.bytes = total
        done.tombstones = len(plan.tombstones)
        done.purged = sorted(hash for hash, substitute in plan.purged.items() if not substitute)
        if dry_run or not (moves or plan.nodes or plan.blobs or plan.reused or plan.tombstones):
            break
        packs = [remote.state.pack(name) for name in plan.reused]
        with begin(done.nodes + done.blobs, total) as progress:
            blobs = size = 0
            for pack, items in parallel(packers(store, remote, plan), PACKERS, PACKERS):
                packs.append(pack)
                done.packs = done.packs + 1
                done.sent = done.sent + pack.size
                blobs = blobs + len(items)
                size = size + sum(member.size for member in items)
                progress(blobs, size)
        try:
            remote.append(partial(_fill, store, remote, wanted | plan.local, plan, packs))
            break
        except _Lost:
            continue  # what is uploaded is found again
    if not dry_run:
        named = {name: head for name, head in wanted.items() if name.startswith(arrivals.RENAMED)}
        remote.state.note_pushed({name: arrivals.value(name, named[name]) for name in named})
    return done


def delete(remote: Remote, texts: list[str], *, dry_run: bool) -> Pushed:
    """Deletes the refs that texts name (`heads.of_remote`); gc frees what they alone reached.
    Raises NotFound, Conflict (ambiguous)."""
    remote.catch_up()
    refs = purged.named(remote.state.refs())  # what they stand for is gone there
    done = Pushed(sorted(heads.of_remote(refs, texts)))

    def fill(entry: Entry) -> None:
        entry["refs"] = dict.fromkeys(done.refs)

    if not dry_run:
        remote.append(fill)
    return done


def _fill(
    store: Store, remote: Remote, wanted: dict[HeadName, Head],
    plan: Plan, packs: list[Pack], entry: Entry,
) -> None:  # fmt: skip
    if not plan.live <= remote.state.since_when(LIVE).keys():
        raise _Lost
    if purged.of_remote(remote).keys() != plan.purged_there:
        raise _Lost  # what a pack here may hold was purged there since
    for tombstone in plan.tombstones:
        entry["refs"][tombstones.head_name(tombstone.hash)] = purged.as_ref(tombstone)
    room = MAX_INLINE_BYTES
    for pack in packs:
        room -= len(pack.data or b"")
        entry["packs"][pack.name] = (pack if room > 0 else pack._replace(data=None)).encode()
    for name, head in _moves(store, remote, wanted).items():
        previous = (remote.state.ref(name) or {}).get("hash")
        size = store.node(head.hash).payload.get("stats", {}).get("bytes")
        ref = {"hash": head.hash, "record": dict(head.record), "previous": previous, "size": size}
        entry["refs"][name] = ref


def _moves(store: Store, remote: Remote, wanted: dict[HeadName, Head]) -> dict[HeadName, Head]:
    """Returns those heads that the remote has not got. Raises Conflict."""
    moved_heads = {}
    for name, head in wanted.items():
        there = remote.state.ref(name)
        if there is not None and (_is_known(head, there) or name.startswith(SCHEMAS)):
            continue
        if there is not None and not heads.may_replace(
            store, name, new=head.hash, old=there["hash"]
        ):
            raise Conflict(
                f"{label(name)} has moved in {remote.name} since; nothing was pushed."
                f" `casfs pull {remote.name} {label(name)}` gets it"
            )
        moved_heads[name] = head
    return moved_heads


def _is_known(head: Head, there: dict[str, Any]) -> bool:
    """Is it the value there, or an older record of the same hash?"""
    value_there = Head(there["hash"], there["record"])
    if arrivals.is_redacted_since(head, value_there):
        return True
    if arrivals.is_redacted_since(value_there, head):
        return False
    old, new = (record.get("updatedAt") for record in (head.record, there["record"]))
    is_older = isinstance(old, int) and isinstance(new, int) and old < new
    return bool(there["hash"] == head.hash and (is_older or head.record == there["record"]))


# -- packs ------------------------------------------------------------------------------------


def packers(store: Store, remote: Remote, plan: Plan) -> Iterator[Callable[[], Any]]:
    """Yields functions that make and upload a pack each."""
    large = [item for item in plan.blobs if is_large(item)]
    shared = SharedBlocks(store, remote, large, plan.purged_there)
    for group in shared.groups(large):
        yield partial(_pack, store, remote, BLOBS, group, shared=shared)
    small = [item for item in plan.blobs if not is_large(item)]
    for kind, items in ((NODES, plan.nodes), (BLOBS, small)):
        part: list[Item] = []
        held = 0
        for member in items:
            if part and held + member.size > PLAIN_BYTES[kind]:
                yield partial(_pack, store, remote, kind, part, shared=shared)
                part = []
                held = 0
            part.append(member)
            held += member.size
        if part:
            yield partial(_pack, store, remote, kind, part, shared=shared)


def _pack(
    store: Store, remote: Remote, kind: str, items: list[Item], *, shared: SharedBlocks
) -> tuple[Pack, list[Item]]:
    with _private(store, sum(member.size for member in items)) as out:
        _write(store, out, items, shared)
        size = out.seek(0, os.SEEK_END)
        index = read_index(partial(_read_at, out), size)
        offset = size - TRAILER.size - len(index.data)
        pack = Pack(index.name, kind, size=size, offset=offset, data=index.data)
        remote.state.add_pending(pack)
        data = out.getvalue() if isinstance(out, io.BytesIO) else Path(out.name)
        remote.storage.put(pack_key(pack.name), data)
    return pack, items


def _read_at(file: BinaryIO, offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)


def _private(store: Store, size: int) -> Any:
    if size <= HELD_BYTES:
        return io.BytesIO()
    return tempfile.NamedTemporaryFile(dir=derived.staging_directory(store.blobs))


def _write(store: Store, out: BinaryIO, items: list[Item], shared: SharedBlocks) -> None:
    writer = PackWriter(out)
    writer.add_salt()
    large = [item for item in items if is_large(item)]
    own: dict[Block, FrameRef] = {}
    for item in large:
        shared.add(writer, item, own)
    small = [item for item in items if not is_large(item)]
    contents = store.blobs.get_many(member.hash for member in small)
    for (hash, size, type), data in zip(small, contents, strict=True):
        if data is not None or type is not None:
            writer.add(hash, store.get(hash) if data is None else data, type)
        else:
            with derived.open_stream(store.blobs, hash) as source:
                writer.add_stream(hash, size, source)
    writer.finish()
    out.flush()
