"""First reads of large blobs: verified by helper threads, while the serving loop goes on.

Whoever wants a blob that is being verified already waits for the same, and is answered by the
thread that does it.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from casfs.fuse.kernel.replies import Answers
from casfs.fuse.session import Session
from casfs.fuse.views.errors import Denied
from casfs.fuse.views.vnode import File

THREADS = 2


class Verifier:
    def __init__(self, session: Session, answers: Answers) -> None:
        self._session = session
        self._answers = answers
        self._pool = ThreadPoolExecutor(THREADS, "casfs-verify")
        self._lock = threading.Lock()
        self._waiting: dict[int, list[tuple[int, int, int]]] = {}  # by inode: unique, offset, size

    def close(self) -> None:
        """What has not begun is left to a successor."""
        self._pool.shutdown(cancel_futures=True)

    def read(self, unique: int, file: File, offset: int, size: int) -> None:
        """Answer a read of a file that is not `ready`, as soon as it is."""
        self._answers.delay(unique)
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
            failure = self._session.failed("read", error)
        with self._lock:
            waiting = self._waiting.pop(file.ino)
        for unique, offset, size in waiting:
            try:
                if failure is not None:
                    raise Denied(failure)
                self._answers.reply(unique, self._session.read(file, offset, size))
            except Exception as error:
                self._answers.error(unique, self._session.failed("read", error))
            self._answers.done(unique)
