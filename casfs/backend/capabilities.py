"""Optional protocols of a backend, tested for with `isinstance`.

Each states on which object it is looked for. `casfs.backend.derived` holds the fallbacks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol, runtime_checkable

from casfs.backend.block_maps import BlockMap
from casfs.backend.protocols import (
    Backend,
    BlobInfo,
    Head,
    HeadName,
    Publication,
    Purge,
    Staged,
    Swap,
    Total,
)
from casfs.digest import Digest

Progress = Callable[[int, int], None]  # blobs and bytes so far
IN_REMOTE = -1  # instead of an offset in a local pack


class PackPlace(NamedTuple):
    """Where a blob is in a pack. `offset`: of its plain bytes, None in a cold pack."""

    pack: str
    pack_bytes: int
    offset: int | None
    blob_bytes: int
    is_node: bool


Wanted = Callable[[Mapping[HeadName, Head]], Collection[HeadName]]


@runtime_checkable
class StagingBytes(Protocol):
    """Blobs: bytes whose digest is known are not hashed again."""

    def stage_bytes(self, digest: Digest, data: bytes) -> Staged:
        """As `Blobs.stage`, for bytes whose digest is known. May be called from any thread."""


@runtime_checkable
class StagingChanges(Protocol):
    """Blobs: a large one that was changed a little is stored as its differences."""

    def stage_change(self, source: BinaryIO, size: int, base: str) -> Staged | None:
        """As `Blobs.stage`, for a file of `size` bytes that has blocks of the blob `base`. Returns
        None where it has few, or `base` cannot be read; `source` is anywhere then."""

    def block_maps(self, hashes: Collection[str]) -> dict[str, BlockMap]:
        """Returns the maps of those that are stored as differences. Raises CorruptBlob."""

    def kin(self, hashes: Collection[str]) -> dict[str, BlockMap]:
        """As `block_maps`, with all that share a source with one of these, or have blocks of it."""


@runtime_checkable
class LocalStaging(StagingBytes, Protocol):
    """Blobs: staged into private files of this machine, which worker processes can share."""

    def staging_directory(self) -> Path:
        """Returns the directory of this process's private files. Raises Failed."""


@runtime_checkable
class SizedReads(Protocol):
    """Blobs: a read is cheaper where the caller knows the size."""

    def get_sized(self, hash: str, size: int) -> bytes:
        """Returns the verified bytes of a blob that is said to be `size` bytes long: a hint of
        where it is kept, not a promise. Raises NotFound, CorruptBlob."""


@runtime_checkable
class Packed(Protocol):
    """Blobs: some are in packs."""

    def places(self, hashes: Collection[str]) -> dict[str, PackPlace]:
        """Returns of those that are in packs: name and size of the pack, and where the plain bytes
        begin in it; None: they are compressed; IN_REMOTE: the pack is in a remote."""


# Apart from `Blobs.open`, which makes a large packed blob a file again, so that it is seekable.
@runtime_checkable
class Streamed(Protocol):
    """Blobs: a single reading needs no file of its own."""

    def stream(self, hash: str) -> BinaryIO:
        """As `Blobs.open`, for one reading from the start: a large blob of a cold pack stays there,
        and is verified before."""


@runtime_checkable
class Indexed(Protocol):
    """Blobs: indexes that answer without a scan. Semantics as in `casfs.backend.derived`."""

    def missing(self, hashes: Collection[str]) -> list[str]: ...

    def find(self, prefix: str, limit: int) -> list[str]: ...

    def of_type(self, type: str) -> Iterator[tuple[str, BlobInfo]]: ...

    def total(self) -> Total: ...

    def types(self) -> dict[str, int]: ...

    def room(self) -> dict[str | None, Total]: ...


@runtime_checkable
class UsageTracking(Protocol):
    """Heads: cache entries are evicted by their last use."""

    def note_use(self, names: Collection[HeadName]) -> None:
        """Records that these were used now; names without a head are ignored."""

    def last_use(self, name: HeadName) -> int:
        """Returns the time of the last use in ms since 1970 UTC; 0 where none is recorded."""


