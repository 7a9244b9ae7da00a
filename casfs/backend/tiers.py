"""Moves blobs between the tiers, and frees the room of packs' members that have no row any more.

A blob is in a file, in a hot pack (uncompressed), or in a cold one (compressed). It moves by
being written into a new pack, which is synced, read back and verified; one transaction then places
that pack and gives the rows their new place, and only after its commit the files are removed that
no row names any more. So a kill at any instant leaves each blob readable: at most a file or
a pack without a row remains, which gc removes. A row that was deleted or purged meanwhile stays so.

A member without a row is garbage. In a hot pack its blocks are punched out of the file, under the
write lock; a pack of which too much is garbage is rewritten, as is one with a purged member.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from casfs.backend.capabilities import Progress
from casfs.backend.disk_blobs import DiskBlobs
from casfs.backend.mapped_rows import DELETED_PATCHES, FORGET_PATCH
from casfs.backend.objects import Objects
from casfs.backend.pack_files import SUFFIX, PackFiles
from casfs.backend.protocols import FILE_MIN_BYTES, Total
from casfs.backend.purge_marks import IS_PURGED
from casfs.backend.sqlite_connection import Database
from casfs.backend.sqlite_statements import FOREVER, rows_in
from casfs.digest import CHUNK
from casfs.errors import Conflict, Corrupt, CorruptBlob, NotFound, Purged
from casfs.packs.index import PackIndex
from casfs.packs.reader import open_pack, verify
from casfs.packs.writer import PackWriter
from casfs.system import interruption
from casfs.system.files import os_errors
from casfs.system.syscalls import punch_hole

HOT = "hot"
COLD = "cold"
PACK_BYTES = 64 << 20  # of content in a new pack; a larger blob has one of its own
COLD_FRAME_BYTES = 512 << 10  # of small blobs together: 3 % less room than at half of it
THREADS = 2
MAX_GARBAGE = {HOT: 0.5, COLD: 0.3}  # share of a pack from which it is rewritten
SMALL_BYTES = 4 << 20  # so many packs that are so small are rewritten as one
MAX_SMALL = 16
RETRY_S = 0.2
FREED_MIN_BYTES = 64 << 10  # less is not worth a look at a hot pack's ranges
Sized = tuple[str, int]  # hash and size of a blob
Move = Callable[[str, str, list[tuple[int, str]], int], list[str]]
LOCAL_PACKS = """
SELECT id, hex(name), kind, size, (SELECT count(*) FROM blobs WHERE pack = p.id) FROM packs p
WHERE kind != 'remote' ORDER BY id
"""
EMPTY = "SELECT id FROM packs p WHERE NOT EXISTS (SELECT 1 FROM blobs WHERE pack = p.id)"
PATCHES = "SELECT hash FROM patches WHERE hash IN"
NOT_HOT = f"""
SELECT b.pack, b.member, b.hash, b.size FROM blobs b JOIN packs p ON p.id = b.pack
WHERE p.kind != '{HOT}' AND b.hash IN
"""


class Tiers:
    def __init__(
        self, db: Database, blobs: DiskBlobs, objects: Objects, packs: PackFiles, move: Move
    ) -> None:
        """`move`: places a private pack, to which its members move (`DiskBackend.move_to_pack`)."""
        self._db = db
        self._blobs = blobs
        self._objects = objects
        self._packs = packs
        self._move = move

    # -- moving ----------------------------------------------------------------------------

    def move(
        self,
        blobs: Iterable[Sized],
        kind: str,
        *,
        before: int = FOREVER,
        progress: Progress = lambda blobs, bytes: None,
    ) -> Total:
        """Moves blobs to new packs of a kind, in this order; those touched at `before` (UTC
        seconds) or later, and damaged ones, stay. Returns what was moved; `files`: the packs."""
        from concurrent.futures import Future, ThreadPoolExecutor

        done = Total()
        running = deque[Future[Total]]()

        def finish() -> None:
            moved = running.popleft().result()
            done.blobs = done.blobs + moved.blobs
            done.bytes = done.bytes + moved.bytes
            done.files += moved.files
            progress(done.blobs, done.bytes)

        with ThreadPoolExecutor(THREADS) as pool:
            for group in _groups(blobs):
                interruption.check()
                running.append(pool.submit(self._move_group, group, kind, before))
                if len(running) > THREADS:
                    finish()
            while running:
                finish()
        return done

    def _move_group(self, group: list[Sized], kind: str, before: int) -> Total:
        temp = self._objects.staging.new_name()
        try:
            with os_errors(f"cannot write {temp}"), open(temp, "xb", buffering=CHUNK) as out:
                numbers, name = self._write(out, group, kind)
            for _, fault in verify(open_pack(Path(temp))):
                raise Corrupt(f"{temp}: {fault}; nothing was moved there")
            with os_errors(f"cannot write {temp}"):
                os.rename(temp, temp := f"{temp}.{name}{SUFFIX}")
            moved = self._move(
                temp, kind, [(number, hash) for hash, number in numbers.items()], before
            )
        except Conflict:  # nothing is left to be moved, or a blob was purged: it must be in no pack
            return Total()
        finally:
            with suppress(OSError):  # still there where it was not placed
                os.unlink(temp)
        sizes = dict(group)
        return Total(len(moved), sum(sizes[hash] for hash in moved), 1)

    def _write(self, out: BinaryIO, group: list[Sized], kind: str) -> tuple[dict[str, int], str]:
        """Returns the numbers of the members, and the name of the pack. Damaged blobs are left
        out, which are fsck's business, and those that are gone."""
        writer = PackWriter(out, aligned=kind == HOT, frame_bytes=COLD_FRAME_BYTES)
        numbers = dict[str, int]()
        index = 0
        infos = self._blobs.info([hash for hash, _ in group])
        group = [blob for blob in group if not (blob[0] in infos and infos[blob[0]].purged)]
        while index < len(group):
            with suppress(NotFound, CorruptBlob, Purged):
                for data in self._blobs.get_many([hash for hash, _ in group[index:]]):
                    hash, size = group[index]
                    if data is not None:
                        numbers[hash] = writer.add(hash, data)
                    else:
                        with self._blobs.stream(hash) as source:
                            numbers[hash] = writer.add_stream(hash, size, source)
                    index += 1
            index += 1  # the one that is damaged or gone
        return numbers, writer.finish()

    def warm(
        self, hashes: Collection[str], progress: Progress = lambda blobs, bytes: None
    ) -> Total:
        """Moves those blobs that are in cold packs or a remote to hot packs, the large to files."""
        with self._db.read() as db:
            rows = rows_in(db, NOT_HOT, [bytes.fromhex(hash) for hash in hashes])
        blobs = [(key.hex(), size) for *_, key, size in sorted(rows)]  # as they lie in the packs
        # Images show blocks of patches, and gc punches out of a hot pack what has no row any more.
        with self._db.read() as db:
            patches = {key.hex() for (key,) in rows_in(db, PATCHES, [row[2] for row in rows])}
        files = [blob for blob in blobs if blob[1] > FILE_MIN_BYTES or blob[0] in patches]
        short = [blob for blob in blobs if blob[1] <= FILE_MIN_BYTES and blob[0] not in patches]
        done = self.move(short, HOT, progress=progress)
        for hash, size in files:
            self._blobs.thaw(hash)
            done.blobs = done.blobs + 1
            done.bytes = done.bytes + size
            progress(done.blobs, done.bytes)
        return done

    def room(self) -> dict[str, Total]:
        """Returns of each kind of local pack the blobs, the bytes on disk, and the packs."""
        with self._db.read() as db:
            packs = db.execute(LOCAL_PACKS).fetchall()
        totals: dict[str, Total] = {}
        for _, name, kind, _, live in packs:
            total = totals.setdefault(kind, Total())
            total.blobs = total.blobs + live
            total.files = total.files + 1
            with suppress(FileNotFoundError):
                total.bytes += os.stat(self._packs.path(name.lower())).st_blocks * 512
        return totals

    # -- garbage ---------------------------------------------------------------------------

    def tidy(
        self, *, purged_only: bool = False, all_garbage: bool = False, attempts: int = 5
    ) -> None:
        """Frees the room of members that have no row, and removes the packs without any other
        member; erases what is left of purged blobs and of their patches. `purged_only`: nothing
        but that; `all_garbage`: also of every other member without a row."""
        with self._db.read() as db:
            purged = [key for (key,) in db.execute(f"SELECT hash FROM blobs WHERE {IS_PURGED}")]
            deleted_patches = db.execute(DELETED_PATCHES).fetchall()
            purged += [key for key, is_purged in deleted_patches if is_purged]
            packs = db.execute(LOCAL_PACKS).fetchall()
        if purged:
            self._erase_outside_packs(purged)
        doomed: dict[str, list[int]] = {HOT: [], COLD: []}
        small: dict[str, list[int]] = {HOT: [], COLD: []}
        for id, _, kind, size, live in packs:
            interruption.check()
            with suppress(NotFound, Corrupt):  # fsck's business
                index = self._packs.reader(id).index
                has_purged = any(key in index.data for key in purged)
                dead = live < index.members
                has_purged |= all_garbage and dead
                if purged_only and not has_purged:
                    continue
                punched = dead and kind == HOT and self._punch(id, force=has_purged)
                is_wasteful = dead and self._garbage(id, index) > MAX_GARBAGE[kind]
                if is_wasteful or (has_purged and not punched):
                    doomed[kind].append(id)
                elif size < SMALL_BYTES and not purged_only:
                    small[kind].append(id)
        for kind, ids in doomed.items():
            ids += small[kind] if len(small[kind]) >= MAX_SMALL else []
            self.move(self._blobs_of(sorted(ids)), kind)
        with self._db.read() as db:
            empty = {id for (id,) in db.execute(EMPTY)}
            left = {id for id, *_ in db.execute(LOCAL_PACKS)} - empty
        for id in empty:
            self._packs.remove(id)
        if purged_only and left.intersection([*doomed[HOT], *doomed[COLD]]):
            if attempts > 1:  # another process may just move the same blobs
                time.sleep(RETRY_S)
                self.tidy(purged_only=True, all_garbage=all_garbage, attempts=attempts - 1)
                return
            raise Corrupt(
                "what was purged is still in a pack that has damaged blobs: repair them by"
                " `casfs fsck`, then run `casfs gc`"
            )

        self._forget_patches([key for key, is_purged in deleted_patches if not is_purged])

    def _forget_patches(self, keys: list[bytes]) -> None:
        """Forgets whose patches were that are in no pack and no file any more, quarantine included:
        a purge of their blobs has nothing to look for."""
        if not keys:
            return
        left: set[bytes] = set()
        with self._db.read() as db:
            packs = db.execute(LOCAL_PACKS).fetchall()
        for id, *_ in packs:
            with suppress(NotFound, Corrupt):  # fsck's business
                data = self._packs.reader(id).index.data
                left.update(key for key in keys if key in data)
        with self._db.write() as db:
            for key in keys:
                if key not in left and not self._objects.has_file(key.hex()):
                    db.execute(FORGET_PATCH, (key,))

    def _erase_outside_packs(self, purged: list[bytes]) -> None:
        """Deletes purged blobs' own files, also quarantined ones, and their frames in mirrors of
        remote packs; a kill may have come between the commit of a purge and this."""
        from casfs.backend.frame_mirror import erase

        with self._db.write():
            for key in purged:
                self._objects.remove(key.hex(), quarantined=True)
        erase(self._packs.root.parent, purged)

    def _blobs_of(self, packs: list[int]) -> Iterator[Sized]:
        for pack in packs:
            with self._db.read() as db:
                rows = db.execute(
                    "SELECT hash, size FROM blobs WHERE pack = ? ORDER BY member", (pack,)
                ).fetchall()
            yield from ((key.hex(), size) for key, size in rows)

    def _garbage(self, pack: int, index: PackIndex) -> float:
        """Returns the share of a pack's content that has no row."""
        with self._db.read() as db:
            (live,) = db.execute("SELECT sum(size) FROM blobs WHERE pack = ?", (pack,)).fetchone()
        total = sum(index.member(number).size for number in range(index.members))
        return 1 - (live or 0) / max(total, 1)

    def _punch(self, pack: int, *, force: bool) -> bool:
        """Frees the blocks of those members of a hot pack that are stored nowhere, or were purged:
        an image of a tree may show any other. Returns False where the file system cannot. `force`:
        also where that is little, and what is left is read."""
        with self._db.write():
            index = self._packs.reader(pack, again=True).index  # of the file that is there now
            hashes = [index.member(number).hash for number in range(index.members)]
            known = self._blobs.info(hashes)
            dead = _ranges(index, [hash not in known or known[hash].purged for hash in hashes])
            with self._packs.writable(index.name) as fd:
                info = os.fstat(fd)
                freed = sum(end - start for start, end in dead)
                if info.st_blocks * 512 <= info.st_size - freed + FREED_MIN_BYTES and not force:
                    return True  # they are holes already
                return all(punch_hole(fd, start, end - start) for start, end in dead) and not (
                    force and any(_has_data(fd, *dead_range) for dead_range in dead)
                )


def _groups(blobs: Iterable[Sized]) -> Iterator[list[Sized]]:
    """Yields the blobs of one pack after the other."""
    group: list[Sized] = []
    room = PACK_BYTES
    for hash, size in blobs:
        if group and size > room:
            yield group
            group = []
            room = PACK_BYTES
        group.append((hash, size))
        room -= size
    if group:
        yield group


def _ranges(index: PackIndex, chosen: list[bool]) -> list[tuple[int, int]]:
    """Returns (start, end) of the chosen members of an aligned pack, neighbours as one range. Each
    but the last ends where another member begins."""
    ranges: list[tuple[int, int]] = []
    is_open = False
    for number, is_chosen in enumerate(chosen):
        frame = index.frame(index.member(number).frame)
        end = frame.offset + frame.stored * is_chosen
        if is_open:
            ranges[-1] = (ranges[-1][0], end)
        elif is_chosen:
            ranges.append((frame.offset, end))
        is_open = is_chosen
    return ranges


def _has_data(fd: int, start: int, end: int) -> bool:
    return any(
        os.pread(fd, min(CHUNK, end - offset), offset).strip(b"\0")
        for offset in range(start, end, CHUNK)
    )
