"""Finds a text in all that a store has: contents, nodes, heads, and the files beside them.

Contents are read through the backend, so they are found whatever holds them: a row, compressed or
not, a file, a pack. The files of the database are read byte by byte as well: what was deleted may
remain there. What is in a remote only is not fetched; it is counted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from casfs.backend.derived import open_stream
from casfs.backend.protocols import META, BlobInfo, HeadName
from casfs.errors import CasfsError, Failed, NotFound
from casfs.maintenance.needle import Needle
from casfs.store.nodes import node
from casfs.store.store import Store
from casfs.system import interruption

BATCH_BLOBS = 500
DATABASE = "store.db"
DATABASE_KIND = "database"
CONTENT_FOLDERS = ("objects", "packs")  # read as blobs
FILE_KINDS = {
    "log": "log",
    "live": "live output",
    "spool": "report of an agent",
    "quarantine": "damaged blob",
    "remotes": "copy of a remote",
    "images": "image",
    "workspaces": "workspace",
    "ignored": "copy of ignored files",
    "tmp": "private file of a running writer",
}
Progress = Callable[[int, int], None]  # blobs and bytes so far


@dataclass(frozen=True, slots=True)
class FoundBlob:
    """`type`: name of the node's type, None of plain bytes. `lines`: where it begins, in a node
    within one of its strings; empty where the blob is long."""

    hash: str
    info: BlobInfo
    type: str | None
    lines: list[int] = field(default_factory=list)

    @property
    def is_name(self) -> bool:
        """Whether it is in a name or in a schema, which nothing replaces."""
        return self.type in ("directory", META)


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file of the store's directory, by its path in there."""

    path: str
    kind: str


@dataclass(slots=True)
class Found:
    """`heads`: whose record or name has the text; `remote`: blobs that were not read; `position`:
    up to which blobs were looked at."""

    blobs: list[FoundBlob] = field(default_factory=list)
    heads: list[HeadName] = field(default_factory=list)
    files: list[FoundFile] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    remote: int = 0
    position: int = 0

    def __bool__(self) -> bool:
        return bool(self.blobs or self.heads or self.files)


def search(store: Store, needle: Needle, progress: Progress = lambda blobs, bytes: None) -> Found:
    findings = Found()
    search_blobs(store, needle, findings=findings, progress=progress)
    findings.heads = list(_heads(store, needle))
    findings.files = list(files(store, needle))
    if findings.blobs or findings.heads:  # that is where the database has it
        findings.files = [file for file in findings.files if file.kind != DATABASE_KIND]
    return findings


def search_blobs(
    store: Store, needle: Needle, findings: Found, progress: Progress = lambda blobs, bytes: None
) -> None:
    """Adds what is in blobs that arrived after `found.position`, and moves that."""
    arrivals = store.blobs.iterate(findings.position)
    blobs = total = 0
    while batch := list(islice(arrivals, BATCH_BLOBS)):
        interruption.check()
        infos = store.blobs.info([hash for _, hash, _ in batch])
        present_infos = {hash: info for hash, info in infos.items() if info.is_here}
        findings.remote += sum(1 for info in infos.values() if info.remote)
        for hash, data in _contents(store, list(present_infos)):
            try:
                if hit := _look(store, needle, hash=hash, info=present_infos[hash], data=data):
                    findings.blobs.append(hit)
            except NotFound:  # gc deleted it meanwhile
                continue
            except CasfsError:
                findings.unread.append(hash)
        findings.position = batch[-1][0]
        blobs += len(batch)
        total += sum(info.size for info in present_infos.values())
        progress(blobs, total)


def _contents(store: Store, hashes: list[str]) -> Iterator[tuple[str, bytes | None]]:
    """Yields the contents; None for one that is better streamed, or cannot be read."""
    try:
        contents = list(store.blobs.get_many(hashes))
    except CasfsError:  # one of them is damaged, or was deleted meanwhile
        contents = [None] * len(hashes)
    return zip(hashes, contents, strict=True)


def _look(
    store: Store, needle: Needle, hash: str, info: BlobInfo, data: bytes | None
) -> FoundBlob | None:
    if data is None:
        with open_stream(store.blobs, hash) as source:
            if not needle.is_in_stream(source):
                return None
        data = store.get(hash) if info.type is not None else b""
    elif not needle.is_in(data):
        return None
    if info.type is None:
        return FoundBlob(hash, info, type=None, lines=needle.lines(data))
    type_hash, payload = node.decode(hash, data)
    type = META if type_hash == META else store.registry.name(type_hash)
    strings = list(needle.strings_in(payload))
    if not strings:  # in the form of the JSON, not in its strings
        return None
    lines = sorted({line for string in strings for line in needle.lines(_bytes(string))})
    return FoundBlob(hash, info, type=type, lines=lines)


def _heads(store: Store, needle: Needle) -> Iterator[HeadName]:
    for name, head in store.heads.list():
        if any(needle.strings_in([name, dict(head.record)])):
            yield name


def files(store: Store, needle: Needle) -> Iterator[FoundFile]:
    """Yields the files of the store's directory that have it, but those that are read as blobs."""
    for path in _paths(store.root):
        interruption.check()
        name = path.relative_to(store.root)
        try:
            with path.open("rb") as source:
                is_found = needle.is_in_stream(source)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise Failed(f"cannot read {path}: {error.strerror}") from error
        if is_found:
            kind = FILE_KINDS.get(name.parts[0], "file of the store")
            if name.parts[0].startswith(DATABASE):
                kind = DATABASE_KIND
            elif len(name.parts) == 1 and ".db" in name.name:
                kind = "index"
            yield FoundFile(name.as_posix(), kind)


def _paths(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        if Path(folder) == root:
            folders[:] = [
                folder_name for folder_name in folders if folder_name not in CONTENT_FOLDERS
            ]
        folders[:] = [
            folder_name
            for folder_name in folders
            if not os.path.ismount(os.path.join(folder, folder_name))
        ]
        for name in sorted(names):
            path = Path(folder, name)
            if path.is_file() and not path.is_symlink():
                yield path


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
