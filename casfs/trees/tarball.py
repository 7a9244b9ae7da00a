"""A tree as a tar, piece by piece in bounded memory."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator

from casfs.backend.derived import open_stream
from casfs.digest import CHUNK, TreeDigest, TreeHash
from casfs.errors import Corrupt
from casfs.store.nodes.directory import Entry, File, Subdirectory, Symlink
from casfs.store.store import Store
from casfs.trees import tree

PERMISSIONS = 0o777  # no setuid bits
MAX_TIME_S = 1 << 40


def pieces(store: Store, root: TreeHash, top: str) -> Iterator[bytes]:
    """Yields the tar of a tree whose paths begin with the directory `top`. Raises NotFound,
    Corrupt."""
    yield _header(store, os.fsencode(top), Subdirectory(b"", TreeDigest(root, 0)))
    for path, entry in tree.walk(store, root, os.fsencode(top) + b"/"):
        yield _header(store, path, entry)
        if isinstance(entry, File):
            yield from _content(store, entry)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _content(store: Store, entry: File) -> Iterator[bytes]:
    done = 0
    with open_stream(store.blobs, entry.digest.hash) as source:
        while data := source.read(CHUNK):
            done += len(data)
            yield data
    if done != entry.digest.size_bytes:
        raise Corrupt(f"blob {entry.digest.hash}: its directory has another size")
    yield bytes(-done % tarfile.BLOCKSIZE)


def _header(store: Store, path: bytes, entry: Entry) -> bytes:
    member = tarfile.TarInfo(os.fsdecode(path))
    kept = None if isinstance(entry, Subdirectory) else entry.properties
    if isinstance(entry, Subdirectory):
        member.type = tarfile.DIRTYPE
        member.mode = tree.directory_mode(store, entry.digest.hash)
        kept = tree.directory_properties(store, entry.digest.hash)
    elif isinstance(entry, Symlink):
        member.type = tarfile.SYMTYPE
        member.linkname = os.fsdecode(entry.target)
        member.mode = PERMISSIONS
    else:
        member.size = entry.digest.size_bytes
        member.mode = 0o755 if entry.executable else 0o644
        if kept is not None and kept.unix_mode is not None:
            member.mode = kept.unix_mode
    member.mode &= PERMISSIONS
    if kept is not None and kept.mtime is not None:
        member.mtime = max(-MAX_TIME_S, min(kept.mtime[0], MAX_TIME_S))
    return member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