# Asked much more often than heads move, so it must be cheaper than a look at the journal.
@runtime_checkable
class Versioned(Protocol):
    """Backend: a cheap staleness check."""

    def version(self) -> int:
        """Returns a number that changes whenever any head may have changed."""


@runtime_checkable
class Following(Protocol):
    """Backend: its heads are on another machine, and can be followed here, where all content is a
    cache of what is there."""

    def follow(self) -> None:
        """Has heads and journal answered by a replica on this machine, which lags by a moment, and
        goes on without that other machine. For a process that serves readers and moves no head.
        Raises Unreachable where there is no replica yet."""


@runtime_checkable
class GroupPublishing(Protocol):
    """Backend: publications can share a transaction."""

    def publish_group(self, group: Sequence[Publication]) -> list[set[str] | BaseException]:
        """`publish` of each, in this order; what one raises is its result, and leaves the others
        alone. Returns once all are durable."""


# What a method of a capability returns is never tested for, so it is not `runtime_checkable`.
class RecompressionRun(Protocol):
    def train(self) -> int:
        """Trains dictionaries for the types that have grown. Returns how many."""

    def recompress(self) -> None:
        """Compresses the nodes that have arrived since the last run, or all after `train`."""

    def retire(self, is_found: Callable[[bytes], bool]) -> int:
        """Erases those dictionaries of whose bytes `is_found` is true. Returns how many."""


@runtime_checkable
class Compressing(Protocol):
    """Backend: stored nodes can be compressed anew (`casfs.backend.recompression`)."""

    def recompression(self) -> RecompressionRun: ...


@runtime_checkable
class Lazy(Protocol):
    """Blobs: the content of some may be in a remote, from which it is read."""

    def in_remote(self, remote: str | None = None) -> Iterator[tuple[str, str]]:
        """Yields (hash, pack) of the blobs that are in one remote only, or in any."""


@runtime_checkable
class Repairable(Protocol):
    """Blobs: fsck can check the stored files and blobs, and quarantine damage."""

    def faults(self) -> Iterator[str]:
        """Yields what is wrong with the store's own files, a line each; contents are not read."""

    def verify(self, hash: str) -> None:
        """Reads a blob again, even if verified before. Raises NotFound, CorruptBlob."""

    def quarantine(self, hash: str) -> None:
        """Takes a damaged blob out of the store; its bytes are kept. Only for fsck."""


@runtime_checkable
class Purgeable(Protocol):
    """Blobs: the content of some can be deleted for good, whatever refers to it."""

    # With heads, since the tombstone must be there whenever the mark is: it keeps the row and the
    # substitute through gc, and is what travels to other stores.
    def purge(self, purges: Collection[Purge], swaps: Sequence[Swap] = ()) -> bool:
        """Puts a mark in place of the bytes of each blob, in its row, and in the same transaction
        moves the heads, among them the tombstones, which record the purge. Size and type stay;
        reads give the substitute, another blob, or raise Purged; a put of the same bytes stores
        nothing. A blob that is not stored gets a row with such a mark; one that was purged gets a
        new substitute.
        Returns False where copies may remain in the database's log, as readers are using it.
        Raises NotFound (the substitute), Invalid for a node without a substitute of its type,
        Conflict."""

    def unpurge(self, hash: str, swaps: Sequence[Swap] = ()) -> None:
        """Lets a put bring the bytes of a purged blob back; until then reading it raises Purged.
        Raises NotFound for one that is not purged, or is a node: what that refers to would be
        lost."""

    def erase_remains(self, is_found: Callable[[BinaryIO], bool]) -> bool:
        """Erases what deleted blobs have left behind. The database is written anew where `is_found`
        is true of the bytes of one of its files; packs drop their deleted members in any case.
        Returns as `purge`."""


class Tiers(Protocol):
    """The "hot" and "cold" packs of a backend, as in `casfs.backend.tiers`."""

    def move(
        self, blobs: Iterable[tuple[str, int]], kind: str, *, before: int, progress: Progress
    ) -> Total: ...
    def warm(self, hashes: Collection[str], progress: Progress = ...) -> Total: ...
    def tidy(self) -> None: ...
    def room(self) -> dict[str, Total]: ...


