"""Reads the new files of a snapshot: in this process, or by the reader pool once they are many.

Results of the pool are adopted as they come, at the latest by `collect(0)`. What is in a pack comes
later than the answer that names it: a directory waits for both before it can be encoded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from casfs.backend.derived import staging_directory
from casfs.backend.protocols import discard
from casfs.store.write_batch import Batch
from casfs.trees.snapshot import stat_cache
from casfs.trees.snapshot.encoder import ScannedDirectory
from casfs.trees.snapshot.file_reader import FileReader, ReadFile, hits_at
from casfs.trees.snapshot.report import XATTRS, SnapshotOptions, SnapshotReport

if TYPE_CHECKING:
    from casfs.trees.snapshot.reader_pool import ReaderPool

POOL_MIN_FILES = 1000  # fewer, of fewer bytes, do not repay the start of worker processes
POOL_MIN_BYTES = 32 << 20
READ_BATCH_FILES = 64  # given to a worker at once
MAX_PENDING_BATCHES = 256


class ReadQueue:
    """Sets the digests of the entries whose files were read. `close` in a finally."""

    def __init__(
        self,
        batch: Batch,
        root_fd: int,
        root: bytes,
        report: SnapshotReport,
        racy_after: int,
        options: SnapshotOptions,
    ) -> None:
        self._batch = batch
        self._root_fd = root_fd
        self._root = root
        self._options = options
        self._report = report
        self._racy_after = racy_after
        # By hash: the directories that wait for a blob, once for each file that has it.
        self._waiting: defaultdict[str, list[ScannedDirectory]] = defaultdict(list)
        self._reader = FileReader(batch.blobs, batch.knows, scanner=options.scanner)
        self._pool: ReaderPool[ScannedDirectory] | None = None
        self._asked: list[tuple[ScannedDirectory, bytes, list[bytes]]] = []
        self._asked_files = 0

    def read(
        self, scanned: ScannedDirectory, fd: int, names: list[bytes], bases: Mapping[bytes, str]
    ) -> Iterator[None]:
        """Reads files of a directory, open as `fd`, or has the pool read them; a generator as
        `collect`. `bases`: what large ones of them had before. Raises Failed for one that cannot be
        read, where the options do not leave it out; OSError where the store cannot be written."""
        if bases:
            # Compared with what they had, which takes less than the start of a worker process.
            self._adopt(scanned, self._reader.read(fd, list(bases), bases))
            names = [name for name in names if name not in bases]
        if self._pool is None:
            self._start_pool(scanned, names)
        if self._pool is None:
            self._adopt(scanned, self._reader.read(fd, names))
            return
        for start in range(0, len(names), READ_BATCH_FILES):
            part = names[start : start + READ_BATCH_FILES]
            self._asked.append((scanned, scanned.path, part))
            scanned.awaited += 1
            self._asked_files += len(part)
            if self._asked_files >= READ_BATCH_FILES:
                yield from self.collect(MAX_PENDING_BATCHES)

    def collect(self, max_pending: int) -> Iterator[None]:
        """Has the pool read, and adopts its results until at most `max_pending` batches are
        outstanding. To be exhausted; yields after the files of each directory, when the caller may
        do something else while the pool reads."""
        if self._pool is not None:
            if self._asked:
                self._pool.submit(self._asked)
                self._asked = []
                self._asked_files = 0
            for scanned, done in self._pool.results(max_pending):
                self._adopt(scanned, done)
                scanned.awaited -= 1
                self._put_packs(is_last=False)
                yield
            self._put_packs(is_last=max_pending == 0)

    def _put_packs(self, *, is_last: bool) -> None:
        assert self._pool is not None
        for pack in self._pool.packs(is_last=is_last):
            is_new = not all(self._batch.knows(staged.digest.hash) for staged in pack)
            for staged in pack:
                self._batch.put_staged(staged)
                self._note_arrived(staged.digest.hash)
            # The batch leaves the file of a pack to its other members.
            if not is_new:
                discard(pack)

    def _await_content(self, scanned: ScannedDirectory, hash: str) -> None:
        """Has a directory wait for the content of a file where it is not here yet: it is in a pack,
        or in another answer, as that of another file."""
        if not self._batch.knows(hash):
            self._waiting[hash].append(scanned)
            scanned.awaited += 1
        elif hash in self._waiting:
            self._note_arrived(hash)

    def _note_arrived(self, hash: str) -> None:
        for scanned in self._waiting.pop(hash, ()):
            scanned.awaited -= 1

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()

    def _start_pool(self, scanned: ScannedDirectory, names: list[bytes]) -> None:
        """Starts the pool where it repays, for a store that processes can share."""
        size = sum(scanned.entries[name].stat.st_size for name in names)
        files = self._report.read + len(names)
        size = self._report.read_bytes + size
        if files > POOL_MIN_FILES or size > POOL_MIN_BYTES:
            private = staging_directory(self._batch.blobs)
            if private is not None:
                from casfs.trees.snapshot.reader_pool import ReaderPool

                self._pool = ReaderPool(private, self._root_fd, scanner=self._options.scanner)

    def _adopt(self, scanned: ScannedDirectory, done: list[ReadFile]) -> None:
        """Takes over files that were read. The stat at the time of reading counts, not the one
        of the scan: the file may have changed in between."""
        for file in done:
            path = (scanned.path + b"/" + file.name)[1:]
            if file.error:
                self._report.leave_out_unreadable(self._root, path, file.error, self._options)
                self._drop(scanned, file.name)
                continue
            if file.is_purged:
                self._report.purged[path] = file.digest.hash
                self._drop(scanned, file.name)
                continue
            file.hits = hits_at(path, file.hits)
            is_work = not (file.hits or scanned.may_be_local or path in self._report.private)
            self._batch.adopt(file.digest, file.staged, file.info, is_work=is_work)
            if self._pool is not None:
                self._await_content(scanned, file.digest.hash)
            entry = scanned.entries[file.name]
            entry.hits = file.hits
            if file.hits:
                self._report.findings[path] = file.hits
            self._report.read += 1
            if file.has_xattrs:
                self._report.not_kept[XATTRS] += 1
            self._report.read_bytes += file.digest.size_bytes
            self._report.bytes += file.digest.size_bytes - entry.stat.st_size
            if entry.fingerprint != stat_cache.fingerprint(file.stat, self._racy_after):
                entry.fingerprint = stat_cache.RACY
            entry.stat = file.stat
            entry.digest = file.digest
        self._options.progress(self._report.files, self._report.read_bytes)

    def _drop(self, scanned: ScannedDirectory, name: bytes) -> None:
        self._report.files -= 1
        self._report.bytes -= scanned.entries.pop(name).stat.st_size
