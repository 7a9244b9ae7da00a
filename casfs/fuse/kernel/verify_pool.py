"""First reads of large blobs: verified by worker threads, while the serving loop goes on.

Single-flight: further reads of a blob that is being verified wait for it, and are answered by
the same worker thread.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from casfs.fuse.kernel.replies import Replies
from casfs.fuse.session import Session
from casfs.fuse.views.errors import Denied
from casfs.fuse.views.vnode import File

THREADS = 2


class VerifyPool:
    def __init__(self, session: Session, replies: Replies) -> None:
        self._session = session
        self._replies = replies
        self._pool = ThreadPoolExecutor(THREADS, "casfs-verify")
        self._lock = threading.Lock()
        self._waiting: dict[int, list[tuple[int, int, int]]] = {}  # by inode: unique, offset, size

    def close(self) -> None:
        """Leaves what has not begun to a successor."""
        self._pool.shutdown(cancel_futures=True)

    def read(self, unique: int, file: File, offset: int, size: int) -> None:
        """Answers a read of a file that is not `ready`, as soon as it is."""
        self._replies.defer(unique)
        with self._lock:
            waiting = self._waiting.setdefault(file.ino, [])
            waiting.append((unique, offset, size))
            if len(waiting) == 1:
                self._pool.submit(self._verify, file)

    def _verify(self, file: File) -> None:
        failure = None
        try:
            file.prepare()
        except Exception as error:
            failure = self._session.errno_for("read", error)
        with self._lock:
            waiting = self._waiting.pop(file.ino)
        for unique, offset, size in waiting:
            try:
                if failure is not None:
                    raise Denied(failure)
                self._replies.reply(unique, self._session.read(file, offset, size))
            except Exception as error:
                self._replies.error(unique, self._session.errno_for("read", error))
            self._replies.answered(unique)
