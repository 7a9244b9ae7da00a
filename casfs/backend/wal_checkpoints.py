"""Checkpoints of a WAL on a thread of their own, so that no commit pays for one.

A writer that leaves more than CHECKPOINT_PAGES in the WAL starts the thread. It copies them to the
database (PASSIVE: it waits for nobody) while commits go on, and ends. SQLite begins the WAL anew
where a writer finds all of it copied, which never happens while commits follow each other; so the
next writer copies the few pages that have arrived since the thread's last look. A reader with an
older snapshot delays this until it ends. Where no thread can run, SQLite's own checkpoint by the
committing connection remains, at BACKSTOP_PAGES.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from casfs.errors import CasfsError
from casfs.system.files import closing_fd

CHECKPOINT_PAGES = 4000  # of WAL before they are copied back: hashes touch pages all over
BACKSTOP_PAGES = 3 * CHECKPOINT_PAGES
PASSES = 3  # of the thread, each shorter than the one before
CHECK_INTERVAL = 16  # commits
HEADER_BYTES = 32  # of the WAL: page size at 8, salt at 16
FRAME_HEADER_BYTES = 24  # before each page: salt at 8
Result = tuple[int, int, int]  # is busy, pages in the WAL, pages of these that are copied


class WalCheckpoints:
    """`wal`: the file. `run`: runs a passive checkpoint. Thread-safe."""

    def __init__(self, wal: Path, run: Callable[[], Result]) -> None:
        self._wal = wal
        self._run = run
        self._commits = 0
        self._is_remainder_due = False
        self.running = threading.Lock()  # held while the thread runs

    def before_transaction(self) -> None:
        if self._is_remainder_due:
            self._is_remainder_due = False
            self._run()

    def after_commit(self) -> None:
        self._commits += 1
        if self._commits % CHECK_INTERVAL != 1 or count_pages(self._wal) < CHECKPOINT_PAGES:
            return
        if self.running.acquire(blocking=False):
            try:
                threading.Thread(target=self._copy, daemon=True).start()
            except RuntimeError:  # no more threads
                self.running.release()

    def _copy(self) -> None:
        """Copies the pages, then those that arrived meanwhile, as far as readers allow."""
        try:
            with suppress(CasfsError):  # the next commit meets it too
                for _ in range(PASSES):
                    is_busy, total, copied = self._run()
                    if is_busy or copied < total:
                        return
                self._is_remainder_due = True
        finally:
            self.running.release()


def count_pages(wal: Path) -> int:
    """Returns the number of pages since the WAL was last begun anew: their frames have the salt of
    its header; older frames follow."""
    try:
        file = os.open(wal, os.O_RDONLY | os.O_CLOEXEC)  # SQLite takes no locks on it
    except OSError:
        return 0
    with closing_fd(file):
        header = os.pread(file, HEADER_BYTES, 0)
        frame_bytes = FRAME_HEADER_BYTES + int.from_bytes(header[8:12], "big")
        count = (os.fstat(file).st_size - HEADER_BYTES) // frame_bytes
        return bisect_left(
            range(count),
            True,
            key=lambda n: os.pread(file, 8, HEADER_BYTES + n * frame_bytes + 8) != header[16:24],
        )
