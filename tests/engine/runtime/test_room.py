"""Room: what a workspace may hold, and what frees room on a full disk."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from casfs.store.store import Store
from casfs.system import reserve
from casfs.threads import threads
from casfs.threads.threads import CANCELLED, ENDED, RUNNING, SUSPENDED
from casfs.workspaces import desk, strategies
from engine.runtime import stop_thread
from engine.runtime.workspace import COPYING, Workspaces
from engine.workflow import registry as workflows
from tests.support.desks import OVER_IMAGES
from tests.support.engine import ONE, begin, carry_on, daemon, says, spawn, start_thread, until
from tests.support.lasting import ROOT_ONLY
from tests.support.new_store import init_store
from tests.support.strategies import skip_without

EMPTY: dict[str, Any] = {"files": [], "directories": [], "symlinks": []}


async def test_a_workspace_over_its_limit_is_not_read(disk_store: Store) -> None:
    tree = disk_store.put_node("directory", EMPTY).hash
    made = begin(disk_store, ONE, {"a": says({}, "truncate -s 1T big")}, tree)
    rests = await carry_on(disk_store, made, workspaces=Workspaces(max_bytes=1 << 20))
    assert (rests.status, rests.record["cause"]) == (SUSPENDED, "failure")
    assert "holds more than 1048576 bytes" in rests.record["reason"]
    assert os.listdir(disk_store.root / "workspaces") == []


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(COPYING, id="copy"),
        pytest.param(OVER_IMAGES, id="overlay", marks=skip_without(strategies.NATIVE)),
    ],
)
async def test_recording_can_be_cancelled(disk_store: Store, kind: Workspaces) -> None:
    """A sparse file that is hashed for most of a minute; what was staged is deleted."""
    temp = disk_store.root / "tmp"
    tree = disk_store.put_node("directory", EMPTY).hash
    made = begin(disk_store, ONE, {"a": says({}, "truncate -s 16G big")}, tree)

    def staged() -> list[str]:
        found = [os.path.join(top, name) for top, _, names in os.walk(temp) for name in names]
        return [path for path in found if os.path.exists(path) and os.path.getsize(path) > 1 << 30]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(carry_on, disk_store, made, workspaces=kind))
        while not staged():
            await trio.sleep(0.01)
        begun = trio.current_time()
        nursery.cancel_scope.cancel()
    desk.unmount_all(disk_store.root)
    assert trio.current_time() - begun < 15
    assert staged() == []
    assert threads.get(disk_store, made.id).status == RUNNING


async def test_a_thread_without_a_workspace_runs_in_a_store_in_memory(store: Store) -> None:
    ended = await carry_on(store, begin(store, ONE, {"a": says({})}))
    assert ended.status == ENDED


async def test_one_with_a_workspace_does_too(store: Store) -> None:
    tree = store.put_node("directory", EMPTY).hash
    ended = await carry_on(store, begin(store, ONE, {"a": says({}, "touch made")}, tree))
    assert ended.status == ENDED


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=60m", "tmpfs", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


@ROOT_ONLY
def test_cancel_and_gc_need_no_room(small_disk: Path) -> None:
    root = small_disk / "store"
    with init_store(root) as store:
        tree = store.put_node("directory", EMPTY).hash
        thread = begin(store, ONE, {"a": says({})}, tree)
    reserve.allocate(root)
    fill = ["dd", "if=/dev/zero", f"of={small_disk}/full", "bs=64k", "status=none"]
    assert subprocess.run(fill, stderr=subprocess.PIPE, check=False).returncode == 1
    answer = spawn("--store", root, "thread", "cancel", thread.id)
    assert answer.returncode == 0, answer.stderr
    with reserve.released(root), Store.open(root) as store:
        assert threads.get(store, thread.id).status == CANCELLED
    answer = spawn("--store", root, "gc", "--grace", "0")
    assert answer.returncode == 0, answer.stderr


@ROOT_ONLY
def test_a_thread_that_fills_the_disk_is_suspended_and_can_be_cancelled(small_disk: Path) -> None:
    root = small_disk / "store"
    with init_store(root) as store:
        tree = store.put_node("directory", EMPTY).hash
        workflows.add(store, ONE)
    agent = says({}, "head -c 100m /dev/urandom >big; :")
    with daemon(root):
        id = start_thread(root, "sample", {"a": agent}, workspace=tree)

        def status() -> str:
            with Store.open(root) as store:
                return threads.get(store, id).status

        until(lambda: status() != RUNNING or not (root / "workspaces" / id).exists(), "its end")
        answer = spawn("--store", root, "thread", "cancel", id)
        assert answer.returncode == 0, answer.stderr
        assert status() == CANCELLED
    assert os.listdir(root / "workspaces") == []


def test_the_workspace_is_freed_before_the_head_moves(
    disk_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = disk_store.put_node("directory", EMPTY).hash
    thread = begin(disk_store, ONE, {"a": says({})}, tree)
    place = disk_store.root / "workspaces" / thread.id
    place.mkdir()
    there: list[bool] = []
    cancel = stop_thread.transitions.cancel

    def look(*arguments: Any, **options: Any) -> Any:
        there.append(place.exists())
        return cancel(*arguments, **options)

    monkeypatch.setattr(stop_thread.transitions, "cancel", look)
    stop_thread.cancel(disk_store, thread.id, COPYING, ())
    assert there == [False]
