"""A short run of the crash harness. The long one: `python tests/harness/crash_store.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from casfs.backend.protocols import Head, Swap
from casfs.store.store import Store
from tests.harness.crash_store import Account, plant, verify

TOOL = Path(__file__).parent / "crash_store.py"


def test_killed_writers_lose_nothing() -> None:
    done = subprocess.run(
        [sys.executable, TOOL, "--kills", "24"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "losses 0" in done.stdout


@pytest.fixture
def root(disk_store: Store) -> Path:
    return disk_store.root


def test_the_check_passes_a_good_store(root: Path, disk_store: Store) -> None:
    blob = disk_store.put(b"acknowledged").hash
    plant(root)
    verify(root, Account(blobs={blob}))


def test_the_check_sees_a_lost_blob(root: Path) -> None:
    with pytest.raises(AssertionError, match="blobs are not there"):
        verify(root, Account(blobs={"0f" * 32}))


def test_the_check_sees_a_lost_head(root: Path) -> None:
    with pytest.raises(AssertionError, match="held/1"):
        verify(root, Account(heads={"held/1": "0f" * 32}))


def test_the_check_sees_a_head_that_was_moved(root: Path, disk_store: Store) -> None:
    first, second = disk_store.put(b"1").hash, disk_store.put(b"2").hash
    disk_store.backend.publish([], [Swap("held/1", None, Head(second))])
    with pytest.raises(AssertionError, match="moved by no writer"):
        verify(root, Account(heads={"held/1": first}))


def test_the_check_sees_half_a_batch(root: Path, disk_store: Store) -> None:
    stored, absent = disk_store.put(b"half").hash, "0f" * 32
    verify(root, Account(batches={"group/1": {absent}}))
    for hashes in ({stored}, {stored, absent}):
        with pytest.raises(AssertionError, match="half of the batch group/1"):
            verify(root, Account(batches={"group/1": hashes}))


def test_the_check_sees_damage(root: Path, disk_store: Store) -> None:
    hash = disk_store.put(b"large " * 1000).hash
    path = root / "objects" / hash[:2] / hash[2:]
    path.chmod(0o600)
    path.write_bytes(b"damage")
    disk_store.close()
    with pytest.raises(AssertionError, match="corrupt"):
        verify(root, Account())


def test_the_check_sees_what_a_dead_writer_left(root: Path) -> None:
    left = root / "tmp" / ".claimed"
    left.mkdir()
    (left / "0").write_bytes(b"content")
    with pytest.raises(AssertionError):
        verify(root, Account())
