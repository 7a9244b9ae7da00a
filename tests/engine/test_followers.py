"""A directory has one follower, shared by its users until the last one has released it."""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from casfs.checkpoints import checkpoint
from casfs.checkpoints.extents import CHECKPOINT, PROJECT, of_session
from casfs.checkpoints.followed_directory import FollowedDirectory
from casfs.checkpoints.watch import Watch
from casfs.errors import NotFound, Refused
from casfs.store.store import Store
from casfs.trees import tree
from engine.followers import Followers
from engine.runtime.watches import Watches
from engine.sessions.session_directory import SessionDirectory
from tests.support import planted
from tests.support.helpers import write_tree
from tests.support.repositories import git


@pytest.fixture
def project(tmp_path: Path) -> Path:
    modules = {"x": {"i.js": b"x" * 5000}}
    files = {"a": b"1", "package.json": b"{}", "node_modules": modules}
    git(write_tree(tmp_path / "project", files), "init", "--quiet")
    return tmp_path / "project"


def run(store: Store, check: Callable[[Followers, list[str]], Awaitable[None]]) -> list[str]:
    """Runs a check beside a daemon's followers; returns what they have logged."""
    lines: list[str] = []

    async def main() -> None:
        followers = Followers(store, lambda what, **fields: lines.append(f"{what} {fields}"))
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                followers.start(nursery)
                await check(followers, lines)
                nursery.cancel_scope.cancel()

    trio.run(main)
    return lines


def burst_s() -> float:
    return 0.0


async def until(is_true: Callable[[], bool]) -> None:
    while not is_true():
        await trio.sleep(0.02)


def is_closed(directory: FollowedDirectory) -> bool:
    try:
        directory.drain()
    except NotFound:
        return True
    return False


def test_it_ends_with_its_last_user(disk_store: Store, project: Path) -> None:
    async def check(followers: Followers, _: list[str]) -> None:
        watched = followers.hold(project, "watch", burst_s).directory
        assert followers.hold(project, "sessions", burst_s).directory is watched
        ended: list[str] = []
        followers.release(project, "watch", lambda: ended.append("watch"))
        followers.release(project, "watch", lambda: ended.append("again"))
        await until(lambda: ended == ["watch"])
        assert not is_closed(watched)
        followers.release(project, "sessions")
        # Who comes before that has ended gets one of its own.
        other = followers.hold(project, "worktrees", burst_s).directory
        assert other is not watched
        await until(lambda: is_closed(watched))
        assert not is_closed(other)

    assert run(disk_store, check) == []


def test_events_are_read_for_all(disk_store: Store, project: Path) -> None:
    async def check(followers: Followers, _: list[str]) -> None:
        followed = followers.hold(project, "watch", burst_s)
        directory = followed.directory
        directory.look(None)
        directory.look(None, of_session(None))
        directory.pending = False
        with trio.fail_after(10):
            (project / "node_modules/x/new").write_text("1")
            await followed.wait_read()
            assert not directory.pending, "no checkpoint has it"
            (project / "new").write_text("1")
            await followed.wait_read()
        assert directory.pending

    assert run(disk_store, check) == []


def test_who_reads_events_by_a_look_wakes_the_others(disk_store: Store, project: Path) -> None:
    async def check(followers: Followers, _: list[str]) -> None:
        followed = followers.hold(project, "watch", burst_s)
        followed.directory.begin_watch()
        followed.directory.look(None)
        await followed.wait_read()
        await trio.sleep(0.2)
        (project / "new").write_text("1")
        # No `await` before this: the follower's own task has not read the event.
        followed.directory.drain()
        await followed.wait_read()

    assert run(disk_store, check) == []


