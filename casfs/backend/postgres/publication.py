"""Publications as arguments of the functions that write them (`casfs.backend.postgres.schema`)."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple

from casfs.backend.postgres.connection import Connection, Pool, Row, fetch, raised
from casfs.backend.protocols import (
    MAX_RECORD_BYTES,
    META,
    DamagedHead,
    Head,
    Publication,
    Staged,
    Swap,
)
from casfs.backend.sqlite_statements import TOUCH_RESOLUTION_S, is_storable, key_of, type_key
from casfs.errors import Conflict, Invalid, NotFound, Unreachable
from casfs.system.clock import now_ms

BLOB_TYPES = ("bytea", "bigint", "bytea", "bytea", "bytea", "int")
SWAP_TYPES = ("text", "bytea", "text", "bytea", "text", "bigint")
HASHES = 3  # places among the arguments
NEEDS = 9
MAX_NAME_BYTES = 2600  # of an index entry
TYPES = [*BLOB_TYPES, "bytea", "bytea", "bigint", *SWAP_TYPES, "bytea"]
ARGUMENTS = ", ".join(["%s::bigint"] * 3 + [f"%b::{sql_type}[]" for sql_type in TYPES])
ONE = f"SELECT casfs.publish_one({ARGUMENTS})"
TRY = f"SELECT known, state, message FROM casfs.publish_try({ARGUMENTS})"


class Placed(NamedTuple):
    """A publication whose longer blobs are in object storage: `packs`: the sizes of the new packs
    by name; `places`: (pack, member) of blobs by hash."""

    publication: Publication
    packs: dict[str, int]
    places: dict[str, tuple[str, int]]

    @property
    def rows(self) -> list[Staged]:
        return [blob for blob in self.publication.staged if blob.digest.hash not in self.places]


class Call(NamedTuple):
    """The arguments of one call, its token, and how many heads it moves."""

    values: list[Any]
    token: int
    moves: int


def publish(pool: Pool, group: Sequence[Call]) -> list[set[str] | BaseException]:
    """Publishes each, all in one transaction and one round trip; returns the hashes that were
    stored already, or the error. Raises Unreachable, and for one alone its error.

    Where an answer was lost the transaction may have been committed, or be running still: so what
    has moved its heads is looked for before all is run again, and after a conflict.
    """
    lost = False

    def run(db: Connection) -> list[set[str] | BaseException]:
        nonlocal lost
        done = _done(db, group) if lost else set()
        remaining = [call for call in group if call.token not in done]
        try:
            if not lost:
                with suppress(*(NotFound, Conflict) if len(group) > 1 else ()):  # whose is it?
                    ((keys,),) = fetch(db, ONE, _merged(group))
                    return [_known(keys) & _known(call.values[HASHES]) for call in group]
            query = " UNION ALL ".join([TRY] * len(remaining))
            values = [value for call in remaining for value in call.values]
            rows = fetch(db, query, values) if remaining else []
            if lost and any(state for _, state, _ in rows):
                done |= _done(db, group)
        except Unreachable:
            lost = True
            raise
        outcomes = {call.token: _result(*row) for call, row in zip(remaining, rows, strict=True)}
        return [set() if call.token in done else outcomes[call.token] for call in group]

    return pool.retrying(run)


def _merged(group: Sequence[Call]) -> list[Any]:
    """Returns the arguments of one publication of all. Of equal blobs a node comes first."""
    if len(group) == 1:
        return group[0].values
    blobs: dict[bytes, Row] = {}
    for call in group:
        for row in zip(*call.values[HASHES:NEEDS], strict=True):
            if row[0] not in blobs or row[2] is not None:
                blobs[row[0]] = row
    columns = zip(*(grouped_call.values[NEEDS:] for grouped_call in group), strict=True)
    needs, *other_columns, _ = [[*chain.from_iterable(parts)] for parts in columns]
    local = _local(group)
    values = [*_columns(blobs.values(), BLOB_TYPES), [*{*needs}], *other_columns, local]
    return [*group[0].values[:HASHES], *values]


def _local(group: Sequence[Call]) -> list[bytes]:
    """Returns what is local in each publication that has it."""
    everywhere = {key for call in group for key in call.values[-1]}
    work = {
        key
        for call in group
        for key in {*call.values[HASHES], *call.values[NEEDS]} - {*call.values[-1]}
    }
    return sorted(everywhere - work)


def _columns(rows: Iterable[Row], types: Sequence[str]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in types]


def _known(keys: list[bytes]) -> set[str]:
    return {key.hex() for key in keys}


def _result(keys: list[bytes], state: str | None, message: str) -> set[str] | BaseException:
    return _known(keys) if state is None else raised(state, message)


def _done(db: Connection, group: Sequence[Call]) -> set[object]:
    """Returns the tokens of those that have moved their heads."""
    query = "SELECT DISTINCT token FROM casfs.moves WHERE token = ANY(%s::bigint[])"
    return {token for (token,) in fetch(db, query, [[call.token for call in group]])}


def arguments(placed: Placed) -> Call:
    """Raises Invalid, NotFound, Conflict."""
    (staged, swaps, require, local), packs, places = placed
    blobs: dict[str, Staged] = {}
    for staged_blob in staged:
        if staged_blob.type is not None or staged_blob.digest.hash not in blobs:
            blobs[staged_blob.digest.hash] = staged_blob
    needs: set[str] = {swap.new.hash for swap in swaps if swap.new}
    needs |= {blob.type for blob in staged if blob.type is not None and blob.type != META}
    needs = (needs - blobs.keys()) | {*require}
    rows = [_blob_row(blob, places) for blob in blobs.values()]
    token = secrets.randbits(63)
    values = [
        int(time.time()),
        now_ms(),
        TOUCH_RESOLUTION_S,
        *_columns(rows, BLOB_TYPES),
        sorted(key_of(hash) for hash in needs),
        [bytes.fromhex(name) for name in packs],
        [*packs.values()],
        *_columns([(*_swap_row(swap), token) for swap in swaps], SWAP_TYPES),
        sorted(key_of(hash) for hash in {*local} & (blobs.keys() | {*require})),
    ]
    return Call(values, token, len(swaps))


def _blob_row(blob: Staged, places: dict[str, tuple[str, int]]) -> Row:
    pack, member = places.get(blob.digest.hash, (None, None)) if blob.type is None else (None, None)
    return (
        key_of(blob.digest.hash),
        blob.digest.size_bytes,
        None if blob.type is None else type_key(blob.type),
        blob.data if pack is None else None,
        None if pack is None else bytes.fromhex(pack),
        member,
    )


def _swap_row(swap: Swap) -> Row:
    if not is_storable(swap.name) or "\0" in swap.name:
        raise Invalid(f"head {swap.name!a}: a name must be UTF-8")
    if len(swap.name.encode()) > MAX_NAME_BYTES:
        raise Invalid(f"head {swap.name[:64]}…: a name may have {MAX_NAME_BYTES} bytes")
    if isinstance(swap.old, DamagedHead):
        raise Conflict(f"head {swap.name}: damaged; see `casfs fsck`")
    old = (None, None) if swap.old is None else _head_row(swap.old)
    new = (None, None) if swap.new is None else _head_row(swap.new)
    return (swap.name, *old, *new)


def _head_row(head: Head) -> tuple[bytes, str]:
    """Raises Invalid."""
    size = len(head.text.encode())
    if size > MAX_RECORD_BYTES:
        raise Invalid(f"a head's record of {size} bytes is over {MAX_RECORD_BYTES}")
    return key_of(head.hash), head.text
