"""The backend on a local disk: SQLite rows for what is small, plain files for what is large.

    store.db    blobs(hash, size, type, touched, data, pack, member), types(hash),
                local_blobs(hash): of the blobs that only local trees reach,
                packs(name, kind, size, remote), heads(name, hash, record),
                moves(seq, name, hash, at): the journal of the heads' last moves
    packs/      the bytes of the rows that have a `pack` (`casfs.backend.pack_files`)
    objects/    the bytes of the other rows whose `data` is NULL (`casfs.backend.objects`); a large
                blob may have a block map in its row instead (`casfs.backend.block_maps`)
    tmp/        private files of running writers (`casfs.backend.staging`)

A blob exists when its row exists; a file without a row is garbage. `objects/` and `packs/` change
only while the SQLite write lock is held, so rows and files are never seen to disagree.
One transaction publishes blobs and moves heads: file contents are synced before it
begins, renames and their directories inside it, and the commit itself is one fsync of
the WAL. Nodes are rows whatever their size; other blobs up to `INLINE_MAX_BYTES` are rows.
`type` is a row of `types`, which holds the hashes of schema nodes (and META, empty, for
the meta-schema node's own type); it is NULL for plain bytes. `touched` (UTC seconds) is the
last time that the blob was put or that a node that refers to it was published.
While gc runs (`casfs.backend.disk_gc`), touched rows are recorded in `young` as well (the
write barrier). `id` is the order of arrival and never reused; plain bytes that become a node
arrive anew, so a node's id is above those of all its references (except where fsck
quarantined a blob that was then put again).

What only writes, packs or collects is imported by the method that does it: a command that prints
one screen would spend half of its time on imports that it does not use.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from casfs.backend.disk_blobs import DiskBlobs
from casfs.backend.disk_heads import DiskHeads
from casfs.backend.group_commit import GroupCommit, error_copy
from casfs.backend.mapped_rows import place_patches, sources_of, with_patches
from casfs.backend.objects import Objects
from casfs.backend.pack_files import PackFiles, add_row, find_movable
from casfs.backend.protocols import Publication, Staged, Swap, discard
from casfs.backend.sqlite_connection import Connection, Database, Synchronous
from casfs.backend.sqlite_statements import (
    ADOPT,
    EVICT,
    FOREVER,
    FULL_SHARE,
    MOVE,
    TOUCH,
    insert,
    is_placed,
    key_of,
    mark_local,
    prepare,
    record_touched,
    swap,
    unmark_local,
)
from casfs.errors import Conflict
from casfs.system.clock import now_ms
from casfs.system.files import fsync

if TYPE_CHECKING:
    from casfs.backend.disk_gc import MarkSweep
    from casfs.backend.hot_packs import HotPacks
    from casfs.backend.lazy_packs import LazyRemotes
    from casfs.backend.recompression import Recompression
    from casfs.backend.tiers import Tiers
    from casfs.packs.reader import PackReader

ALL_BYTES = 1 << 62  # more than any store holds


class DiskBackend:
    def __init__(
        self, root: Path, objects: Objects | None = None, synchronous: Synchronous = "FULL"
    ) -> None:
        """Opens what `create` made; sweeps what dead writers left in `tmp/`."""
        db = Database(root / "store.db", synchronous=synchronous)
        commits = GroupCommit(db)
        packs = PackFiles(root / "packs", db, self._open_remote)
        self._root = root
        self._db = db
        self._commits = commits
        self._objects = objects or Objects(root / "objects")
        self._objects.staging.sweep()
        self.packs = packs
        self.heads = DiskHeads(db, commits)
        self.blobs = DiskBlobs(db, self._objects, packs, heads=self.heads, commits=commits)
        # The tiers need the blobs, and nearly no process purges: so they are made when it does.
        self.blobs.erase = lambda **options: self.tiers.tidy(purged_only=True, **options)

    @classmethod
    def for_worker(cls, staging: Path) -> DiskBackend:
        """For a worker process that stages into its parent's `staging_directory`."""
        root = staging.parent.parent  # of <root>/tmp/<writer>
        return cls(root, Objects(root / "objects", staging))

    @classmethod
    def create(cls, root: Path) -> None:
        from casfs.backend.sqlite_schema import create as create_tables

        create_tables(root / "store.db")
        Objects.create(root / "objects")
        (root / "packs").mkdir(exist_ok=True)

    def publish(
        self,
        staged: Iterable[Staged],
        swaps: Iterable[Swap] = (),
        require: Collection[str] = (),
        local: Collection[str] = (),
    ) -> set[str]:
        publication = Publication(list(staged), list(swaps), require=require, local=local)
        (result,) = self._publish_all([publication])
        if isinstance(result, BaseException):
            raise result
        return result

    def publish_group(self, group: Sequence[Publication]) -> list[set[str] | BaseException]:
        return self._publish_all(group)

    def _publish_all(self, group: Sequence[Publication]) -> list[set[str] | BaseException]:
        from casfs.backend.hot_packs import spill

        spilled: list[Staged] = []
        try:
            ready: list[Publication] = []
            # Longer plain bytes that wait in memory are spilled: into private files, or into packs
            # where they are many.
            for publication in group:
                staged = spill(self._objects, publication.staged, spilled)
                ready.append(with_patches(publication._replace(staged=staged)))
            # Before the transaction: no row may be committed whose file the power could take, and
            # no other writer waits meanwhile.
            self._objects.sync([blob for publication in ready for blob in publication.staged])
            actions = [partial(self._publish, publication) for publication in ready]
            return self._commits.run_all(actions)
        except Exception as error:
            # Nothing of the group was written: `run_all` returns the errors of single publications.
            # Each its own, as other threads may raise them at once.
            return [error, *(error_copy(error) for _ in group[1:])]
        finally:
            # What was published was renamed, so this takes only what was not. The caller's own
            # blobs are the caller's to discard.
            discard(spilled)

    def _publish(self, publication: Publication, db: Connection) -> set[str]:
        batch, swaps, require, local = publication
        now_s = int(time.time())
        at_ms = now_ms()
        # Not of `require`: what is required loses the mark of a local blob, and a source of blocks
        # may be private where the blob that has some of them is not.
        needed = require
        mapped = [blob for blob in batch if blob.block_map is not None]
        if mapped:
            batch = place_patches(db, batch)
            needed = sources_of(db, batch).union(require)
        # Under the write lock, so nothing that is checked here can be collected before the commit.
        stored = prepare(db, batch, moves=swaps, require=needed, now_s=now_s)
        stored_hashes = {key.hex() for key in stored}
        # Each once, in the order of the batch: a pack is placed whole, with its first member.
        private_packs: dict[str, None] = {}
        for blob in batch:
            if blob.temp and blob.member is not None:
                private_packs[blob.temp] = None
        if private_packs:
            self._blank_purged(db, batch)
        # Before the rows are inserted: only a blob that has no row yet may be marked.
        if local:
            hashes: set[str] = {blob.digest.hash for blob in batch}
            mark_local(db, hashes.intersection(local))
        # A new blob that is not in `local` has no mark.
        work = stored_hashes.union(require).difference(local)
        unmark_local(db, work)
        # Packs before the rows, which name them.
        packs = {temp: self.packs.place(db, temp, "hot") for temp in private_packs}
        rows = self.blobs.rows
        type_ids = self.blobs.type_ids
        insert(db, rows, batch, stored, type_ids=type_ids, packs=packs, now_s=now_s)
        # Inside the transaction: gc removes files under the same lock, so none that is placed here.
        # After a rollback or a crash they are files without a row, which gc removes.
        unplaced = [blob for blob in batch if not is_placed(blob, stored)]
        self._objects.place(unplaced)
        # gc begins by a write transaction of its own: it is seen here, or sees what is written.
        if db.execute("SELECT 1 FROM collecting").fetchone():
            touched = [*needed, *(blob.digest.hash for blob in batch)]
            record_touched(db, touched, swaps)
        for move in swaps:
            swap(db, move, at_ms)
        # A patch is not the caller's.
        stored_hashes.difference_update([blob.patch.digest.hash for blob in mapped if blob.patch])
        return stored_hashes

    def _blank_purged(self, db: Connection, batch: Sequence[Staged]) -> None:
        """Erases purged blobs from private packs that are to be placed."""
        from casfs.backend.hot_packs import blank
        from casfs.backend.purging import find_purged

        # The row of a purged blob keeps its mark, but its bytes would be on the disk again.
        members = {blob.digest.hash for blob in batch if blob.temp and blob.member is not None}
        purged = find_purged(db, members)
        for blob in batch:
            if blob.temp and blob.member is not None and blob.digest.hash in purged:
                blank(blob.temp, blob.member)

    def evict(self, limit: int, used: Iterable[str]) -> None:
        """Of a cache: deletes what was used least recently, in rows and files, down to FULL_SHARE
        once that is more than `limit` bytes. `used`: since the last time."""
        from casfs.backend.disk_gc import remove_files

        now_s = int(time.time())

        def delete(db: Connection) -> list[str]:
            # In a cache `touched` is the last use. Readers hold uses in memory until now, since a
            # read must not cost a write.
            uses = [(now_s, key_of(hash)) for hash in used]
            db.executemany(TOUCH, uses)
            # Packs are left out: their frames are evicted one by one, from their mirrors.
            (total,) = db.execute("SELECT sum(size) FROM blobs WHERE pack IS NULL").fetchone()
            is_over = total is not None and total > limit
            kept_bytes = int(limit * FULL_SHARE) if is_over else ALL_BYTES
            evicted = db.execute(EVICT, (kept_bytes,))
            return [key.hex() for key, is_file in evicted if is_file]

        files = self._commits.run(delete)
        # After the commit: a crash before leaves files without rows, never rows without files.
        remove_files(self._db, self._objects, files)

    def hot_packs(self) -> HotPacks:
        from casfs.backend.hot_packs import HotPacks

        return HotPacks(self._objects)

    def adopt_pack(
        self,
        name: str,
        kind: str,
        size: int,
        remote: str | None,
        members: Iterable[tuple[int, str, int]],
        local: Collection[str] = (),
    ) -> int:
        """Records a pack whose file is in place, or elsewhere, and its plain `members` (number,
        hash, size) as far as they are not stored here yet; only local trees reach those in `local`.
        Returns the id of its row."""
        now_s = int(time.time())

        def adopt(db: Connection) -> int:
            id = add_row(db, name, kind=kind, size=size, remote=remote)
            mark_local(db, local)  # before the rows, as in `_publish`
            rows = []
            for number, hash, member_size in members:
                rows.append((key_of(hash), member_size, now_s, id, number))
            db.executemany(ADOPT, rows)
            return id

        return self._commits.run(adopt)

    def move_to_pack(
        self, temp: str, kind: str, members: Iterable[tuple[int, str]], before: int = FOREVER
    ) -> list[str]:
        """Places a complete private pack (its file name ends in `.<name>.pack`) and moves its plain
        `members` (number, hash) there from their files or other packs, as far as they are stored
        still and were touched before `before` (UTC seconds). Returns the hashes of those moved.
        Raises Conflict where there are none, or one was purged, which must be in no pack."""
        from casfs.backend.disk_gc import remove_files

        numbers = {key_of(hash): number for number, hash in members}
        # As in `_publish_all`: durable before a row names it, and before the lock is taken.
        fsync(temp)

        def move(db: Connection) -> dict[bytes, int]:
            # Asked under the lock: the pack was written without it, and its blobs may have changed.
            movable = find_movable(db, list(numbers), before)
            # A pack that no blob is in would only wait for gc.
            if not movable:
                raise Conflict("all blobs of a pack have changed while it was written")
            id = self.packs.place(db, temp, kind)
            rows = [(id, numbers[key], key) for key in movable]
            db.executemany(MOVE, rows)
            return movable

        moved = self._commits.run(move)
        # Only now: until the commit rows name the files, and a crash may come.
        files = [key.hex() for key, is_file in moved.items() if is_file]
        remove_files(self._db, self._objects, files)
        return [key.hex() for key in moved]

    @cached_property
    def tiers(self) -> Tiers:
        from casfs.backend.tiers import Tiers

        return Tiers(self._db, self.blobs, self._objects, self.packs, move=self.move_to_pack)

    @cached_property
    def _remotes(self) -> LazyRemotes:
        from casfs.backend.lazy_packs import LazyRemotes

        return LazyRemotes(self._root)

    def _open_remote(self, remote: str, name: str) -> PackReader:
        return self._remotes.pack(remote, name)

    def version(self) -> int:
        return self._db.version()

    def collection(self) -> MarkSweep:
        from casfs.backend.disk_gc import MarkSweep

        return MarkSweep(self._db, self._objects, packs=self.packs, lock=self._root / "gc.lock")

    def recompression(self) -> Recompression:
        from casfs.backend.recompression import Recompression

        return Recompression(self.blobs, self.heads, db=self._db, publish=self.publish)

    def close(self) -> None:
        # Looked up so, since `self._remotes` would make them.
        if "_remotes" in self.__dict__:
            self._remotes.close()
        self._objects.staging.close()
        self._db.close()
