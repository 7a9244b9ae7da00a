"""Git objects in recorded `.git` directories that hold what is purged, compressed by git.

They are found by the names of their files, in all directories of the store. Purging them is asked
for: a commit without its file is a damaged repository. Of a loose object the file goes. A pack gets
a substitute without the object, and so does its index.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from casfs.errors import CasfsError, Failed, NotFound
from casfs.maintenance.needle import Needle
from casfs.store.nodes import directory, node
from casfs.store.nodes.directory import Entry, File
from casfs.store.nodes.registry import head_name
from casfs.store.store import Store
from casfs.store.tombstones import Tombstone
from casfs.system import interruption
from casfs.system.clock import now_ms
from casfs.trees.git.objects import (
    BESIDE_PACKS,
    BLOB,
    FORMATS,
    PACK,
    PACK_INDEX,
    SHA1_BYTES,
    TREE,
    Inflated,
    PackedObjects,
    ids_in_pack,
    loose_header,
    skip_bundle_header,
)

OBJECT_NAME = re.compile(rb"[0-9a-f]{38}|[0-9a-f]{62}")  # behind the two digits of its directory
LIKELY = re.compile(
    rb'"(?:[0-9a-f]{38}|[0-9a-f]{62}|tmp_obj_[^"]+|[^"]+\.(?:pack|bundle))"'
)  # in the JSON of a directory
BUNDLE = b".bundle"
TEMPORARY = b"tmp_obj_"
BATCH = 500
PIECE_BYTES = 1 << 20


class GitCopy(NamedTuple):
    """A git object. `file`: the hash of its own file, or of its pack or bundle; `pack_index`: that
    of the pack's index, empty without one, None for a loose object; `beside`: those of files that
    go with the pack."""

    object_id: str
    kind: str
    file: str
    pack_index: str | None = None
    beside: tuple[str, ...] = ()


@dataclass(slots=True)
class GitCopies:
    """`unread`: packs that cannot be read here, a line each with the reason."""

    copies: list[GitCopy] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)


class _Pack(NamedTuple):
    file: str
    pack_index: str
    beside: tuple[str, ...]


def with_text(store: Store, needle: Needle) -> GitCopies:
    """Finds the git objects that have a text: files, and messages of commits and tags."""
    git_copies = GitCopies()
    loose, packs = _object_files(store)
    for hash, name in loose.items():
        interruption.check()
        with suppress(CasfsError):  # purged, or in a remote
            if kind := _kind_if_wanted(store, hash, needle):
                git_copies.copies.append(GitCopy(_object_id(store, hash, name), kind, hash))
    for pack in sorted(packs):
        interruption.check()
        try:
            git_copies.copies += _with_text_in_pack(store, pack, needle)
        except NotFound:  # purged
            continue
        except CasfsError as error:
            git_copies.unread.append(f"the git pack {pack.file}: {error}")
    return git_copies


def of_blobs(store: Store, hashes: Collection[str]) -> GitCopies:
    """Finds the git objects that have the content of one of these blobs, by their ids."""
    ids = {object_id for hash in hashes for object_id in _blob_ids(store, hash)}
    git_copies = GitCopies()
    loose, packs = _object_files(store)
    names = {object_id[2:].encode(): object_id for object_id in ids}
    for hash, name in loose.items():
        if object_id := names.get(name):
            git_copies.copies.append(GitCopy(object_id, BLOB.decode(), hash))
    for pack in sorted(packs):
        with suppress(CasfsError):  # purged, or damaged
            held = {object_id.hex() for object_id in _ids_in(store, pack)}
            git_copies.copies += [
                GitCopy(held_id, BLOB.decode(), *pack) for held_id in sorted(held & ids)
            ]
    return git_copies


def _blob_ids(store: Store, hash: str) -> list[str]:
    """Returns the ids that git gives to a stored file, in hex: by SHA-1 and by SHA-256. Raises as
    `Store.get`."""
    header = b"blob %d\0" % store.blobs.info([hash])[hash].size
    hashers = [hashlib.new(name, header, usedforsecurity=False) for name in FORMATS.values()]
    with closing(store.blobs.open(hash)) as file:
        while piece := file.read(PIECE_BYTES):
            for hasher in hashers:
                hasher.update(piece)
    return [hasher.hexdigest() for hasher in hashers]


def _object_files(store: Store) -> tuple[dict[str, bytes], set[_Pack]]:
    """Returns the hashes of files with the names of loose objects, with their names, and the
    packs."""
    loose: dict[str, bytes] = {}
    packs: set[_Pack] = set()
    for entries in _directories(store):
        for name, entry in entries.items():
            if not isinstance(entry, File):
                continue
            if OBJECT_NAME.fullmatch(name) or name.startswith(TEMPORARY):
                loose[entry.digest.hash] = name
            elif name.endswith((PACK, BUNDLE)):
                stem = name.removesuffix(PACK)
                index = entries.get(stem + PACK_INDEX)
                beside = (entries.get(stem + end) for end in BESIDE_PACKS)
                companion_hashes = tuple(
                    companion.digest.hash for companion in beside if isinstance(companion, File)
                )
                index_hash = index.digest.hash if isinstance(index, File) else ""
                packs.add(_Pack(entry.digest.hash, index_hash, companion_hashes))
    return loose, packs


def _directories(store: Store) -> Iterator[dict[bytes, Entry]]:
    """Yields the entries of each directory that may be one of git's."""
    schema = store.heads.get(head_name("directory"))
    every = store.blobs.iterate()
    while batch := list(islice(every, BATCH)):
        wanted = [
            hash for _, hash, info in batch if info.is_here and schema and info.type == schema.hash
        ]
        for data in store.blobs.get_many(wanted):
            if data is not None and LIKELY.search(data):
                yield directory.decode(node.decode("", data)[1])


