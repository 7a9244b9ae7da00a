"""The referrers of nodes in a real mount."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from casfs.mount.registry import wait_until
from casfs.store.referrers import FILE, Referrers
from tests.support.programs import needs_device
from tests.support.served import TIMEOUT_S, Mount

pytestmark = needs_device
MANY = 2500  # more than the kernel reads at once, and than a page of the index


@pytest.fixture(scope="module")
def mount(lasting_mount: Mount) -> Mount:
    return lasting_mount


def content(mount: Mount, text: str, *refs: str) -> str:
    return mount.store.put_node("content", {"text": text, "artifacts": list(refs)}).hash


def test_a_new_referrer_is_in_the_next_listing(mount: Mount) -> None:
    child = content(mount, "new referrers: child")
    listing = mount.path / "nodes" / child / "referrers"
    assert os.listdir(listing) == []
    parents: list[str] = []
    for number in range(20):
        parents.append(content(mount, f"new referrers: {number}", child))
        for _ in range(2):
            assert sorted(os.listdir(listing)) == sorted(parents)
    link = listing / parents[0]
    assert os.readlink(link) == f"../../{parents[0]}"
    assert (link / "text").read_text() == "new referrers: 0"
    assert link.resolve() == (mount.path / "nodes" / parents[0]).resolve()
    assert not (listing / child).exists()


def test_a_long_listing_is_whole(mount: Mount) -> None:
    child = content(mount, "long listing: child")
    with mount.store.batch() as batch:
        parents = {
            batch.put_node("content", {"text": f"long {number}", "artifacts": [child]}).hash
            for number in range(MANY)
        }
    listing = mount.path / "nodes" / child / "referrers"
    found = os.listdir(listing)
    assert len(found) == MANY
    assert set(found) == parents
    output = subprocess.check_output(["ls", "-l", listing], text=True)
    assert output.count(f" -> ../../{found[0]}\n") == 1
    assert len(output.splitlines()) == MANY + 1


@pytest.fixture
def held(mount: Mount) -> sqlite3.Connection:
    """A connection that keeps the index from catching up, until it ends its transaction."""
    Referrers(mount.store).close()
    lock = sqlite3.connect((mount.store.root or Path()) / FILE, isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    return lock


def test_a_stat_is_answered_while_a_listing_waits(mount: Mount, held: sqlite3.Connection) -> None:
    child = content(mount, "waiting: child")
    parent = content(mount, "waiting: parent", child)
    listing = mount.path / "nodes" / child / "referrers"
    program = f"import os; print(*os.listdir({str(listing)!r}))"
    before = mount.requests().get("readdir", 0) + mount.requests().get("readdirplus", 0)
    command = [sys.executable, "-c", program]
    waiting = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        wait_until(
            lambda: (
                mount.requests().get("readdir", 0) + mount.requests().get("readdirplus", 0) > before
            ),
            "the listing was not requested",
        )
        for number in range(20):
            assert (mount.path / "blobs" / mount.store.put(b"%d" % number).hash).stat().st_size
        assert (mount.path / "nodes" / parent / "text").read_text() == "waiting: parent"
        assert waiting.poll() is None
        held.execute("ROLLBACK")
        output, _ = waiting.communicate(timeout=TIMEOUT_S)
        assert output.split() == [parent]
    finally:
        held.close()
        waiting.kill()
        waiting.wait()


def test_a_listing_that_waits_ends_by_a_signal(mount: Mount, held: sqlite3.Connection) -> None:
    if mount.transport == "libfuse":
        pytest.skip("libfuse does not pass interrupts on")
    child = content(mount, "interrupted: child")
    content(mount, "interrupted: parent", child)
    before = mount.requests().get("readdirplus", 0)
    waiting = subprocess.Popen(["ls", mount.path / "nodes" / child / "referrers"])
    try:
        wait_until(lambda: mount.requests()["readdirplus"] > before, "nothing was requested")
        waiting.send_signal(signal.SIGINT)
        assert waiting.wait(TIMEOUT_S) == -signal.SIGINT
    finally:
        held.close()
        waiting.kill()
        waiting.wait()