@runtime_checkable
class Tiered(Protocol):
    """Backend: blobs can be moved between tiers."""

    # Not in `Packed`: a shared store has packs, but no tiers. `isinstance` reads this attribute, so
    # the backend makes its tiers then.
    tiers: Tiers


class GcRun(Protocol):
    """One run of gc over a backend (`casfs.maintenance.gc` decides what is marked). A context
    manager.

    A write barrier makes the mark-sweep concurrent: from the run's beginning to its end the
    backend records every blob that is touched, so that `sweep` can have their references
    marked before it deletes anything. A concurrent writer loses nothing.
    """

    marked: Total

    def __enter__(self) -> GcRun: ...

    def __exit__(self, *_: object) -> None: ...

    # The run knows no references, so it returns what the caller has to follow.
    def mark(self, hashes: Collection[str]) -> list[str]:
        """Marks these blobs as live; returns those that are nodes and were not marked before."""

    # Marks cannot be taken back one by one: what an evicted head reached, another may reach, too.
    def reset(self) -> None:
        """Clears all marks."""

    # For `casfs pack`, which packs blobs in this order: neighbours of a tree share a frame.
    def unmarked_files(self, before: int) -> Iterator[tuple[str, int]]:
        """Yields (hash, size) of the unmarked plain blobs outside the database and the cold tier
        that were touched before `before`, in the order of arrival."""

    # A head for them may not be written yet, so they are roots.
    def recent(self, since: int) -> Iterator[list[str]]:
        """Yields the blobs touched since `since` (UTC seconds), in batches."""

    def sweep(
        self, before: int, follow: Callable[[list[str]], None], *, dry_run: bool
    ) -> Iterator[tuple[str, BlobInfo]]:
        """Deletes unmarked blobs that were touched before `before`; yields those deleted. `follow`
        is called with hashes that were touched during the run, and marks their closure."""


@runtime_checkable
class Collectable(Protocol):
    """Backend: garbage collection."""

    def collection(self) -> GcRun:
        """Begins a gc run. Raises Conflict while another one is under way."""


@runtime_checkable
class SharedByMachines(Protocol):
    """Backend: machines share it; each has a local cache."""

    local: Backend

    def state(self) -> dict[str, Any]:
        """Returns the state of its servers and machines, as in `casfs status --json`."""


class Lease(NamedTuple):
    """The right to run a thread. `head`: as it is since the lease was taken; its record holds the
    `token`, so a former owner's next move of it is a Conflict."""

    thread: HeadName
    token: int
    head: Head


class Renewal(NamedTuple):
    """`lost`: leases that are another daemon's, or expired; `stopped`: threads of held leases whose
    heads say that they do not run any more, since another process ended or suspended them."""

    lost: set[HeadName]
    stopped: set[HeadName]


class Leases(Protocol):
    """The leases of one daemon. Raises Unreachable where the database does not answer."""

    ttl_s: float

    def claim(
        self,
        limit: int,
        *,
        only: HeadName | None = None,
        wanted: Wanted | None = None,
        held: Collection[HeadName] | None = None,
    ) -> list[Lease]:
        """Takes up to `limit` threads that run and have no valid lease, and moves their heads; the
        oldest first, of those that `wanted` chooses. `held`: all leases that this daemon knows to
        have: any other of its own comes from a claim whose answer was lost, and may be claimed
        again. With None none is."""

    def renew(self, held: Collection[HeadName]) -> Renewal:
        """Extends all leases by `ttl_s` from now, in one statement."""

    # Asked much more often than leases are renewed, as it writes nothing.
    def check(self, held: Collection[HeadName]) -> Renewal:
        """As `renew`, without extending them."""

    def release(self, held: Collection[HeadName]) -> None:
        """Gives leases up; others may take the threads at once."""


@runtime_checkable
class Leasing(Protocol):
    """Backend: daemons on several machines share its threads."""

    def leases(self, owner: str) -> Leases:
        """`owner`: an id that no daemon had before. Releases the leases of this machine's last
        daemon, which must have ended."""
