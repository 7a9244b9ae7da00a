"""The two waists of the store: what a backend must be able to do, and nothing more.

**Blobs** are immutable bytes under a hash. A blob may carry the hash of its type: then
this store has accepted it as a node. **Heads** are the only mutable thing: a name for a
(hash, record) pair, moved by compare-and-swap.

Writing has two stages. `stage` takes the bytes in (and may already write them to a
private place, so memory stays bounded); `publish` makes a set of staged blobs durable
and then moves heads. The order is the invariant that everything else rests on: whoever
sees a head sees every blob that was published with it or before it. A crash between the
two leaves garbage, never a hole.

Implementations: `casfs.backend.memory`, `casfs.backend.disk`. Each passes the suites of
`tests/contract_blobs.py` and `tests/contract_heads.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Collection as Hashes
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

from casfs import canonical
from casfs.digest import Digest, is_hash

META = "schema"  # the type of the meta-schema node, the only one that is not a hash
MAX_RECORD = 4096  # bytes of a head's record as canonical JSON
TEXTS = ("message", "reason")  # keys of records
SMALL = 1024  # bytes; up to here a blob is worth more as a row than as a file
MOVES = 10_000  # that the journal keeps at least
MOVES_AT_ONCE = 1000  # that one question to the journal is answered with


@dataclass(frozen=True, slots=True)
class BlobInfo:
    """What is known of a stored blob without reading it. `type`: hash of the schema node
    when the blob was accepted as a node (the meta-schema's own is `META`), else None."""

    size: int
    type: str | None


@dataclass(frozen=True, slots=True)
class Blob:
    """A blob's verified bytes, and its type as in BlobInfo."""

    data: bytes
    type: str | None


@dataclass(frozen=True, slots=True)
class Staged:
    """Bytes on their way in: either held in `data`, or in the private file `temp`."""

    digest: Digest
    data: bytes | None
    temp: str | None = None
    type: str | None = None


@dataclass(frozen=True)
class Head:
    """What a name points to: `hash` and a JSON object of at most MAX_RECORD bytes, which nobody
    may change."""

    hash: str
    record: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def text(self) -> str:
        """The record as canonical JSON: written once, then compared. Raises Invalid."""
        return canonical.encode(dict(self.record)).decode()


@dataclass(frozen=True, slots=True)
class Swap:
    """Move `name` from `old` to `new`; None stands for "not there"."""

    name: str
    old: Head | None
    new: Head | None


class Move(NamedTuple):
    """A line of the journal of heads: at `at_ms` (ms since 1970 UTC, by the writer's clock)
    `name` came to point to `hash`; None: it was deleted. `seq` counts all moves from 1,
    without a gap."""

    seq: int
    name: str
    hash: str | None
    at_ms: int


@dataclass(slots=True)
class Total:
    """An amount of content: blobs, their bytes, and how many of them are files of their own."""

    blobs: int = 0
    bytes: int = 0
    files: int = 0


def targets(head: Head) -> list[str]:
    """Every hash that a head holds: where it points, and what its record mentions. What a
    person or a program said in a record is text, whatever it looks like."""
    found = [head.hash]
    stack: list[object] = [head.record]
    while stack:
        value = stack.pop()
        if isinstance(value, str) and is_hash(value):
            found.append(value)
        elif isinstance(value, list):
            stack += value
        elif isinstance(value, dict):
            stack += [item for key, item in value.items() if key not in TEXTS]
    return found


class Blobs(Protocol):
    def stage(self, source: BinaryIO) -> Staged:
        """Take in a stream of unknown length; nothing is visible yet."""

    def stage_bytes(self, digest: Digest, data: bytes) -> Staged:
        """The same for bytes whose digest is known. May be called from any thread."""

    def discard(self, staged: Iterable[Staged]) -> None:
        """Forget what was staged and will not be published."""

    def private(self) -> Path | None:
        """The directory of this process's private files: another process that works for it
        may stage there. None where bytes are staged in memory only. Raises Failed."""

    def get(self, hash: str) -> Blob:
        """The verified bytes with their type. Raises NotFound, CorruptBlob."""

    def open(self, hash: str) -> BinaryIO:
        """A verified blob as a seekable file. Raises NotFound, CorruptBlob."""

    def content(self, hash: str, size: int) -> bytes:
        """The verified bytes of a blob that is said to be `size` bytes long: a hint of where it
        is kept, no promise. Raises NotFound, CorruptBlob."""

    def contents(self, hashes: Iterable[str]) -> Iterator[bytes | None]:
        """The verified bytes of each, in that order and looked up in portions; None for a
        blob that is better opened, being large. Raises NotFound, CorruptBlob."""

    def info(self, hashes: Hashes[str]) -> dict[str, BlobInfo]:
        """What is known of each; a hash that is not stored is not in the answer."""

    def missing(self, hashes: Hashes[str]) -> list[str]:
        """Those of `hashes` that are not stored, in their order, each once."""

    def find(self, prefix: str, limit: int = 2) -> list[str]:
        """Up to `limit` stored hashes that start with `prefix`, sorted."""

    def iterate(self, type: str | None = None) -> Iterator[tuple[str, BlobInfo]]:
        """All blobs (of one type) in the order of arrival; memory stays bounded."""

    def arrivals(self, after: int = 0) -> Iterator[tuple[int, str, BlobInfo]]:
        """All blobs that arrived after a position (0: the beginning), each with its own."""

    def total(self) -> Total:
        """How much is stored."""

    def types(self) -> dict[str, int]:
        """How many nodes there are of each type, by the type's hash."""

    def verify(self, hash: str) -> None:
        """Read a blob again, whatever was verified before. Raises NotFound, CorruptBlob."""

    def quarantine(self, hash: str) -> None:
        """Take a damaged blob out of the store; its bytes are kept aside. Only fsck may."""


class Heads(Protocol):
    def get(self, name: str) -> Head | None: ...

    def list(self, prefix: str = "", *, reverse: bool = False) -> Iterator[tuple[str, Head]]:
        """Names that start with `prefix`, sorted by code point."""

    def note_use(self, names: Hashes[str]) -> None:
        """Remember that these were used now: cache is evicted by its last use."""

    def last_use(self, name: str) -> int:
        """When it was used last, in ms since 1970 UTC; 0 where nobody said so."""

    def moves(self, after: int = 0) -> Sequence[Move]:
        """The journal: what moved after the move `after`, oldest first, at most
        MOVES_AT_ONCE. It is written with the moves, so it misses none; it keeps the last
        MOVES, so an answer that begins later than asked for says that some are lost. What a
        move points to may be gone: the journal keeps no blob alive."""

    def moved(self) -> int:
        """The `seq` of the newest move, 0 before the first; cheap."""


class Collection(Protocol):
    """One run of gc over a backend (`casfs.maintenance.gc` decides what is marked). A context
    manager.

    From its beginning to its end the backend notes every blob that is touched, so that
    `sweep` can have what they refer to marked before it deletes anything: a writer that
    works meanwhile loses nothing.
    """

    marked: Total

    def __enter__(self) -> Collection: ...

    def __exit__(self, *_: object) -> None: ...

    def mark(self, hashes: Hashes[str]) -> list[str]:
        """Keep these blobs; returns those that are nodes and were not marked before."""

    def reset(self) -> None:
        """Forget all marks."""

    def young(self, since: int) -> Iterator[list[str]]:
        """The blobs touched since `since` (UTC seconds), in portions."""

    def sweep(
        self, before: int, follow: Callable[[list[str]], None], *, dry_run: bool
    ) -> Iterator[tuple[str, BlobInfo]]:
        """Delete what is not marked and was touched before `before`; yields what went.

        `follow` is given hashes that were touched during the run, and marks their closure.
        """


class Backend(Protocol):
    """A store's two waists and the one way to write to them."""

    @property
    def blobs(self) -> Blobs: ...

    @property
    def heads(self) -> Heads: ...

    def publish(
        self, staged: Iterable[Staged], swaps: Iterable[Swap] = (), require: Hashes[str] = ()
    ) -> set[str]:
        """Make `staged` durable, then move all heads of `swaps`, or none of them. Returns
        those of `staged` that it found stored already; where they are many it looks for nodes only.

        `require` names blobs that must still be there at that moment (what the new nodes
        refer to); their age is renewed, so that gc leaves them to the head to come.
        Raises NotFound for a required blob that has gone, or where a head would point to
        nothing; Conflict when a head is not `old`. On any error no head has moved.
        """

    def version(self) -> int:
        """A number that changes when any head may have changed: a cheap staleness check."""

    def faults(self) -> Iterator[str]:
        """What is wrong with the store's own files, a line each; contents are not read."""

    def collection(self) -> Collection:
        """Begin a gc run. Raises Conflict while another one is under way."""

    def close(self) -> None: ...
