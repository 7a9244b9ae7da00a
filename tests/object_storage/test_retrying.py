"""Requests at the same time, and how they end early."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from threading import Event

import pytest
import trio

from casfs.errors import Failed
from casfs.object_storage.retrying import parallel, waited
from casfs.system import interruption
from tests.support.fault_proxy import Delayed, FaultProxy
from tests.support.s3_servers import S3Server


def test_results_come_in_order() -> None:
    def call(number: int) -> int:
        time.sleep(0.001 * (number % 5))
        return number

    assert list(parallel([partial(call, number) for number in range(100)])) == [*range(100)]
    assert list(parallel([])) == []


def test_calls_are_not_made_far_ahead() -> None:
    asked = 0

    def calls() -> Iterator[partial[int]]:
        nonlocal asked
        while True:
            asked += 1
            yield partial(int, "7")

    results = parallel(calls(), concurrency=2, ahead=4)
    assert [next(results) for _ in range(10)] == [7] * 10
    assert asked == 14
    results.close()


def test_an_error_ends_what_is_under_way() -> None:
    begun: list[int] = []
    ended = Event()

    def endless() -> None:
        interruption.check()
        begun.append(1)
        try:
            while True:
                interruption.check()
                time.sleep(0.001)
        finally:
            ended.set()

    def failing() -> None:
        while not begun:
            time.sleep(0.001)
        raise Failed("no")

    with pytest.raises(Failed, match="no"):
        list(parallel([failing, *[endless] * 20], concurrency=2, ahead=50))
    assert ended.wait(60)
    assert len(begun) <= 2


def test_the_check_of_the_caller_holds_in_the_threads() -> None:
    stop = Event()

    def check() -> None:
        if stop.is_set():
            raise Failed("stopped")

    def call() -> None:
        stop.set()
        while True:
            interruption.check()

    with interruption.interruptible(check), pytest.raises(Failed, match="stopped"):
        list(parallel([call] * 3))
    stop.clear()
    with interruption.interruptible(check), pytest.raises(Failed, match="stopped"):
        waited(lambda: stop.set() or time.sleep(60))


def test_an_error_of_a_request_is_raised() -> None:
    with pytest.raises(KeyError, match="x"):
        waited(lambda: {}["x"])


@pytest.mark.parametrize(
    "call", ["storage.get('a')", "storage.put('a', b'1')", "list(parallel([get] * 3))"]
)
def test_an_interrupt_does_not_wait_for_the_server(
    call: str, s3: S3Server, proxy: FaultProxy
) -> None:
    """As Ctrl-C, while the server is silent for longer than this test may last."""
    proxy.rule = lambda request: Delayed(300)
    code = f"""if True:
        from casfs.object_storage.location import open_storage
        from casfs.object_storage.retrying import parallel
        storage = open_storage({s3.url()!r}, endpoint={proxy.endpoint!r})
        get = lambda: storage.get('a')
        try:
            {call}
        except KeyboardInterrupt:
            raise SystemExit(130)
        """
    process = subprocess.Popen([sys.executable, "-c", code], env=dict(os.environ))
    try:
        while not proxy.requests:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
    finally:
        process.kill()
        process.wait()


async def test_a_task_that_waits_for_calls_is_cancelled() -> None:
    """Only the thread that trio started can ask whether its task is cancelled."""
    begun = Event()

    def call() -> None:
        begun.set()
        while True:
            interruption.check()
            time.sleep(0.01)

    def work() -> None:
        with interruption.interruptible(trio.from_thread.check_cancelled):
            [*parallel([call, call], concurrency=2)]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(trio.to_thread.run_sync, work, abandon_on_cancel=False))
        await trio.to_thread.run_sync(begun.wait)
        nursery.cancel_scope.cancel()
