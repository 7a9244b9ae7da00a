"""Records of mounts that are being served, without any mount."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from casfs.errors import Failed
from casfs.mount import registry
from casfs.mount.registry import FIELDS, Held
from casfs.system.log import silent

VALUES: dict[str, object] = {
    "mount": "/m\udcff",
    "device": "0:40",
    "transport": "builtin",
    "keeper": os.getppid(),
    "server": os.getpid(),
    "serves": True,
    "starts": 1,
    "generation": 0,
}


def held(root: Path, **more: object) -> Held:
    found = Held.make(root, silent)
    assert found is not None
    found.write(**{**VALUES, **more})
    return found


def test_what_is_written_is_read(tmp_path: Path) -> None:
    one = held(tmp_path)
    (found,) = registry.listing(tmp_path)
    assert found.as_json() == VALUES
    assert found.as_json().keys() == set(FIELDS)
    assert found.kept
    assert str(found) == f"builtin, server {os.getpid()}, keeper {os.getppid()}"
    one.write(**{**VALUES, "starts": 10_000, "server": os.getppid()})
    again = found.again()
    assert again is not None
    assert (again.starts, again.kept) == (10_000, False)
    one.write(**VALUES)
    assert found.again() == found
    one.remove()
    assert registry.listing(tmp_path) == []
    assert found.again() is None
    os.close(one.fd)


def test_one_that_nobody_holds_goes(tmp_path: Path) -> None:
    first, second = held(tmp_path), held(tmp_path, starts=2)
    assert len(registry.listing(tmp_path)) == 2
    os.close(first.fd)
    assert [one.starts for one in registry.listing(tmp_path)] == [2]
    assert os.listdir(tmp_path / registry.FOLDER) == [second.path.name]
    os.close(second.fd)


def test_a_child_holds_it_too(tmp_path: Path) -> None:
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
    one = held(tmp_path, server=1 << 30, keeper=1 << 30)
    (found,) = registry.listing(tmp_path)
    with found.watched() as wait:
        os.close(one.fd)
        wait()
    with replace(found, path=tmp_path / "none").watched() as wait:
        wait()
    with pytest.raises(Failed, match="goes on"):
        registry.until(lambda: False, "it goes on", seconds=0.01)


def test_a_torn_record_is_passed_over(tmp_path: Path) -> None:
    one = held(tmp_path)
    os.ftruncate(one.fd, 10)
    assert registry.listing(tmp_path) == []
    assert one.path.exists()
    os.close(one.fd)


def test_where_there_is_no_room(tmp_path: Path) -> None:
    events: list[str] = []

    def log(event: str, **fields: object) -> None:
        events.append(event)

    (tmp_path / registry.FOLDER).touch()
    assert Held.make(tmp_path, log) is None
    assert events == ["mount not recorded"]
    assert registry.listing(tmp_path) == []
