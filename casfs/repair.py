"""Put lost content back, from another store or from any directory that has it.

Content is found by its hash alone, so a source cannot bring in anything but what was lost.
A directory is searched file by file: a restored checkpoint, an old copy of `objects/`, an
unpacked export all do.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path

from .backend import Staged
from .digest import Digest, hash_stream
from .errors import CasfsError, Failed, NotFound
from .fsck import Report, is_node
from .store import Store


def repair(store: Store, report: Report, source: Path) -> list[str]:
    """Bring back what `report` found lost; returns the hashes that are there again.

    Raises NotFound where `source` is no store and no directory.
    """
    lost = {fault.hash for fault in report.faults if fault.hash}
    lost = {hash for hash in lost if not store.blobs.info([hash])}
    found = _from_store(source, lost) if (source / "format").exists() else _from_files(source, lost)
    back = []
    for hash, data, type in found:
        _put_back(store, hash, data, type)
        back.append(hash)
    return back


def _put_back(store: Store, hash: str, data: bytes | Path, type: str | None) -> None:
    """Publish without closure: what this refers to may be lost as well, and follow later."""
    if isinstance(data, bytes):
        type = type or is_node(store, data)
        staged = (
            Staged(Digest.of(data), data, type=type)
            if type is not None
            else store.blobs.stage(io.BytesIO(data))
        )
    else:
        with data.open("rb") as source:
            staged = store.blobs.stage(source)
    if staged.digest.hash != hash:  # it changed since it was hashed
        store.blobs.discard([staged])
        raise Failed(f"{hash} changed while it was read; run it again")
    store.backend.publish([staged])


def _from_store(source: Path, lost: set[str]) -> Iterator[tuple[str, bytes | Path, str | None]]:
    with Store.open(source) as other:
        for hash in sorted(lost & other.blobs.info(lost).keys()):
            try:
                blob = other.blobs.get(hash)
            except CasfsError:  # damaged there too
                continue
            yield hash, blob.data, blob.type


def _from_files(source: Path, lost: set[str]) -> Iterator[tuple[str, bytes | Path, str | None]]:
    if not source.is_dir():
        raise NotFound(f"no store and no directory {source}")
    wanted = set(lost)
    for folder, _, names in os.walk(source):
        for name in names:
            path = Path(folder, name)
            hash = _hash(path)
            if hash in wanted:
                wanted.discard(hash)
                small = path.stat().st_size <= 64 << 20
                yield hash, path.read_bytes() if small else path, None


def _hash(path: Path) -> str:
    """The hash of a regular file; empty for anything else, or where it cannot be read."""
    try:
        if path.is_symlink() or not path.is_file():
            return ""
        with path.open("rb") as source:
            return hash_stream(source).hash
    except OSError:
        return ""
