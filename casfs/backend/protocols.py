"""The storage interfaces: what a backend must implement, and what it may.

**Blobs** are immutable bytes under a hash. A blob may carry the hash of its type: then
this store has accepted it as a node. **Heads** are the only mutable thing: a name for a
(hash, record) pair, moved by compare-and-swap.

Writes have two stages. `stage` takes the bytes in (and may already write them to a
private file, so memory stays bounded); `publish` makes a set of staged blobs durable
and then moves heads. The order is the invariant that everything else depends on: a reader
that sees a head sees every blob published with it or before it. A crash between the two
leaves garbage, never a dangling reference.

**Required**: `Backend` (`publish`, `close`), `Blobs` (`stage`, `get`, `open`, `get_many`,
`info`, `local_among`, `unmark_local`, `iterate`) and `Heads` (`get`, `list`, `moves`). Hashes of
any spelling may be asked for; only 64 lowercase hex characters name a blob.
**Derived**: `casfs.backend.derived` answers everything else (which hashes are missing, prefix
lookup, totals, staleness) from these, in time linear in what is stored.
**Optional**: a backend that has a better answer, or a feature of its own, implements one of
the protocols of `casfs.backend.capabilities` as well; callers test for it with `isinstance`,
mostly inside the derived functions. Only garbage collection and fsck's repair are refused
where a backend lacks theirs.

Implementations: `casfs.backend.disk`, and `casfs.backend.postgres` for a store that machines
share. Each passes the conformance suites in `tests/contracts/`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, BinaryIO, NamedTuple, NewType, Protocol

from casfs import canonical
from casfs.digest import CHUNK, Digest, NodeHash, is_hash

META = "schema"  # the type of the meta-schema node, the only one that is not a hash
MAX_RECORD_BYTES = 4096  # of a head's record as canonical JSON
# A message that quotes a hash keeps nothing alive, and an import of it requires nothing.
TEXT_KEYS = (
    "message",
    "reason",
    "why",
    "argument",
    "actor",
)  # keys of records whose values are free text
MAX_NODE_BYTES = 256 << 20  # of a node: in put, import, fsck and repair
INLINE_MAX_BYTES = 1024  # up to here a blob is cheaper as a row than as a file
# Below this, plain bytes wait in memory: whether they are many enough for a pack shows only when
# they are published.
FILE_MIN_BYTES = CHUNK  # from here on a new blob is a file of its own
# A follower that was away for longer reads all heads again.
JOURNAL_MIN_MOVES = 10_000  # that the journal keeps at least
MOVES_PER_READ = 1000  # limit of one `Heads.moves`
NO_RECORD: Mapping[str, Any] = {}
HeadName = NewType("HeadName", str)  # made by the `head_name` of each namespace


class BlobInfo(NamedTuple):
    """Metadata of a stored blob. `type`: hash of the schema node when the blob was accepted
    as a node (the meta-schema's own is `META`), else None. `purged`: its content was deleted for
    good, and a put of the same bytes stores nothing; `substitute`: readers get this blob instead.
    `remote`: it is in a remote; `awaited`: it was purged, and allowed again; a put of the same
    bytes brings either here. `size` stays that of the original."""

    size: int
    type: str | None
    purged: bool = False
    remote: bool = False
    substitute: str | None = None
    awaited: bool = False

    @property
    def is_here(self) -> bool:
        return not (self.purged or self.remote or self.awaited)


class Blob(NamedTuple):
    """A blob's verified bytes, and its type as in BlobInfo."""

    data: bytes
    type: str | None


class Staged(NamedTuple):
    """Bytes to be published: held in `data`, in the private file `temp`, or `member` of the
    private pack `temp`, all of whose members are published at once. Or blocks of stored blobs and
    of a `patch`, as a `block_map` says (`casfs.backend.block_maps`)."""

    digest: Digest
    data: bytes | None
    temp: str | None = None
    type: str | None = None
    member: int | None = None
    block_map: bytes | None = None
    patch: Staged | None = None

    @property
    def new_bytes(self) -> int:
        """Returns how many bytes it adds to a store."""
        if self.block_map is None:
            return self.digest.size_bytes
        patch_bytes = 0 if self.patch is None else self.patch.digest.size_bytes
        return len(self.block_map) + patch_bytes

    @property
    def is_row(self) -> bool:
        """Whether the row holds the bytes: of every node, and of short blobs."""
        # A node in a file of its own would take a block of 4 KiB; in a row it is compressed.
        return self.type is not None or self.digest.size_bytes <= INLINE_MAX_BYTES


class Head:
    """The value of a name: `hash` and a JSON object of at most MAX_RECORD_BYTES. Not to be mutated:
    a plain class is made in a third of the time of a frozen dataclass, several times a step."""

    def __init__(self, hash: NodeHash, record: Mapping[str, Any] = NO_RECORD) -> None:
        self.hash = hash
        self.record = record

    # A backend that reads a row sets this to the stored text: a swap then compares with just that,
    # not with our encoding of it.
    @cached_property
    def text(self) -> str:
        """The record as canonical JSON, encoded once and then compared. Raises Invalid."""
        return canonical.encode(dict(self.record)).decode()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Head) and self._identity() == other._identity()

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self._identity()}"

    def _identity(self) -> tuple[object, ...]:
        return self.hash, self.record


