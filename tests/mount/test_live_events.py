"""`.casfs/events`: a follower or poller sees each move."""

from __future__ import annotations

import json
import os
import select
import subprocess
import threading

import pytest

from tests.support.served import Mount
from tests.support.thread_example import Example

TIMEOUT_S = 30  # seconds


@pytest.fixture(scope="module")
def mount(lasting_mount: Mount) -> Mount:
    return lasting_mount


def test_somebody_follows_the_events(mount: Mount, thread: Example) -> None:
    events = mount.path / ".casfs/events"
    command = ["timeout", f"{TIMEOUT_S}", "tail", "-n", "0", "-s", "0.1", "-f", events]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as tail:
        assert tail.stdout is not None
        over = threading.Event()

        def move() -> None:
            while not over.wait(0.1):  # until it has begun to follow
                thread.move(thread.start)

        mover = threading.Thread(target=move)
        mover.start()
        try:
            lines = [json.loads(tail.stdout.readline()) for _ in range(3)]
        finally:
            over.set()
            mover.join()
            tail.kill()
    assert {line["name"] for line in lines} == {f"threads/{thread.id}"}
    assert [line["seq"] - lines[0]["seq"] for line in lines] == [0, 1, 2]


def test_the_events_wake_who_waits(mount: Mount, thread: Example) -> None:
    if mount.transport == "libfuse":
        pytest.skip("pyfuse3 has no such request: every file is always readable")
    with (mount.path / ".casfs/events").open("rb", buffering=0) as events:
        poll = select.poll()
        poll.register(events, select.POLLIN)
        assert poll.poll(0), "at first nobody knows"
        events.seek(0, os.SEEK_END)
        events.readall()
        poll.poll(0)
        for number in range(5):
            assert poll.poll(0) == []
            threading.Timer(0.05, thread.move, [thread.start]).start()
            assert poll.poll(TIMEOUT_S * 1000) == [(events.fileno(), select.POLLIN)], number
            (line,) = events.readall().splitlines()
            assert json.loads(line)["name"] == f"threads/{thread.id}"
