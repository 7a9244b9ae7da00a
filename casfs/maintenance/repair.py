"""Put lost content back, from another store or from any directory that has it.

Content is found by its hash alone, so a source cannot bring in anything but what was lost.
A directory is searched file by file: a restored checkpoint, an old copy of `objects/`, an
unpacked export, the store's own `quarantine/` all do. A node comes back as a node, so its
schema has to come back before it.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from casfs import canonical
from casfs.backend.derived import repairable
from casfs.backend.protocols import META, Staged, discard
from casfs.digest import Digest, hash_stream, is_hash
from casfs.errors import CasfsError, Failed, NotFound
from casfs.maintenance import fsck
from casfs.maintenance.fsck import Report
from casfs.store import Store

IN_MEMORY = 64 << 20  # bytes; what is larger is copied as a stream and taken for no node
Content = tuple[bytes | Path, str | None]  # the bytes or where they are, the type's hash
Found = list[tuple[str, Callable[[], Content]]]  # hash, and how to load it


def repair_all(
    store: Store, report: Report, source: Path, check: Callable[[], Report]
) -> tuple[Report, list[str]]:
    """Repair and `check` in turns until nothing more comes back, since what a lost node
    refers to is seen only when it is there again. Returns the last report, with all that
    was ever quarantined, and the hashes that came back."""
    back: list[str] = []
    while report.faults and (found := repair(store, report, source)):
        back += found
        quarantined = report.quarantined
        report = check()
        report.quarantined = [*quarantined, *report.quarantined]
    return report, back


def repair(store: Store, report: Report, source: Path) -> list[str]:
    """Bring back what `report` found lost; returns the hashes that are there again.

    Raises NotFound where `source` is no store and no directory.
    """
    lost = {fault.hash for fault in report.faults if fault.hash}
    lost -= store.blobs.info(lost).keys()
    back: list[str] = []
    with _searched(source, lost) as waiting:
        while True:
            later = []
            for hash, load in waiting:
                if _put_back(store, hash, *load(), lost):
                    back.append(hash)
                    lost.discard(hash)
                else:
                    later.append((hash, load))
            if len(later) == len(waiting):
                return back
            waiting = later


def _put_back(
    store: Store, hash: str, data: bytes | Path, type: str | None, lost: set[str]
) -> bool:
    """Publish without closure: what this refers to may be lost as well, and follow later.
    False when its type has to come first."""
    if isinstance(data, bytes):
        claimed = type or _claimed(data)
        if claimed in lost or (type not in (None, META) and not store.blobs.info([str(type)])):
            return False
        type = type or fsck.is_node(store, data)
        staged = (
            Staged(Digest.of(data), data, type=type)
            if type is not None
            else store.blobs.stage(io.BytesIO(data))
        )
    else:
        with data.open("rb") as source:
            staged = store.blobs.stage(source)
    if staged.digest.hash != hash:  # it changed since it was hashed
        discard([staged])
        raise Failed(f"{hash} changed while it was read; run it again")
    store.backend.publish([staged])
    return True


def _claimed(data: bytes) -> str | None:
    """The type that bytes would have, were they a node."""
    try:
        type = canonical.parse(data)["type"]
    except (CasfsError, KeyError, TypeError):
        return None
    return type if is_hash(type) else None


@contextmanager
def _searched(source: Path, lost: set[str]) -> Iterator[Found]:
    """What of `lost` is in a source, while it is open."""
    if (source / "store.db").exists() and (source / "format").exists():
        with Store.open(source) as other:
            yield list(_from_store(other, lost))
    elif source.is_dir():
        yield list(_from_files(source, lost))
    else:
        raise NotFound(f"no store and no directory {source}")


def _from_store(other: Store, lost: set[str]) -> Iterator[tuple[str, Callable[[], Content]]]:
    for hash in sorted(lost & other.blobs.info(lost).keys()):
        try:
            repairable(other.blobs).verify(hash)
        except CasfsError:  # damaged there too
            continue
        yield hash, partial(_loaded, other, hash)


def _loaded(other: Store, hash: str) -> Content:
    blob = other.blobs.get(hash)
    return blob.data, blob.type


def _from_files(source: Path, lost: set[str]) -> Iterator[tuple[str, Callable[[], Content]]]:
    wanted = set(lost)
    for folder, _, names in os.walk(source):
        for name in names:
            path = Path(folder, name)
            hash = _hash(path)
            if hash in wanted:
                wanted.discard(hash)
                yield hash, partial(_read, path)


def _read(path: Path) -> Content:
    try:
        return (path.read_bytes() if path.stat().st_size <= IN_MEMORY else path), None
    except OSError as error:
        raise Failed(f"cannot read {path}: {error.strerror}") from None


def _hash(path: Path) -> str:
    """The hash of a regular file; empty for anything else, or where it cannot be read."""
    try:
        if path.is_symlink() or not path.is_file():
            return ""
        with path.open("rb") as source:
            return hash_stream(source).hash
    except OSError:
        return ""
