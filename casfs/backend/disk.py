"""The backend on a local disk: SQLite rows for what is small, plain files for what is large.

    store.db    blobs(hash, size, type, touched, data, pack, member), types(hash),
                local_blobs(hash): of the blobs that only local trees reach,
                packs(name, kind, size, remote), heads(name, hash, record),
                moves(seq, name, hash, at): the journal of the heads' last moves
    packs/      the bytes of the rows that have a `pack` (`casfs.backend.pack_files`)
    objects/    the bytes of the other rows whose `data` is NULL (`casfs.backend.objects`)
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
from casfs.backend.group_commit import GroupCommit
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


class DiskBackend:
    def __init__(
        self, root: Path, objects: Objects | None = None, synchronous: Synchronous = "FULL"
    ) -> None:
        """Opens what `create` made; sweeps what dead writers left in `tmp/`."""
        self._root = root
        self._db = Database(root / "store.db", synchronous=synchronous)
        self._objects = objects or Objects(root / "objects")
        self._objects.staging.sweep()
        self._commits = GroupCommit(self._db)
        self.heads = DiskHeads(self._db, self._commits)
        self.packs = PackFiles(root / "packs", self._db, self._open_remote)
        self.blobs = DiskBlobs(
            self._db, self._objects, packs=self.packs, heads=self.heads, commits=self._commits
        )
        self.blobs.erase = lambda **options: self.tiers.tidy(purged_only=True, **options)

    @classmethod
    def for_worker(cls, staging: Path) -> DiskBackend:
        """For a worker process that stages into its parent's `staging_directory`."""
        root = staging.parent.parent
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
        (result,) = self._publish_all(
            [Publication(list(staged), list(swaps), require=require, local=local)]
        )
        if isinstance(result, BaseException):
            raise result
        return result

    def publish_group(self, group: Sequence[Publication]) -> list[set[str] | BaseException]:
        return self._publish_all(group)

    def _publish_all(self, group: Sequence[Publication]) -> list[set[str] | BaseException]:
        from casfs.backend.hot_packs import spill

        spilled: list[Staged] = []
        try:
            ready = [
                publication._replace(staged=spill(self._objects, publication.staged, spilled))
                for publication in group
            ]
            self._objects.sync([blob for publication in ready for blob in publication.staged])
            return self._commits.run_all(
                [partial(self._publish, publication) for publication in ready]
            )
        except Exception as error:
            return [error] * len(group)
        finally:
            discard(spilled)

    def _publish(self, publication: Publication, db: Connection) -> set[str]:
        batch, swaps, require, local = publication
        now_s = int(time.time())
        at_ms = now_ms()
        stored = prepare(db, batch, moves=swaps, require=require, now_s=now_s)
        temps = dict.fromkeys(blob.temp for blob in batch if blob.temp and blob.member is not None)
        if temps:
            self._blank_purged(db, batch)
        if local:
            hashes: set[str] = {blob.digest.hash for blob in batch}
            mark_local(db, hashes.intersection(local))
        unmark_local(db, {key.hex() for key in stored}.union(require).difference(local))
        packs = {temp: self.packs.place(db, temp, "hot") for temp in temps}
        insert(
            db,
            self.blobs.rows,
            batch=batch,
            stored=stored,
            type_ids=self.blobs.type_ids,
            packs=packs,
            now_s=now_s,
        )
        self._objects.place(blob for blob in batch if not is_placed(blob, stored))
        if db.execute("SELECT 1 FROM collecting").fetchone():
            record_touched(db, [*require, *(blob.digest.hash for blob in batch)], swaps)
        for move in swaps:
            swap(db, move, at_ms)
        return {key.hex() for key in stored}

    def _blank_purged(self, db: Connection, batch: Sequence[Staged]) -> None:
        """Erases purged blobs from private packs that are to be placed."""
        from casfs.backend.hot_packs import blank
        from casfs.backend.purging import find_purged

        members = [blob for blob in batch if blob.temp and blob.member is not None]
        purged = find_purged(db, {blob.digest.hash for blob in members})
        for staged in members:
            if staged.digest.hash in purged:
                blank(str(staged.temp), int(staged.member or 0))

    def evict(self, limit: int, used: Iterable[str]) -> None:
        """Of a cache: deletes what was used least recently, in rows and files, down to FULL_SHARE
        once that is more than `limit` bytes. `used`: since the last time."""
        from casfs.backend.disk_gc import remove_files

        now_s = int(time.time())

        def delete(db: Connection) -> list[str]:
            db.executemany(TOUCH, [(now_s, key_of(hash)) for hash in used])
            (total,) = db.execute("SELECT sum(size) FROM blobs WHERE pack IS NULL").fetchone()
            kept = int(limit * FULL_SHARE) if (total or 0) > limit else FOREVER
            return [key.hex() for key, is_file in db.execute(EVICT, (kept,)) if is_file]

        remove_files(self._db, self._objects, self._commits.run(delete))

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
            mark_local(db, local)
            db.executemany(
                ADOPT, ((key_of(hash), size, now_s, id, number) for number, hash, size in members)
            )
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
        fsync(temp)

        def move(db: Connection) -> dict[bytes, int]:
            movable = find_movable(db, list(numbers), before)
            if not movable:
                raise Conflict("all blobs of a pack have changed while it was written")
            id = self.packs.place(db, temp, kind)
            db.executemany(MOVE, ((id, numbers[key], key) for key in movable))
            return movable

        moved = self._commits.run(move)
        files = [key.hex() for key, is_file in moved.items() if is_file]
        remove_files(self._db, self._objects, files)
        return [key.hex() for key in moved]

    @cached_property
    def tiers(self) -> Tiers:
        from casfs.backend.tiers import Tiers

        return Tiers(
            self._db, self.blobs, objects=self._objects, packs=self.packs, move=self.move_to_pack
        )

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
        if "_remotes" in self.__dict__:
            self._remotes.close()
        self._objects.staging.close()
        self._db.close()
