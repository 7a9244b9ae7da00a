"""The rows of mapped blobs (`casfs.backend.block_maps`) in a publication, a purge and a gc."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from casfs.backend.block_maps import IS_MAPPED, BlockMap
from casfs.backend.protocols import Publication, Staged
from casfs.backend.purge_marks import IS_PURGED
from casfs.backend.sqlite_connection import Connection
from casfs.backend.sqlite_statements import keys_of, rows_in
from casfs.errors import CorruptBlob, NotFound

MAPS = f"SELECT hash, size, data FROM blobs WHERE {IS_MAPPED}"
MAPPED_AMONG = f"{MAPS} AND hash IN"
UNMAP = f"UPDATE blobs SET data = NULL WHERE hash = ? AND {IS_MAPPED}"
PURGED_AMONG = f"SELECT hash FROM blobs WHERE {IS_PURGED} AND hash IN"


def with_patches(publication: Publication) -> Publication:
    """Returns it with the patches of its mapped blobs, which are before them. Nothing but a map
    needs a patch, so it is marked as a local blob: readers are not shown it."""
    patches = [blob.patch for blob in publication.staged if blob.patch is not None]
    if not patches:
        return publication
    local = {patch.digest.hash for patch in patches}
    return publication._replace(
        staged=[*patches, *publication.staged], local=local.union(publication.local)
    )


def sources_of(db: Connection, batch: Sequence[Staged]) -> set[str]:
    """Returns what the maps of a batch need and it has not itself. Raises NotFound where that was
    purged."""
    sources: set[str] = set()
    for blob in batch:
        if blob.block_map is not None:
            block_map = BlockMap.decode(*blob.digest, blob.block_map)
            own = None if blob.patch is None else blob.patch.digest.hash
            sources.update(source for source in block_map.sources if source != own)
    if purged := rows_in(db, PURGED_AMONG, keys_of(sources)):
        raise NotFound(f"blob {purged[0][0].hex()} was purged meanwhile; try again")
    return sources


def without_purged(db: Connection, batch: Sequence[Staged]) -> Sequence[Staged]:
    """Returns a batch without the patches of blobs that are purged: their rows keep the mark, but
    these bytes would be on the disk again."""
    patches = {blob.digest.hash: blob.patch for blob in batch if blob.patch is not None}
    if not patches:
        return batch
    purged = {key.hex() for (key,) in rows_in(db, PURGED_AMONG, keys_of(patches))}
    dropped = [patch for hash, patch in patches.items() if hash in purged]
    return [blob for blob in batch if blob not in dropped]


def maps(db: Connection) -> Iterator[tuple[str, BlockMap]]:
    """Yields all mapped blobs; those whose map is damaged are left to fsck."""
    for key, size, data in db.execute(MAPS).fetchall():
        try:
            yield key.hex(), BlockMap.decode(key.hex(), size, data)
        except CorruptBlob:
            continue


def purged_with(db: Connection, hashes: Collection[str]) -> tuple[set[str], set[str]]:
    """Returns of blobs that are to be purged the patches, which hold bytes of theirs, and the other
    blobs whose maps need one of all these."""
    known = dict(maps(db))
    patches = {
        block_map.patch for hash in hashes if (block_map := known.get(hash)) and block_map.patch
    }
    gone = patches.union(hashes)
    users = {hash for hash, block_map in known.items() if not gone.isdisjoint(block_map.sources)}
    return patches, users.difference(hashes)
