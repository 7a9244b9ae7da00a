"""Requests that need slow work first: worker threads do it, while the serving loop goes on.

The first read of a large blob verifies it; a new listing of a directory that is not `ready` needs
its `prepare`; and what is in a remote is fetched, by threads of their own, which alone wait for a
network. Single-flight: a request with the same key as one that is being worked for waits for
that work. When the work is done, the worker thread answers.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from casfs.backend.lazy_packs import NotLocal, waiting
from casfs.fuse.kernel.replies import Replies
from casfs.fuse.session import Session
from casfs.fuse.views.errors import Denied

Prepare = Callable[[Callable[[], bool]], object]  # from whether the work is still wanted
Answer = Callable[[], bytes | None]  # None: answered already, or by another pool


class WorkerPool:
    """`kind`: of its requests; `remote`: the pool that fetches, None for that one itself."""

    def __init__(
        self,
        session: Session,
        replies: Replies,
        kind: str,
        threads: int,
        remote: WorkerPool | None = None,
    ) -> None:
        self._remote = remote
        self._session = session
        self._replies = replies
        self._kind = kind
        self._pool = ThreadPoolExecutor(threads, f"casfs-{kind}", self._begin)
        self._lock = threading.Lock()
        self._closed = False
        self._waiting: dict[int, list[tuple[int, Answer]]] = {}  # by key: unique

    def _begin(self) -> None:
        waiting.allowed = self._remote is None

    def close(self) -> None:
        """Leaves what has not begun, or stops when it is not wanted, or waits for a network, to a
        successor."""
        self._closed = True
        self._pool.shutdown(wait=self._remote is not None, cancel_futures=True)

    def run(self, unique: int, key: int, prepare: Prepare, answer: Answer) -> None:
        """Answers a request after `prepare`."""
        self._replies.defer(unique)
        self._add(unique, key, prepare=prepare, answer=answer)

    def _add(self, unique: int, key: int, prepare: Prepare, answer: Answer) -> None:
        with self._lock:
            requests = self._waiting.setdefault(key, [])
            requests.append((unique, answer))
            if len(requests) == 1:
                self._pool.submit(self._run, key, prepare)

    def interrupt(self, key: int) -> None:
        """Answers with EINTR what still waits."""
        for unique, _ in self._take(key):
            self._answer(unique, bytes, Denied(errno.EINTR))

    def _take(self, key: int) -> list[tuple[int, Answer]]:
        with self._lock:
            return self._waiting.pop(key, [])

    def _run(self, key: int, prepare: Prepare) -> None:
        failure: Exception | None = None
        try:
            prepare(lambda: key in self._waiting and not self._closed)
        except Exception as error:
            if isinstance(error, NotLocal) and self._remote is not None:
                for unique, answer in self._take(key):
                    self._remote._add(unique, key, prepare, answer)
                return
            failure = Denied(self._session.errno_for(self._kind, error))
        if self._closed:
            return
        for unique, answer in self._take(key):
            self._answer(unique, answer, failure)

    def _answer(self, unique: int, answer: Answer, failure: Exception | None = None) -> None:
        try:
            if failure is not None:
                raise failure
            body = answer()
            if body is not None:
                self._replies.reply(unique, body)
        except NotLocal as absent:
            fetch = absent.fetch
            (self._remote or self)._add(unique, unique, lambda wanted: fetch(), answer)
            return
        except Exception as error:
            self._replies.error(unique, self._session.errno_for(self._kind, error))
        self._replies.answered(unique)