def _kind_if_wanted(store: Store, hash: str, needle: Needle) -> str:
    """Returns the kind of a loose object that has a text; empty for another, and for a tree, whose
    names of files are not changed."""
    with closing(store.blobs.open(hash)) as file:
        content = Inflated(file)
        header = loose_header(content)
        if header is None or header.kind == TREE:
            return ""
        is_wanted = needle.is_in_stream(io.BufferedReader(content))
        return header.kind.decode("ascii", "replace") if is_wanted else ""


def _object_id(store: Store, hash: str, name: bytes) -> str:
    format = FORMATS.get(len(name) // 2 + 1, FORMATS[SHA1_BYTES])
    hasher = hashlib.new(format, usedforsecurity=False)
    with closing(store.blobs.open(hash)) as file:
        content = io.BufferedReader(Inflated(file))
        while piece := content.read(PIECE_BYTES):
            hasher.update(piece)
    return hasher.hexdigest()


def _with_text_in_pack(store: Store, pack: _Pack, needle: Needle) -> Iterator[GitCopy]:
    """Raises CasfsError where it cannot be read."""
    with _opened(store, pack.file) as (packed, ids):
        kinds = {object_id: header.kind for object_id, header in packed.headers().items()}
        wanted = [object_id for object_id in ids if kinds.get(object_id, TREE) != TREE]
        for object_id, content in packed.contents(wanted):
            if needle.is_in_stream(content):
                yield GitCopy(object_id.hex(), kinds[object_id].decode(), *pack)


def _ids_in(store: Store, pack: _Pack) -> list[bytes]:
    if pack.pack_index:
        return ids_in_pack(store.get(pack.pack_index))
    with _opened(store, pack.file) as (_, ids):
        return ids


@contextmanager
def _opened(store: Store, pack: str) -> Iterator[tuple[PackedObjects, list[bytes]]]:
    """Yields a pack, or the one in a bundle, and the ids of its objects. Raises CasfsError."""
    for id_bytes in FORMATS:
        with PackedObjects(id_bytes) as packed, closing(store.blobs.open(pack)) as file:
            skip_bundle_header(file)
            try:
                packed.wanted = held = packed.add_pack(file)
            except Failed:
                if id_bytes == max(FORMATS):
                    raise
                continue
            yield packed, held
            return


def tombstones_of(store: Store, copies: Iterable[GitCopy], why: str) -> list[Tombstone]:
    """Stores the substitutes of packs, and returns the tombstones of all files that have one of
    these objects. Raises CasfsError where a pack cannot be made."""
    tombstones: list[Tombstone] = []

    def add(hash: str, substitute: str | None = None) -> None:
        size = store.blobs.info([hash])[hash].size
        tombstones.append(Tombstone(hash, size, purged_at=now_ms(), why=why, substitute=substitute))

    packs: dict[tuple[str, str, tuple[str, ...]], set[bytes]] = {}
    for copy in copies:
        if copy.pack_index is None:
            add(copy.file)
        else:
            gone = packs.setdefault((copy.file, copy.pack_index, copy.beside), set())
            gone.add(bytes.fromhex(copy.object_id))
    for (pack, index, beside), gone in packs.items():
        if not index:  # what it holds without the object, no index would fit
            add(pack)
            continue
        with _opened(store, pack) as (packed, ids):
            left = packed.packed(object_id for object_id in ids if object_id not in gone)
            for old, new in zip((pack, index), left, strict=True):
                # What is left of a hidden pack is as private as it was.
                is_hidden = bool(store.blobs.local_among([old]))
                target = store.local_writes() if is_hidden else store
                with new.open("rb") as file:
                    add(old, target.put_stream(file).hash)
        for hash in beside:
            add(hash)
    return tombstones