class DamagedHead(Head):
    """A head whose stored form does not decode. `hash` is empty where that is damaged, and the
    record always; `row` is what is stored: a swap from this head compares with it."""

    def __init__(self, hash: NodeHash, *, row: tuple[object, object] = (None, None)) -> None:
        super().__init__(hash)
        self.row = row

    def _identity(self) -> tuple[object, ...]:
        # Damaged heads look alike but for what is stored.
        return self.hash, self.record, self.row


class Swap(NamedTuple):
    """A compare-and-swap of `name` from `old` to `new`; None stands for "absent"."""

    name: HeadName
    old: Head | None
    new: Head | None


class Publication(NamedTuple):
    """The arguments of one `Backend.publish`."""

    staged: Sequence[Staged]
    swaps: Sequence[Swap] = ()
    require: Collection[str] = ()
    local: Collection[str] = ()


class Purge(NamedTuple):
    """A blob to be purged. `substitute`: a stored blob whose bytes readers get instead, of the same
    type. `size`: of the content, where the store does not have the blob. `is_new`: raises Conflict
    where the store has it: what was purged elsewhere takes nothing away here."""

    hash: str
    substitute: str | None = None
    size: int = 0
    is_new: bool = False


class Move(NamedTuple):
    """An entry of the journal of head moves: at `at_ms` (ms since 1970 UTC, by the writer's clock)
    `name` was set to `hash`; None: it was deleted. `seq` counts all moves from 1, without a gap."""

    seq: int
    name: HeadName
    hash: NodeHash | None
    at_ms: int


# No tuple as the others: gc and the listings add to it, blob by blob.
@dataclass(slots=True)
class Total:
    """An amount of content: blobs, their bytes, and how many of them are files of their own."""

    blobs: int = 0
    bytes: int = 0
    files: int = 0


def targets(head: Head) -> list[str]:
    """Returns every hash that a head keeps alive: where it points, and those in its record.
    Free text in a record (TEXT_KEYS) counts as text, whatever it looks like."""
    # The hash of a damaged head may be empty.
    hashes: list[str] = [head.hash] if head.hash else []
    stack: list[object] = [head.record]
    while stack:
        value = stack.pop()
        if isinstance(value, str) and is_hash(value):
            hashes.append(value)
        elif isinstance(value, list):
            stack += value
        elif isinstance(value, dict):
            stack += [item for key, item in value.items() if key not in TEXT_KEYS]
    return hashes


def new_targets(swap: Swap) -> set[str]:
    """Returns the hashes that a head will keep alive and did not before, its record included."""
    if swap.new is None:
        return set()
    # What the old record names is alive until the swap, so nothing has to look it up again.
    old_record = NO_RECORD if swap.old is None else swap.old.record
    changed: dict[str, Any] = {}
    for key, value in swap.new.record.items():
        if old_record.get(key) != value:
            changed[key] = value
    hashes = targets(Head(swap.new.hash, changed))
    return set(hashes)


