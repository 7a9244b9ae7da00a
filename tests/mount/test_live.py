"""What changes is never stale: the next call sees it, though the kernel had kept what was there.

Every test first has the kernel look, twice, at what it is about to change. A name that has
gone may be found for a moment more; nothing else may lag by our own transport. pyfuse3 keeps
the attributes of live directories for a moment as well.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from casfs.backend.protocols import Head
from casfs.digest import Digest
from casfs.mount.registry import wait_until
from casfs.threads import threads
from casfs.threads.threads import new_id
from tests.support.helpers import set_head
from tests.support.lasting import record
from tests.support.served import Mount
from tests.support.thread_example import STARTED, Example, make_thread

LIVE_TIMEOUT_S = (
    10.0  # seconds; a second is what it should take, on a machine that has nothing else to do
)
CHANGES = 20


@pytest.fixture(scope="module")
def mount(lasting_mount: Mount) -> Mount:
    return lasting_mount


def drop(mount: Mount, name: str) -> None:
    with mount.store.batch() as batch:
        batch.swap(name, mount.store.heads.get(name), None)


def looked_at(*paths: Path) -> None:
    """So that the kernel has all of it."""
    for _ in range(2):
        for path in paths:
            if path.exists() and path.is_dir():
                for name in os.listdir(path):
                    os.lstat(path / name)
            elif path.exists():
                path.read_bytes()


class Mtime:
    """Of a live directory: it moves with each change."""

    def __init__(self, mount: Mount, path: Path) -> None:
        self._lags = mount.transport == "libfuse"
        self._path = path
        self._last = path.stat().st_mtime_ns

    def moved(self) -> None:
        if self._lags:
            wait_until(self._differs, f"{self._path} has its old mtime", seconds=LIVE_TIMEOUT_S)
        assert self._differs()
        self._last = self._path.stat().st_mtime_ns

    def _differs(self) -> bool:
        return self._path.stat().st_mtime_ns != self._last


def vanishes(path: Path) -> None:
    """In the listing at once; by name in a moment, for good."""
    assert path.name not in os.listdir(path.parent)
    wait_until(lambda: not os.path.lexists(path), f"{path} is still found", seconds=LIVE_TIMEOUT_S)
    assert not os.path.lexists(path)


# -- checkpoints --------------------------------------------------------------------------


def test_checkpoints(mount: Mount, tmp_path: Path) -> None:
    work, here = tmp_path / "work", mount.path / "trees"
    work.mkdir()
    names = here / "live"
    looked_at(here, names)
    assert not names.exists()
    mtime: Mtime | None = None
    for number in range(1, CHANGES):
        (work / "file").write_text(f"version {number}\n")
        made = record(mount, work, "live")
        assert made.is_dir(), "by name"
        assert (names / "latest/file").read_text() == f"version {number}\n"
        assert os.readlink(names / "latest") == made.name
        assert "live" in os.listdir(here)
        assert len(os.listdir(names)) == number + 1
        if mtime is not None and mount.transport == "builtin":
            mtime.moved()
        mtime = Mtime(mount, names)
        looked_at(here, names, made, names / "latest")


def test_a_checkpoint_that_goes(mount: Mount, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text\n")
    old, new = record(mount, tmp_path, "going"), record(mount, tmp_path, "going")
    names = old.parent
    looked_at(mount.path / "trees", names, old, new, old / "file")
    drop(mount, f"checkpoints/going/{new.name}")
    assert os.readlink(names / "latest") == old.name
    assert sorted(os.listdir(names)) == [old.name, "latest"]
    vanishes(new)
    assert (old / "file").read_text() == "text\n"
    drop(mount, f"checkpoints/going/{old.name}")
    vanishes(names)


def test_a_directory_that_is_held_open(mount: Mount, tmp_path: Path) -> None:
    record(mount, tmp_path, "held")
    fd = os.open(mount.path / "trees/held", os.O_RDONLY)
    try:
        for number in range(2, 6):
            assert len(os.listdir(fd)) == len(os.listdir(fd)) == number
            record(mount, tmp_path, "held")
    finally:
        os.close(fd)


def test_what_was_not_there_comes(mount: Mount, lasting_thread: Example) -> None:
    """Nobody has kept that there was nothing."""
    for number in range(3):
        data = f"made after somebody had asked {mount.transport} {number}".encode() * 50
        node = {"text": data.decode(), "artifacts": []}
        blob = mount.path / "blobs" / Digest.of(data).hash
        thread = mount.path / "threads" / new_id()
        workflow = mount.path / "workflows" / f"flow-{mount.transport}-{number}"
        for path in (blob, thread, workflow) * 2:
            assert not os.path.lexists(path)
        mount.store.put(data)
        assert blob.read_bytes() == data
        set_head(
            mount.store,
            f"threads/{thread.name}",
            lasting_thread.start,
            **lasting_thread.head.record,
        )
        assert (thread / "status").read_text() == "running\n"
        set_head(mount.store, f"workflows/{workflow.name}", lasting_thread.workflow)
        assert (workflow / "name").read_text() == "demo"
        set_head(
            mount.store, f"workflows/{workflow.name}", mount.store.put_node("content", node).hash
        )
        assert (workflow / "text").read_bytes() == data
        assert mount.store.heads.get(f"threads/{thread.name}") is not None


# -- threads ------------------------------------------------------------------------------


def test_steps(mount: Mount, thread: Example) -> None:
    where = mount.path / "threads" / thread.id
    steps = where / "steps"
    looked_at(where, steps)
    for number in range(1, CHANGES):
        mtime = Mtime(mount, steps)
        name = f"{number:06d}-planner"
        assert not (steps / name).exists()
        thread.step("planner", f"step {number}\n")
        assert (steps / name / "output.md").read_text() == f"step {number}\n"
        assert len(os.listdir(steps)) == number
        if number < 4 or mount.transport == "builtin":
            mtime.moved()
        looked_at(where, steps, steps / name)
    assert "end.json" not in os.listdir(where)
    thread.end()
    assert "end.json" in os.listdir(where)
    assert json.loads((where / "end.json").read_text())["returnCode"] == 0


def test_status_and_summaries(mount: Mount, thread: Example) -> None:
    where = mount.path / "threads" / thread.id
    active = mount.path / "threads.json"
    looked_at(mount.path, where, active, where / "status", where / "thread.json")
    held = (where / "status").open("rb", buffering=0)
    with held:
        for number in range(CHANGES):
            status = ("suspended", "running")[number % 2]
            thread.move(thread.start, status=status, reason=f"for the {number}. time")
            assert (where / "status").read_text() == f"{status}\n"
            assert (where / "status").stat().st_size == len(status) + 1
            about = json.loads((where / "thread.json").read_text())
            assert (about["status"], about["record"]["reason"]) == (
                status,
                f"for the {number}. time",
            )
            rows = json.loads(active.read_text())
            assert rows[thread.id]["updatedAt"] == thread.head.record["updatedAt"]
            if mount.transport == "builtin":
                assert os.pread(held.fileno(), 99, 0).decode() == f"{status}\n"


def test_history(mount: Mount, thread: Example) -> None:
    active, history = mount.path / "threads.json", mount.path / "history"
    looked_at(active, history)
    assert thread.id in json.loads(active.read_text())
    thread.end()
    day = datetime.fromtimestamp(thread.head.record["updatedAt"] // 1000, UTC).date()
    ended = history / f"{day}.jsonl"
    assert ended.name in os.listdir(history)
    assert thread.id not in json.loads(active.read_text())

    def ids() -> list[str]:
        lines = ended.read_text().splitlines() if ended.exists() else []
        return [json.loads(line)["threadId"] for line in lines]

    assert thread.id in ids()
    looked_at(ended)
    size = ended.stat().st_size
    drop(mount, f"threads/{thread.id}")
    assert thread.id not in ids()
    assert not ended.exists() or ended.stat().st_size < size


def test_a_step_in_flight(mount: Mount, thread: Example) -> None:
    where = mount.path / "threads" / thread.id
    looked_at(where)
    for attempt in range(1, CHANGES):
        assert not (where / "running").exists()
        assert "running" not in os.listdir(where)
        intent: dict[str, Any] = {"role": f"role{attempt}", "index": 1, "attempt": attempt,
                                  "since": STARTED + attempt, "run": "ab" * 16,
                                  "pid": None, "pidStart": None}  # fmt: skip
        thread.move(thread.start, intent=intent)
        assert (where / "running/role").read_text() == f"role{attempt}\n"
        thread.move(thread.start, intent={**intent, "attempt": attempt + 100})
        assert (where / "running/attempt").read_text() == f"{attempt + 100}\n"
        assert "running" in os.listdir(where)
        looked_at(where, where / "running", where / "running/role")
        thread.move(thread.start, intent=None)


def test_a_thread_that_goes(mount: Mount, thread: Example) -> None:
    where = mount.path / "threads" / thread.id
    thread.step("planner", "text")
    looked_at(mount.path / "threads", where, where / "status", where / "steps")
    drop(mount, f"threads/{thread.id}")
    vanishes(where)
    with pytest.raises(OSError, match="No such file"):
        (where / "status").read_text()
    with mount.store.batch() as batch:
        batch.swap(f"threads/{thread.id}", None, thread.head)
    assert (where / "status").read_text() == "running\n"
    assert thread.id in os.listdir(where.parent)


@pytest.mark.parametrize("count", [2, threads.MAX_CHILDREN + 1])
def test_a_removed_child_leaves_no_link(mount: Mount, count: int) -> None:
    ids = [new_id() for _ in range(count + 1)]
    parent = make_thread(mount.store, ids.pop(), children=ids[-threads.MAX_CHILDREN :])
    with mount.store.batch() as batch:
        for id in ids:
            called = {**parent.head.record, "parent": parent.id, "children": []}
            batch.swap(f"threads/{id}", None, Head(parent.start, called))
    children = mount.path / "threads" / parent.id / "children"
    looked_at(children)
    mtime = Mtime(mount, children)
    for id in ids:
        assert (children / id).is_dir()
        drop(mount, f"threads/{id}")
        mtime.moved()
        vanishes(children / id)
    assert os.listdir(children) == []
