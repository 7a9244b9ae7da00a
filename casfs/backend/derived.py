"""Operations derived from the required interfaces, by a capability where a backend has it."""

from __future__ import annotations

import heapq
import io
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

from casfs.backend import capabilities
from casfs.backend.capabilities import GcRun, Repairable
from casfs.backend.protocols import (
    Backend,
    BlobInfo,
    Blobs,
    HeadName,
    Heads,
    Publication,
    Staged,
    Total,
)
from casfs.digest import Digest
from casfs.errors import Refused

StageChange = Callable[[BinaryIO, int, str], Staged | None]


def find_missing(blobs: Blobs, hashes: Collection[str]) -> list[str]:
    """Returns those of `hashes` that are not stored, in their order, each once."""
    if isinstance(blobs, capabilities.Indexed):
        return blobs.missing(hashes)
    known = blobs.info(hashes)
    return [hash for hash in dict.fromkeys(hashes) if hash not in known]


def find_prefix(blobs: Blobs, prefix: str, limit: int = 2) -> list[str]:
    """Returns up to `limit` stored hashes that start with `prefix`, sorted."""
    # Two show already that a prefix is ambiguous, hence the default.
    if isinstance(blobs, capabilities.Indexed):
        return blobs.find(prefix, limit)
    # Blobs come in the order of arrival, so all are looked at; only `limit` are held.
    matches = (hash for _, hash, _ in blobs.iterate() if hash.startswith(prefix))
    return heapq.nsmallest(limit, matches)


def of_types(blobs: Blobs, types: Collection[str]) -> Iterator[tuple[str, BlobInfo]]:
    """Yields the nodes of these types, in the order of arrival."""
    # The index has each type by itself; of several, only a scan is in the order of arrival.
    if isinstance(blobs, capabilities.Indexed) and len(types) == 1:
        return blobs.of_type(*types)
    arrivals = blobs.iterate()
    return ((hash, info) for _, hash, info in arrivals if info.type in types)


def total_stored(blobs: Blobs) -> Total:
    if isinstance(blobs, capabilities.Indexed):
        return blobs.total()
    # `files` stays 0: the metadata of a blob do not say whether it is a file.
    sizes = [info.size for _, _, info in blobs.iterate()]
    return Total(len(sizes), sum(sizes))


def count_by_type(blobs: Blobs) -> dict[str, int]:
    """Returns the number of nodes of each type, by the type's hash."""
    if isinstance(blobs, capabilities.Indexed):
        return blobs.types()
    counts: Counter[str] = Counter()
    for _, _, info in blobs.iterate():
        if info.type is not None:
            counts[info.type] += 1
    return dict(counts)


def in_remote(blobs: Blobs, remote: str | None = None) -> Iterator[tuple[str, str]]:
    """Yields (hash, pack) of the blobs that are in a remote only: in this one, or in any."""
    return blobs.in_remote(remote) if isinstance(blobs, capabilities.Lazy) else iter(())


def room_by_type(blobs: Blobs) -> dict[str | None, Total]:
    """Returns what is stored of each type, by the type's hash; None: plain bytes."""
    if isinstance(blobs, capabilities.Indexed):
        return blobs.room()
    totals: dict[str | None, Total] = {}
    for _, _, info in blobs.iterate():
        total = totals.setdefault(info.type, Total())
        total.blobs += 1
        total.bytes += info.size
    return totals


def stager(blobs: Blobs) -> Callable[[Digest, bytes], Staged]:
    """Returns the function that stages bytes whose digest is known."""
    # A function, as in `sized_reader`: for callers of many blobs, as `isinstance` takes some 15 µs.
    if isinstance(blobs, capabilities.StagingBytes):
        return blobs.stage_bytes

    def stage(_: Digest, data: bytes) -> Staged:
        source = io.BytesIO(data)
        return blobs.stage(source)

    return stage


def change_stager(blobs: Blobs) -> StageChange | None:
    """Returns the function that stages a large blob as its differences from another; None where
    every blob is stored whole."""
    return blobs.stage_change if isinstance(blobs, capabilities.StagingChanges) else None


def staging_directory(blobs: Blobs) -> Path | None:
    """Returns the directory of this process's private files, which worker processes can share;
    None where blobs are staged elsewhere. Raises Failed."""
    return blobs.staging_directory() if isinstance(blobs, capabilities.LocalStaging) else None


def open_stream(blobs: Blobs, hash: str) -> BinaryIO:
    """Opens a blob for one reading from the start, which leaves it in its tier."""
    return blobs.stream(hash) if isinstance(blobs, capabilities.Streamed) else blobs.open(hash)


def sized_reader(blobs: Blobs) -> Callable[[str, int], bytes]:
    """Returns the function that reads a whole blob whose size is known (a hint)."""
    if isinstance(blobs, capabilities.SizedReads):
        return blobs.get_sized
    return lambda hash, _: blobs.get(hash).data


def follow(backend: Backend) -> None:
    """Prepares a process that serves readers: from now on heads are read from the replica on this
    machine, if the backend has replicas, without asking the database's machine. Raises Unreachable
    where there is none yet."""
    if isinstance(backend, capabilities.Following):
        backend.follow()


def newest_move(heads: Heads) -> int:
    """Returns the `seq` of the newest move, 0 before the first."""
    # A negative `after` asks for that many of the newest.
    numbers = [move.seq for move in heads.moves(after=-1)]
    return max(numbers, default=0)


def version_of(backend: Backend) -> Callable[[], int]:
    """Returns the function whose value changes when any head may have changed."""
    if isinstance(backend, capabilities.Versioned):
        return backend.version
    # Each move of a head is in the journal, so the number of the newest tells as much.
    return partial(newest_move, backend.heads)


def publish_group(backend: Backend, group: Sequence[Publication]) -> list[set[str] | BaseException]:
    """Publishes each on its own, in one transaction where the backend can; returns the hashes that
    were stored already, or the error."""
    if isinstance(backend, capabilities.GroupPublishing):
        return backend.publish_group(group)
    return publish_each(backend.publish, group)


def publish_each(
    publish: Callable[..., set[str]], group: Sequence[Publication]
) -> list[set[str] | BaseException]:
    """Publishes each in a transaction of its own; returns what each call returns or raises."""
    results: list[set[str] | BaseException] = []
    for publication in group:
        try:
            results.append(publish(*publication))
        except Exception as error:  # KeyboardInterrupt and the like end the group
            results.append(error)
    return results


def note_use(heads: Heads, names: Collection[HeadName]) -> None:
    """Records that these heads were used now, where the backend tracks usage."""
    if isinstance(heads, capabilities.UsageTracking):
        heads.note_use(names)


def last_use(heads: Heads, name: HeadName) -> int:
    """Returns the time of a head's last use in ms since 1970 UTC; 0 where none is recorded."""
    return heads.last_use(name) if isinstance(heads, capabilities.UsageTracking) else 0


def repairable(blobs: Blobs) -> Repairable:
    """Returns the blobs with fsck's methods. Raises Refused where the backend has none."""
    # Here and for gc nothing can be derived: the required interfaces cannot delete a blob.
    if not isinstance(blobs, Repairable):
        raise Refused("this backend does not support fsck")
    return blobs


def start_gc(backend: Backend) -> GcRun:
    """Begins a gc run. Raises Conflict while another one is under way, Refused where the backend
    has no garbage collection."""
    if not isinstance(backend, capabilities.Collectable):
        raise Refused("this backend does not support garbage collection")
    return backend.collection()