def discard(staged: Iterable[Staged], *, keep_packs: bool = False) -> None:
    """Drops staged blobs that will not be published. Idempotent, never fails. `keep_packs`: other
    members of their packs may be published yet."""
    for blob in staged:
        if blob.patch is not None:
            discard([blob.patch])
        is_kept = keep_packs and blob.member is not None
        if blob.temp is not None and not is_kept:
            # Members of a pack share its file, and a file that was published was renamed. A
            # leftover is swept once this process has exited.
            with suppress(OSError):
                os.unlink(blob.temp)


class Blobs(Protocol):
    def stage(self, source: BinaryIO) -> Staged:
        """Takes in a stream of unknown length; nothing is visible yet. May be called from any
        thread. What `source` raises is passed on."""

    def get(self, hash: str) -> Blob:
        """Returns the verified bytes with their type. Raises NotFound, CorruptBlob."""

    def open(self, hash: str) -> BinaryIO:
        """Returns a verified blob as a seekable file. Raises NotFound, CorruptBlob."""

    def get_many(self, hashes: Iterable[str]) -> Iterator[bytes | None]:
        """Yields the verified bytes of each, in that order, looked up in batches; None for a
        blob that is better opened, being large. Raises NotFound, CorruptBlob."""

    def info(self, hashes: Collection[str]) -> dict[str, BlobInfo]:
        """Returns the metadata of each stored hash; others are absent from the answer."""

    def local_among(self, hashes: Collection[str]) -> set[str]:
        """Returns those that are marked: only local trees reach them
        (`casfs.store.local_trees`)."""

    def unmark_local(self, hashes: Collection[str]) -> None:
        """Takes the marks of these away: work has them, too."""

    def iterate(self, after: int = 0) -> Iterator[tuple[int, str, BlobInfo]]:
        """Yields (position, hash, info) of all blobs that arrived after a position (0: the
        beginning), in the order of arrival; memory stays bounded."""


# Nothing sets a head here: heads move by `publish` only, with the blobs that they lead to.
class Heads(Protocol):
    def get(self, name: HeadName) -> Head | None:
        """Returns the value of a name, None where there is none."""

    def list(
        self, prefix: str = "", *, reverse: bool = False, containing: Collection[str] = ()
    ) -> Iterator[tuple[HeadName, Head]]:
        """Yields the heads whose names start with `prefix`, sorted by code point. Heads may
        move meanwhile. `containing`: a backend may leave out heads whose name and record (as
        canonical JSON) contain none of these texts. One that cannot look faster than its caller
        yields all."""

    def moves(self, after: int = 0) -> Sequence[Move]:
        """Returns the journal's moves after number `after`, oldest first, at most
        MOVES_PER_READ; a negative `after` asks for that many of the newest. The journal is
        written in the transaction of the moves, so it misses none; it keeps at least the last
        JOURNAL_MIN_MOVES, so an answer that begins later than asked for says that some are
        lost. What a move points to may be gone: the journal keeps no blob alive."""


class Backend(Protocol):
    @property
    def blobs(self) -> Blobs: ...

    @property
    def heads(self) -> Heads: ...

    # One call, not one for blobs and one for heads: so a database can make it one transaction.
    def publish(
        self,
        staged: Iterable[Staged],
        swaps: Iterable[Swap] = (),
        require: Collection[str] = (),
        local: Collection[str] = (),
    ) -> set[str]:
        """Makes `staged` durable, then moves all heads of `swaps`, or none of them. Returns
        those hashes of `staged` that were stored already. Of a large batch only nodes need be
        looked up: plain bytes may be missing from the answer though they were stored.

        `require` names blobs that must still be there at that moment (the references of the
        new nodes); their age is reset, so that gc leaves them to the head to come. `local` is a
        subset of `staged` and `require`, what only local trees reach: a new one gets the mark, a
        stored one keeps the mark that it has, if any. All others that are staged or required lose
        it: work has them, too.
        Raises NotFound for a required blob that is gone, or where a head would point to
        nothing; Conflict when a head is not `old`. On any error no head has moved.
        """

    def close(self) -> None: ...