def test_a_fault_ends_nothing(
    disk_store: Store, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.followers.RETRY_S", 0.01)
    faults = [OSError("no table of mounts")]

    def read_events(directory: FollowedDirectory) -> bool:
        if faults:
            raise faults.pop()
        return read(directory)

    read = FollowedDirectory.read_events
    monkeypatch.setattr(FollowedDirectory, "read_events", read_events)

    async def check(followers: Followers, lines: list[str]) -> None:
        followed = followers.hold(project, "watch", burst_s)
        os.eventfd_write(followed.directory._wake, 1)
        await until(lambda: bool(lines))
        os.eventfd_write(followed.directory._wake, 1)
        await followed.wait_read()
        assert followed.directory.has_changes

    (line,) = run(disk_store, check)
    assert "no table of mounts" in line


def test_a_watch_beside_a_session(disk_store: Store, project: Path) -> None:
    """What only the session has of the directory is in no checkpoint."""
    spec: dict[str, Any] = {"directory": str(project), "name": "work", "settle": 0.1}

    async def check(followers: Followers, _: list[str]) -> None:
        watches = Watches(disk_store, followers, lambda *_, **__: None)
        nursery: Any = followers._nursery
        watches.start_all(nursery)
        await watches.operations["watch"](**spec)
        directory = followers.hold(project, "sessions", burst_s).directory
        with directory.lock:
            state = directory.look(None, of_session(None)).state
        assert tree.find(disk_store, state.full, b"node_modules/x/i.js") is not None
        (project / "a").write_text("2")

        def is_recorded() -> bool:
            latest = checkpoint.latest(disk_store, "work")
            entry = latest and tree.find(disk_store, latest.root, b"a")
            return isinstance(entry, tree.File) and disk_store.get(entry.digest.hash) == b"2"

        await until(is_recorded)
        latest = checkpoint.latest(disk_store, "work")
        assert latest is not None
        state = checkpoint.recorded(disk_store, latest)
        assert set(tree.load(disk_store, state.full)) == {b"a", b"package.json"}
        answer = await watches.operations["record"](str(project), "work", "", skip=True)
        assert {path for path, _ in answer["excluded"]} == {".git", "node_modules"}
        await watches.operations["unwatch"](str(project))

    assert run(disk_store, check) == []


def test_what_is_too_much_for_one_is_recorded_for_the_others(
    disk_store: Store, project: Path
) -> None:
    directory = FollowedDirectory(disk_store, project)
    try:
        with pytest.raises(Refused, match="holds more than"):
            directory.look(None, of_session(1000))
        kept = directory.look(None, CHECKPOINT)
        assert set(tree.load(disk_store, kept.state.full)) == {b"a", b"package.json"}
        whole = directory.look(None, PROJECT).state
        assert tree.find(disk_store, whole.full, b"node_modules/x/i.js") is not None
    finally:
        directory.close()


def test_a_watch_that_ends_in_the_middle_of_a_look(
    disk_store: Store, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else of the daemon ends with it."""
    inside = threading.Event()
    go_on = threading.Event()

    def step(watch: Watch) -> bool:
        inside.set()
        assert go_on.wait(20)
        return False

    monkeypatch.setattr(Watch, "step", step)

    async def check(followers: Followers, _: list[str]) -> None:
        watches = Watches(disk_store, followers, lambda *_, **__: None)
        nursery: Any = followers._nursery
        watches.start_all(nursery)
        await watches.operations["watch"](directory=str(project), name="work", settle=0.0)
        await until(inside.is_set)
        await watches.operations["unwatch"](str(project))
        go_on.set()
        await trio.sleep(0.2)

    assert run(disk_store, check) == []


def test_a_session_that_ends_after_the_next_has_begun(disk_store: Store, project: Path) -> None:
    directory = FollowedDirectory(disk_store, project)
    first = SessionDirectory(disk_store, directory, None)
    second = SessionDirectory(disk_store, directory, None)
    try:
        second.state()
        first.release()
        assert directory.observe == second._note_writer
        second.release()
        assert directory.observe is None
    finally:
        directory.close()


def test_who_is_named_as_exposed(disk_store: Store, project: Path) -> None:
    """A repository is in the local tree of a wider look, and in no report."""
    (project / ".git/config").write_text(f"token = {planted.token().decode()}\n")
    directory = FollowedDirectory(disk_store, project)
    try:
        for extent in (of_session(None), CHECKPOINT):
            look = directory.look(None, extent)
            assert {*look.report.exposed, *look.report.local} == set()
            assert tree.find(disk_store, look.state.tree, b".git") is None
            recorded = tree.find(disk_store, look.state.full, b".git/config")
            assert (recorded is None) == (extent is CHECKPOINT)
    finally:
        directory.close()
