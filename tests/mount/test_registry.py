"""The mount registry, without any mount."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from casfs.errors import Failed
from casfs.mount import registry
from casfs.mount.registry import JSON_KEYS, MountStateFile
from casfs.system.log import silent

VALUES: dict[str, object] = {
    "mount": "/m\udcff",
    "device": "0:40",
    "transport": "builtin",
    "supervisor": os.getppid(),
    "worker": os.getpid(),
    "serves": True,
    "starts": 1,
    "generation": 0,
    "version": "1",
}


def held(root: Path, **more: object) -> MountStateFile:
    found = MountStateFile.create(root, silent)
    assert found is not None
    found.write(**{**VALUES, **more})
    return found


def test_what_is_written_is_read(tmp_path: Path) -> None:
    one = held(tmp_path)
    (found,) = registry.listing(tmp_path)
    assert {name: getattr(found, name) for name in JSON_KEYS} == {
        **VALUES,
        "mount": Path("/m\udcff"),
    }
    assert found.supervised
    assert str(found) == f"builtin, worker {os.getpid()}, supervisor {os.getppid()}, version 1"
    one.write(**{**VALUES, "starts": 10_000, "worker": os.getppid()})
    reloaded = found.reload()
    assert reloaded is not None
    assert (reloaded.starts, reloaded.supervised) == (10_000, False)
    one.write(**VALUES)
    assert found.reload() == found
    one.remove()
    assert registry.listing(tmp_path) == []
    assert found.reload() is None
    os.close(one.fd)


def test_a_file_without_a_lock_is_removed(tmp_path: Path) -> None:
    first, second = held(tmp_path), held(tmp_path, starts=2)
    assert len(registry.listing(tmp_path)) == 2
    os.close(first.fd)
    assert [one.starts for one in registry.listing(tmp_path)] == [2]
    assert os.listdir(tmp_path / registry.FOLDER) == [second.path.name]
    os.close(second.fd)


def test_a_child_process_inherits_the_lock(tmp_path: Path) -> None:
    one = held(tmp_path)
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(theirs)
        os.read(ours, 1)
        os._exit(0)
    os.close(one.fd)
    assert len(registry.listing(tmp_path)) == 1
    os.close(theirs)
    os.waitpid(pid, 0)
    assert registry.listing(tmp_path) == []
    os.close(ours)


def test_waiting_for_the_end(tmp_path: Path) -> None:
    one = held(tmp_path, worker=1 << 30, supervisor=1 << 30)
    (found,) = registry.listing(tmp_path)
    with found.end_waiter() as wait:
        os.close(one.fd)
        wait()
    with replace(found, path=tmp_path / "none").end_waiter() as wait:
        wait()
    with pytest.raises(Failed, match="goes on"):
        registry.wait_until(lambda: False, "it goes on", seconds=0.01)


def test_a_torn_state_file_is_ignored(tmp_path: Path) -> None:
    one = held(tmp_path)
    os.ftruncate(one.fd, 10)
    assert registry.listing(tmp_path) == []
    assert one.path.exists()
    os.close(one.fd)


def test_a_file_that_cannot_be_created(tmp_path: Path) -> None:
    events: list[str] = []

    def log(event: str, **fields: object) -> None:
        events.append(event)

    (tmp_path / registry.FOLDER).touch()
    assert MountStateFile.create(tmp_path, log) is None
    assert events == ["mount not registered"]
    assert registry.listing(tmp_path) == []


def test_waiting_ends() -> None:
    with pytest.raises(Failed, match="never"):
        registry.wait_until(lambda: False, "never", seconds=0.01)
