"""Repairs: restores lost content from another store or from any directory.

Content is searched by its hash alone, so a source cannot add anything but lost content. A
directory is searched file by file: a restored checkpoint, an old copy of `objects/`, an
unpacked archive and the store's own `quarantine/` all serve. A node is restored with its
type, so its schema has to be restored first.
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
from casfs.backend.protocols import MAX_NODE_BYTES, META, Staged, discard
from casfs.digest import Digest, hash_stream, is_hash
from casfs.errors import CasfsError, Failed, NotFound
from casfs.maintenance.blob_check import detect_type
from casfs.maintenance.fsck import Report
from casfs.store.store import Store
from casfs.system.files import os_errors

Content = tuple[bytes | Path, str | None]  # bytes or a file, hash of the type
Found = list[tuple[str, Callable[[], Content]]]  # hash, and how to load it


def repair_all(
    store: Store, report: Report, source: Path, check: Callable[[], Report]
) -> tuple[Report, list[str]]:
    """Alternates repair and `check` until nothing more is restored, since the refs of a lost
    node are known only when it is back.

    Returns the last report, with everything quarantined on the way, and the restored hashes.
    """
    restored: list[str] = []
    while report.faults and (newly_restored := repair(store, report, source)):
        restored += newly_restored
        quarantined = report.quarantined
        report = check()
        report.quarantined = [*quarantined, *report.quarantined]
    return report, restored


def repair(store: Store, report: Report, source: Path) -> list[str]:
    """Restores the lost blobs of `report`; returns their hashes.

    Raises NotFound where `source` is neither a store nor a directory, Failed.
    """
    lost = {fault.hash for fault in report.faults if fault.hash}
    lost -= store.blobs.info(lost).keys()
    restored: list[str] = []
    with _open_source(source, lost) as waiting:
        while True:
            later = []
            for hash, load in waiting:
                if _restore(store, hash, *load(), lost):
                    restored.append(hash)
                    lost.discard(hash)
                else:
                    later.append((hash, load))
            if len(later) == len(waiting):
                return restored
            waiting = later


def _restore(store: Store, hash: str, data: bytes | Path, type: str | None, lost: set[str]) -> bool:
    """Publishes a blob without its closure: its refs may be lost too, and follow later.

    Returns False when its type has to be restored first.
    """
    if isinstance(data, bytes):
        expected = type or _type_field(data)
        if expected in lost or (type not in (None, META) and not store.blobs.info([str(type)])):
            return False
        type = type or detect_type(store, data)
        staged = (
            Staged(Digest.of(data), data, type=type)
            if type is not None
            else store.blobs.stage(io.BytesIO(data))
        )
    else:
        with data.open("rb") as source:
            staged = store.blobs.stage(source)
    if staged.digest.hash != hash:  # changed since it was hashed
        discard([staged])
        raise Failed(f"{hash} changed while it was read; run the repair again")
    store.backend.publish([staged])
    return True


def _type_field(data: bytes) -> str | None:
    """Returns the hash in the `type` field of bytes that may be a node, else None."""
    try:
        type = canonical.parse(data)["type"]
    except (CasfsError, KeyError, TypeError):
        return None
    return type if is_hash(type) else None


@contextmanager
def _open_source(source: Path, lost: set[str]) -> Iterator[Found]:
    """Yields the blobs of `lost` that a source has, while it is open."""
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
    with os_errors(f"cannot read {path}"):
        return (path.read_bytes() if path.stat().st_size <= MAX_NODE_BYTES else path), None


def _hash(path: Path) -> str:
    """Returns the hash of a regular file; empty for anything else and on errors."""
    try:
        if path.is_symlink() or not path.is_file():
            return ""
        with path.open("rb") as source:
            return hash_stream(source).hash
    except OSError:
        return ""
