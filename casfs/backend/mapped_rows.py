"""The rows of mapped blobs (`casfs.backend.block_maps`) in a publication, a purge and a gc."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress

from casfs.backend.block_maps import IS_MAPPED, BlockMap, source_keys
from casfs.backend.protocols import Publication, Staged
from casfs.backend.purge_marks import IS_PURGED
from casfs.backend.sqlite_connection import Connection
from casfs.backend.sqlite_statements import IS_ABSENT, keys_of, rows_in
from casfs.errors import CorruptBlob, NotFound

MAPS = f"SELECT hash, size, data FROM blobs WHERE {IS_MAPPED}"
MAPPED_AMONG = f"{MAPS} AND hash IN"
UNMAP = f"UPDATE blobs SET data = NULL WHERE hash = ? AND {IS_MAPPED}"
NO_SOURCES = f"SELECT hash FROM blobs WHERE ({IS_MAPPED} OR {IS_PURGED} OR {IS_ABSENT}) AND hash IN"
STORED_AMONG = f"SELECT hash FROM blobs WHERE NOT {IS_ABSENT} AND hash IN"
NOTE_PATCH = "INSERT OR IGNORE INTO patches (hash, blob) VALUES (?, ?)"
PATCHES_OF = "SELECT hash FROM patches WHERE blob IN"
DOOM_PATCH = "UPDATE patches SET purged = 1 WHERE hash = ?"
# Their bytes may still be in a pack, or in a file that a kill has left.
DELETED_PATCHES = (
    "SELECT hash, purged FROM patches p WHERE NOT EXISTS (SELECT 1 FROM blobs WHERE hash = p.hash)"
)
# A purged one stays known: a pack with it may be written just now.
FORGET_PATCH = (
    "DELETE FROM patches WHERE hash = ?1 AND NOT purged"
    " AND NOT EXISTS (SELECT 1 FROM blobs WHERE hash = ?1)"
)


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


def place_patches(db: Connection, batch: Sequence[Staged]) -> Sequence[Staged]:
    """Notes whose the patches of a batch are. Returns it without those of blobs that are stored
    already, or purged: these bytes would be on the disk for nothing, or again."""
    patches = {blob.digest.hash: blob.patch for blob in batch if blob.patch is not None}
    if not patches:
        return batch
    stored = {key.hex() for (key,) in rows_in(db, STORED_AMONG, keys_of(patches))}
    new = {hash: patch.digest.hash for hash, patch in patches.items() if hash not in stored}
    rows = [(bytes.fromhex(patch), bytes.fromhex(hash)) for hash, patch in new.items()]
    db.executemany(NOTE_PATCH, rows)
    needless = {patch.digest.hash for patch in patches.values()}.difference(new.values())
    return [blob for blob in batch if blob.digest.hash not in needless]


def sources_of(db: Connection, batch: Sequence[Staged]) -> set[str]:
    """Returns what the maps of a batch need and it has not itself. Raises NotFound for what cannot
    be a source any more."""
    sources: set[str] = set()
    for blob in batch:
        if blob.block_map is not None:
            sources.update(key.hex() for key in source_keys(blob.block_map))
    sources.difference_update(blob.patch.digest.hash for blob in batch if blob.patch is not None)
    if lost := rows_in(db, NO_SOURCES, keys_of(sources)):
        raise NotFound(
            f"blob {lost[0][0].hex()}, of which a file has blocks, was purged or stored anew"
            " meanwhile; try again"
        )
    return sources


def kin(db: Connection, hashes: Collection[str]) -> dict[str, BlockMap]:
    """Returns the maps of those of these that are mapped, and of all that share a source with one
    of these, or have blocks of it. Damaged ones are left to fsck."""
    rows = db.execute(MAPS).fetchall()
    keys = set(keys_of(hashes))
    wanted = keys.union(*(source_keys(data) for key, _, data in rows if key in keys))
    block_maps = {}
    for key, size, data in rows:
        if key in keys or not wanted.isdisjoint(source_keys(data)):
            with suppress(CorruptBlob):
                block_maps[key.hex()] = BlockMap.decode(key.hex(), size, data)
    return block_maps


def users(db: Connection, hashes: Collection[str]) -> set[str]:
    """Returns the mapped blobs that have blocks of one of these."""
    keys = set(keys_of(hashes))
    mapped = ((key, source_keys(data)) for key, _, data in db.execute(MAPS))
    return {key.hex() for key, sources in mapped if not keys.isdisjoint(sources)}


def patches_of(db: Connection, hashes: Collection[str]) -> set[str]:
    """Returns the patches that were made for these blobs, whether they are stored still or not:
    they hold bytes of theirs."""
    return {key.hex() for (key,) in rows_in(db, PATCHES_OF, keys_of(hashes))}


def doom_patches(db: Connection, hashes: Collection[str]) -> None:
    """Deletes the rows of patches whose bytes are to be erased."""
    rows = [(key,) for key in keys_of(hashes)]
    db.executemany(DOOM_PATCH, rows)
    db.executemany("DELETE FROM blobs WHERE hash = ?", rows)
