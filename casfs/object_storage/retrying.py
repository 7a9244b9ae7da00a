"""Retries of requests that failed for a reason that may pass, and requests at the same time."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from itertools import count
from threading import Event, Thread
from typing import TypeVar

from casfs.errors import CasfsError
from casfs.system import interruption

T = TypeVar("T")
FIRST_PAUSE_S = 0.1
MAX_PAUSE_S = 8.0
SLICE_S = 0.1  # of a pause: how soon an interruption is seen
CONCURRENCY = 8


class Transient(Exception):
    """A failure that may pass: `error` is raised where it does not in `patience_s`."""

    def __init__(self, error: CasfsError, after_s: float = 0, patience_s: float = 1e9) -> None:
        super().__init__(str(error))
        self.error = error
        self.after_s = after_s
        self.patience_s = patience_s


def retry(request: Callable[[], T], patience_s: float) -> T:
    """Returns what `request` returns; raises the error of its last Transient where the next try
    would begin after `patience_s`."""
    started = time.monotonic()
    for attempt in count():
        interruption.check()
        try:
            return request()
        except Transient as failure:
            backoff = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2 ** min(attempt, 16))
            pause = failure.after_s + random.uniform(backoff / 2, backoff)
            end = started + min(patience_s, failure.patience_s)
            if time.monotonic() + pause > end:
                raise failure.error from None
        _sleep(pause)
    raise AssertionError


def _sleep(seconds: float) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        interruption.check()
        time.sleep(min(left, SLICE_S))


def waited(request: Callable[[], T]) -> T:
    """Returns what `request` returns, from a thread of its own: the S3 client ends for no signal,
    so the wait is what is interrupted, and an answer that comes later is lost."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(request())
        except BaseException as error:
            answer.set_exception(error)

    Thread(target=run, daemon=True, name="object-storage-request").start()
    return _result(answer)


def parallel(
    calls: Iterable[Callable[[], T]], concurrency: int = CONCURRENCY, ahead: int = 2 * CONCURRENCY
) -> Iterator[T]:
    """Yields the results of calls, in their order, each run in one of `concurrency` threads; at
    most `ahead` results wait to be taken. After an error, or when the caller stops, calls that
    have not begun never run, and the others are interrupted."""
    waiting: deque[Future[T]] = deque()
    ended = Event()
    pool = ThreadPoolExecutor(concurrency, "object-storage")
    try:
        for call in calls:
            interruption.check()
            waiting.append(pool.submit(_unless, ended, call))
            if len(waiting) > ahead:
                yield _result(waiting.popleft())
        while waiting:
            yield _result(waiting.popleft())
    finally:
        ended.set()
        pool.shutdown(wait=False, cancel_futures=True)


def _result(answer: Future[T]) -> T:
    """Waits as the thread that may be interrupted: only it can ask whether it is."""
    while not wait([answer], SLICE_S).done:
        interruption.check()
    return answer.result()


def _unless(ended: Event, call: Callable[[], T]) -> T:
    def check() -> None:
        if ended.is_set():
            raise CancelledError

    with interruption.interruptible(check):
        return call()
