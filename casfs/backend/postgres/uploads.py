"""Brings the longer blobs of a publication to object storage, before its transaction.

Every blob that is not a row is a member of a pack; one of FILE_MIN_BYTES or more has a pack of its
own, which no later gc has to rewrite. A pack holds a random member, so its name is used once: what
gc deletes from object storage is never put again by another writer. Its name is in `strays` before
the upload begins, and the transaction that publishes it takes it out; so each object has a row,
wherever a writer dies.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

from casfs.backend.frame_mirror import FrameMirror, mirror_path
from casfs.backend.lazy_packs import SHARED
from casfs.backend.postgres.cache import Cache
from casfs.backend.postgres.connection import Pool
from casfs.backend.postgres.publication import Placed
from casfs.backend.protocols import FILE_MIN_BYTES, INLINE_MAX_BYTES, Publication, Staged
from casfs.backend.sqlite_statements import key_of
from casfs.object_storage.interface import ObjectStorage
from casfs.object_storage.retrying import parallel
from casfs.packs.reader import PackReader, open_pack
from casfs.packs.writer import PackWriter
from casfs.system.files import os_errors

ROW_MAX_BYTES = 8 << 10  # of a plain blob in a row
MAX_ROWS = 64  # plain blobs of a publication; where there are more, all go to packs
PACK_BYTES = 32 << 20  # of content
UPLOADS = 4  # at a time
STORED = "SELECT hash FROM casfs.blobs WHERE hash = ANY(%b::bytea[])"
STRAY = "INSERT INTO casfs.strays (name, size) VALUES (%b, %s) ON CONFLICT DO NOTHING"


class Pack(NamedTuple):
    """An uploaded pack, its local file, and its members: (number, hash, size)."""

    name: str
    size: int
    path: Path
    members: list[tuple[int, str, int]]


class Uploads:
    def __init__(
        self, pool: Pool, connect: Callable[[], ObjectStorage], cache: Cache, root: Path
    ) -> None:
        self._pool = pool
        self._connect = connect
        self._cache = cache
        self._local = cache.local
        self._root = root

    @cached_property
    def _storage(self) -> ObjectStorage:
        return self._connect()

    def place(self, publication: Publication, directory: Path) -> tuple[Placed, list[Pack]]:
        """Uploads what is to be in packs and not stored yet, by files in `directory`, which the
        caller removes. Raises Unreachable, AccessDenied, Failed."""
        rows, packed = _divided(publication.staged)
        packs: list[Pack] = []
        if packed:
            keys = [key_of(blob.digest.hash) for blob in packed]
            stored = {key.hex() for (key,) in self._pool.run(STORED, [keys])}
            new = {blob.digest.hash: blob for blob in packed if blob.digest.hash not in stored}
            rows += [
                Staged(blob.digest, data=None) for blob in packed if blob.digest.hash in stored
            ]
            with os_errors(f"cannot write {directory}"):
                directory.mkdir(exist_ok=True)
            calls = (partial(self._upload, directory, group) for group in _groups(new.values()))
            packs = list(parallel(calls, UPLOADS, UPLOADS))
            rows += new.values()
        places = {hash: (pack.name, number) for pack in packs for number, hash, _ in pack.members}
        sizes = {pack.name: pack.size for pack in packs}
        order = {blob.digest.hash: number for number, blob in enumerate(publication.staged)}
        rows.sort(key=lambda blob: order[blob.digest.hash])
        return Placed(publication._replace(staged=rows), sizes, places), packs

    def _upload(self, directory: Path, group: list[Staged]) -> Pack:
        path = directory / secrets.token_hex(8)
        name, members = _write(path, group)
        size = path.stat().st_size
        self._pool.run(STRAY, [bytes.fromhex(name), size])
        self._storage.put(f"packs/{name}.pack", path)
        return Pack(name, size, path=path, members=members)

    def keep(self, packs: Iterable[Pack], local: Collection[str]) -> None:
        """Puts published packs into the local cache, so that this machine fetches nothing again.
        `local`: blobs that were published with the mark of local ones, which the cache has too:
        it answers for marks while the database is away."""
        for published_pack in packs:
            mirror = mirror_path(self._root, SHARED, published_pack.name)
            with os_errors(f"cannot write {mirror}"):
                mirror.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                published_pack.path.rename(mirror)
            frame_mirror = FrameMirror(mirror)
            for frame in range(frame_mirror.index.frames):
                frame_mirror.touch(frame)
            marked = {hash for _, hash, _ in published_pack.members}.intersection(local)
            self._local.adopt_pack(
                published_pack.name,
                "remote",
                published_pack.size,
                SHARED,
                published_pack.members,
                marked,
            )
            self._cache.note(published_pack.size)


def _divided(staged: Sequence[Staged]) -> tuple[list[Staged], list[Staged]]:
    """Returns the blobs that are rows, and those for packs."""
    plain = [blob for blob in staged if blob.type is None]
    limit = ROW_MAX_BYTES if len(plain) <= MAX_ROWS else INLINE_MAX_BYTES
    rows: list[Staged] = []
    packed: list[Staged] = []
    readers: dict[str, PackReader] = {}
    for staged_blob in staged:
        is_row = staged_blob.type is not None or staged_blob.digest.size_bytes <= limit
        if is_row and staged_blob.data is None:
            staged_blob = Staged(
                staged_blob.digest, _content(staged_blob, readers), type=staged_blob.type
            )
        (rows if is_row else packed).append(staged_blob)
    return rows, packed


def _groups(staged: Iterable[Staged]) -> Iterator[list[Staged]]:
    group: list[Staged] = []
    size = 0
    for blob in staged:
        if blob.digest.size_bytes >= FILE_MIN_BYTES:
            yield [blob]
            continue
        if group and size + blob.digest.size_bytes > PACK_BYTES:
            yield group
            group = []
            size = 0
        group.append(blob)
        size += blob.digest.size_bytes
    if group:
        yield group


def _write(path: Path, group: list[Staged]) -> tuple[str, list[tuple[int, str, int]]]:
    """Writes a pack; returns its name and its members."""
    members: list[tuple[int, str, int]] = []
    readers: dict[str, PackReader] = {}
    with os_errors(f"cannot write {path}"), path.open("xb") as out:
        writer = PackWriter(out)
        writer.add_salt()
        for blob in group:
            hash = blob.digest.hash
            size = blob.digest.size_bytes
            if size > FILE_MIN_BYTES and blob.temp is not None and blob.member is None:
                with open(blob.temp, "rb") as source:
                    number = writer.add_stream(hash, size, source)
            else:
                number = writer.add(hash, _content(blob, readers))
            members.append((number, hash, size))
        return writer.finish(), members


def _content(blob: Staged, readers: dict[str, PackReader]) -> bytes:
    if blob.data is not None:
        return blob.data
    assert blob.temp is not None
    if blob.member is None:
        return Path(blob.temp).read_bytes()
    if blob.temp not in readers:
        readers[blob.temp] = open_pack(Path(blob.temp))
    return readers[blob.temp].read(blob.member)
