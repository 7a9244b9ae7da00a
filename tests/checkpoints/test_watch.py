"""What a watch records equals a full snapshot, whatever happens to the directory."""

from __future__ import annotations

import mmap
import os
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from casfs.checkpoints import checkpoint, followed_paths, revisions
from casfs.checkpoints.extents import CHECKPOINT, PROJECT, Extent, of_session
from casfs.checkpoints.watch import Watch
from casfs.checkpoints.watch_list import WatchSpec
from casfs.digest import TreeHash
from casfs.errors import Failed
from casfs.store.store import Store
from casfs.system import directory_events, mounts
from casfs.system.directory_events import Event, EventSource, Fanotify
from casfs.trees import tree
from casfs.trees.snapshot import exclusions, walker
from casfs.trees.snapshot.report import SnapshotReport
from tests.support.following import OwnWatch
from tests.support.lasting import ROOT_ONLY
from tests.support.new_store import init_store

NAMES = st.sampled_from(["a", "b", "c", "d.log", "build", ".venv"])
TRIES = 200
SESSION = of_session(None)


def works(method: str, at: Path) -> bool:
    fd = os.open(at, os.O_RDONLY)
    try:
        source = directory_events.open_source(fd if method == "fanotify" else None)
        os.close(source.fd)
        return source.method == method
    finally:
        os.close(fd)


METHODS = [
    pytest.param(
        one,
        marks=[] if works(one, Path(tempfile.gettempdir())) else pytest.mark.skip("not here"),
    )
    for one in ("fanotify", "inotify")
]


def full(store: Store, directory: Path, extent: Extent = CHECKPOINT) -> TreeHash:
    """The tree of a snapshot that reads every file."""
    rules = exclusions.ignore_rules(
        store, directory, SnapshotReport(), keeps_derived=extent.keeps_derived
    )
    if not extent.keeps_top_git:
        rules.excluded = {**rules.excluded, b".git": "as of a worktree"}
    with store.batch() as batch:
        return walker.snapshot(batch, directory, rules).node.hash


def settle(watch: OwnWatch) -> None:
    for _ in range(TRIES):
        watch.step()
        if watch.due_in() > 1 or watch.spec.error is not None:
            break
    assert watch.spec.error is None
    assert watch.due_in() > 1


def check(store: Store, watch: OwnWatch) -> None:
    settle(watch)
    latest, wanted = checkpoint.latest(store, "work"), full(store, Path(watch.spec.directory))
    assert latest is not None
    assert list(tree.diff(store, latest.root, wanted)) == []
    assert latest.root == wanted
    stats = store.node(latest.hash, "checkpoint").payload["stats"]
    files = [one for _, one in tree.walk(store, wanted) if isinstance(one, tree.File)]
    assert stats["files"] == len(files)
    assert stats["bytes"] == sum(one.digest.size_bytes for one in files)


class Operations:
    """Operations on files below `top`, by anything with `choice`; those that cannot be are none."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.mapped: list[mmap.mmap] = []
        self.mapped_inodes: set[int] = set()

    def directories(self) -> list[Path]:
        return [self.top, *(one for one in self._all() if one.is_dir())]

    def files(self) -> list[Path]:
        return [one for one in self._all() if one.is_file()]

    def _all(self) -> Iterator[Path]:
        for above, directories, files in os.walk(self.top):
            for name in (*directories, *files):
                if not (found := Path(above) / name).is_symlink():
                    yield found

    def do(self, kind: str, pick: Any, name: str) -> None:
        file = pick(self.files() or [self.top])
        above, other = pick(self.directories()), pick(self.directories())
        with suppress(OSError, ValueError):
            getattr(self, kind)(above, other, file, name)

    def write(self, above: Path, _: Path, __: Path, name: str) -> None:
        (above / name).write_text(f"{name} {time.monotonic_ns()}")

    def write_rules(self, above: Path, _: Path, __: Path, name: str) -> None:
        (above / ".gitignore").write_text(f"{name}/\n")
        (above / "Makefile").touch()

    def write_patterns(self, _: Path, __: Path, ___: Path, name: str) -> None:
        (self.top / ".casfsignore").write_text(f"{name}\n")

    def append(self, _: Path, __: Path, file: Path, ___: str) -> None:
        with file.open("a") as stream:
            stream.write("more")

    def replace(self, above: Path, _: Path, __: Path, name: str) -> None:
        (above / "new").write_text(f"new {time.monotonic_ns()}")
        (above / "new").replace(above / name)

    def make(self, above: Path, _: Path, __: Path, name: str) -> None:
        (above / name).mkdir()

    def make_environment(self, above: Path, _: Path, __: Path, name: str) -> None:
        (above / ".venv").mkdir(exist_ok=True)
        (above / ".venv/pyvenv.cfg").touch()

    def make_repository(self, above: Path, _: Path, __: Path, name: str) -> None:
        (above / ".git/objects").mkdir(parents=True)
        (above / ".git/refs").mkdir()
        (above / ".git/HEAD").write_text(name)

    def spoil_repository(self, above: Path, _: Path, __: Path, name: str) -> None:
        (above / ".git/HEAD").unlink()

    def move_environment_in(self, above: Path, _: Path, file: Path, name: str) -> None:
        (above / ".venv").mkdir(exist_ok=True)
        file.rename(above / ".venv/pyvenv.cfg")

    def spoil_environment(self, above: Path, _: Path, __: Path, name: str) -> None:
        (above / ".venv/pyvenv.cfg").unlink()

    def rename_directory(self, above: Path, other: Path, _: Path, name: str) -> None:
        above.rename(other / name)

    def rename(self, above: Path, _: Path, file: Path, name: str) -> None:
        file.rename(above / name)

    def move_out_and_in(self, above: Path, other: Path, _: Path, name: str) -> None:
        if above != self.top:
            above.rename(self.top.parent / "outside")
            (self.top.parent / "outside/while-outside").touch()
            (self.top.parent / "outside").rename(other / name)

    def link(self, above: Path, _: Path, file: Path, name: str) -> None:
        # A write to a mapped file is seen by the name that it was opened by, which may be left out.
        if file.stat().st_ino not in self.mapped_inodes:
            (above / name).hardlink_to(file)

    def symlink(self, above: Path, _: Path, file: Path, name: str) -> None:
        (above / name).unlink(missing_ok=True)
        (above / name).symlink_to(file.name)

    def delete(self, _: Path, __: Path, file: Path, ___: str) -> None:
        file.unlink()

    def delete_directory(self, above: Path, _: Path, __: Path, ___: str) -> None:
        if above != self.top:
            shutil.rmtree(above)

    def chmod(self, above: Path, _: Path, file: Path, name: str) -> None:
        file.chmod(0o600 if name == "a" else 0o755)
        above.chmod(0o700 if name == "b" else 0o755)

    def map(self, _: Path, __: Path, file: Path, ___: str) -> None:
        if file.stat().st_nlink > 1:
            return
        with file.open("r+b") as stream:
            self.mapped_inodes.add(os.fstat(stream.fileno()).st_ino)
            self.mapped.append(mmap.mmap(stream.fileno(), 0))
        self.mapped[-1][:1] = b"M"

    def unmap(self, *_: object) -> None:
        """A write to a mapped file, whose time may not change any more, and the end of the map."""
        for one in self.mapped:
            one[:1] = bytes([one[0] % 127 + 1])
            one.close()
        self.mapped = []
        self.mapped_inodes.clear()


KINDS = [
    name
    for name, one in vars(Operations).items()
    if callable(one) and name not in ("__init__", "directories", "files", "do", "_all")
]


class WatchMachine(RuleBasedStateMachine):
    fanotify = True

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        (self.folder / "work").mkdir()
        self.store = init_store(self.folder / "store")
        self.operations = Operations(self.folder / "work")
        self._start()

    def _start(self) -> None:
        spec = WatchSpec(str(self.folder / "work"), "work", 0.0)
        self.watch = OwnWatch(self.store, spec, fanotify=self.fanotify)

    @rule(kind=st.sampled_from(KINDS), name=NAMES, data=st.data())
    def operate(self, kind: str, name: str, data: st.DataObject) -> None:
        self.operations.do(kind, lambda found: data.draw(st.sampled_from(found)), name)

    @rule(seed=st.integers(0, 1000))
    def operate_much(self, seed: int) -> None:
        numbers = random.Random(seed)
        for _ in range(20):
            kind, name = numbers.choice(KINDS), numbers.choice("abc")
            self.operations.do(kind, numbers.choice, name)

    @rule()
    def step(self) -> None:
        self.watch.step()

    @precondition(lambda self: self.operations.top.exists())
    @rule()
    def compare(self) -> None:
        self.operations.unmap()
        check(self.store, self.watch)
        source = self.watch._directory._paths.source
        assert source is not None
        assert (source.method == "fanotify") is self.fanotify

    @precondition(lambda self: self.operations.top.exists())
    @rule(extent=st.sampled_from([PROJECT, SESSION]))
    def look_as_another(self, extent: Extent) -> None:
        """As worktrees of the directory, or sessions in it: from then on more of it is read."""
        self.operations.unmap()
        directory = self.watch._directory
        directory.drain()
        state = directory.look(None, extent).state
        assert state.full == full(self.store, self.operations.top, extent)

    @rule(extent=st.sampled_from([PROJECT, SESSION]))
    def release(self, extent: Extent) -> None:
        self.watch._directory.release(extent)

    @rule()
    def restart(self) -> None:
        self.watch.close()
        self._start()

    @rule()
    def lose_events(self) -> None:
        for _ in self.watch._directory._paths.read():
            pass
        self.watch._directory._note(None, Event(None, b"", False, False))

    def teardown(self) -> None:
        self.operations.unmap()
        check(self.store, self.watch)
        self.watch.close()
        self.store.close()
        shutil.rmtree(self.folder)


@pytest.mark.parametrize("method", METHODS)
def test_what_is_recorded_is_what_is_there(method: str) -> None:
    class Machine(WatchMachine):
        fanotify = method == "fanotify"

    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=25, stateful_step_count=30, deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Iterator[tuple[Store, Path]]:
    (tmp_path / "work/src").mkdir(parents=True)
    (tmp_path / "work/src/a").write_text("one")
    with init_store(tmp_path / "store") as store:
        yield store, tmp_path / "work"


@pytest.mark.parametrize("method", METHODS)
def test_changes_at_full_speed_while_it_looks(method: str, place: tuple[Store, Path]) -> None:
    store, top = place
    watch = OwnWatch(store, WatchSpec(str(top), "work", 0.0), fanotify=method == "fanotify")
    operations, numbers, done = Operations(top), random.Random(method), threading.Event()

    def work() -> None:
        for _ in range(1500):
            kind = numbers.choice(KINDS)
            operations.do(kind, numbers.choice, numbers.choice("abcdefgh"))
        operations.unmap()
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        while not done.is_set():
            watch._failures = 0  # a file that vanished while it was read: tried again at once
            watch.step()
    finally:
        thread.join()
    watch._failures = 0
    check(store, watch)
    watch.close()


@pytest.mark.parametrize("method", METHODS)
def test_only_what_changed_is_looked_at(method: str, place: tuple[Store, Path]) -> None:
    store, top = place
    for number in range(30):
        (top / f"d{number}").mkdir()
        (top / f"d{number}/f").write_text("x")
    watch = OwnWatch(store, WatchSpec(str(top), "work", 0.0), fanotify=method == "fanotify")
    settle(watch)
    (top / "d7/f").write_text("y")
    made = watch.record("other", "by hand", skip=False)
    assert (made.report.read, made.report.files) == (1, 1)
    assert made.checkpoint.message == "by hand"
    check(store, watch)
    assert watch.record("other", "", skip=True).skipped
    watch.close()


def test_a_queue_that_overflows(place: tuple[Store, Path]) -> None:
    """The kernel's own overflow event: more events than fs.inotify.max_queued_events."""
    store, top = place
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if limit > 50_000:
        pytest.skip("the queue is too long")
    watch = OwnWatch(store, WatchSpec(str(top), "work", 0.0), fanotify=False)
    settle(watch)
    for number in range(limit + 20):  # an event each, none equal to the one before
        os.close(os.open(top / f"src/{number % 9}", os.O_CREAT | os.O_WRONLY))
    (top / "src/last").write_text("seen although its event was lost")
    watch._directory.drain()
    assert watch._directory._changes.below == {b""}
    check(store, watch)
    watch.close()


def test_messages_and_retention(place: tuple[Store, Path]) -> None:
    store, top = place
    watch = OwnWatch(store, WatchSpec(str(top), "work", 0.0, {"last": 2}))
    settle(watch)
    assert not watch.mark("nothing was done")
    for number in range(3):
        (top / "src/a").write_text(str(number))
        assert watch.mark(f"wrote {number}")
        assert watch.mark("and said so")
        settle(watch)
        settle(watch)
    found = checkpoint.listing(store, "work")
    assert [one.message for one in found] == ["wrote 1; and said so", "wrote 2; and said so"]
    watch.close()


def test_a_message_goes_to_one_checkpoint_even_if_what_follows_fails(
    place: tuple[Store, Path],
) -> None:
    store, top = place
    watch = OwnWatch(store, WatchSpec(str(top), "work", 0.0))
    settle(watch)
    states = store.root / "restored"
    states.rename(store.root / "away")
    states.write_text("in the way of what the directory is noted to hold")
    (top / "src/a").write_text("two")
    assert watch.mark("wrote two")
    while not watch.spec.error:
        watch.step()
    states.unlink()
    (store.root / "away").rename(states)
    watch._failures = 0
    check(store, watch)
    (top / "src/a").write_text("three")
    check(store, watch)
    found = checkpoint.listing(store, "work")
    assert [one.message for one in found] == ["", "wrote two", ""]
    watch.close()


def test_the_root_directory_is_not_taken_for_the_one_above(place: tuple[Store, Path]) -> None:
    watch = OwnWatch(place[0], WatchSpec("/", "work", 0.0))
    fd = os.open("/", os.O_RDONLY)
    watch._directory._start_over(fd)  # only its beginning: a look would read all files
    os.close(fd)
    paths = watch._directory._paths
    assert paths._paths[paths._keys[b""]] == b""
    watch.close()


def test_an_error_is_kept_and_the_watch_goes_on(place: tuple[Store, Path]) -> None:
    store, top = place
    watch = OwnWatch(store, WatchSpec(str(top), "work", 0.0))
    settle(watch)
    top.rename(top.parent / "away")
    watch.step()
    assert watch.spec.error == f"no directory {top}"
    (top.parent / "away/src/a").write_text("two")
    (top.parent / "away").rename(top)
    assert watch.due_in() > 0
    watch._failures = 0
    check(store, watch)
    watch.close()


def test_the_limit_of_inotify_is_named(place: tuple[Store, Path]) -> None:
    store, top = place
    limit = Path("/proc/sys/fs/inotify/max_user_instances")
    held: list[EventSource] = []
    try:
        with suppress(Failed):
            for _ in range(int(limit.read_text()) + 1):
                held.append(EventSource())
        watch = OwnWatch(store, WatchSpec(str(top), "work", 0.0), fanotify=False)
        watch.step()
        assert watch.spec.error is not None
        assert "fs.inotify.max_user_instances is reached; raise it by sysctl" in watch.spec.error
    finally:
        for one in held:
            os.close(one.fd)
    watch._failures = 0
    check(store, watch)
    watch.close()


def test_ignored_paths_wake_nothing(place: tuple[Store, Path]) -> None:
    store, top = place
    (top / ".casfsignore").write_text("*.log\n/out/\n")
    (top / "out").mkdir()
    watch = OwnWatch(store, WatchSpec(str(top), "work", 0.0), fanotify=False)
    settle(watch)
    (top / "src/x.log").write_text("noise")
    (top / "out/deep").mkdir()
    (top / "out/deep/file").write_text("noise")
    watch.step()
    assert not watch._directory._changes
    assert b"/out" not in watch._directory._paths._keys
    assert watch.due_in() > 1
    watch.close()


@pytest.mark.parametrize("pattern", ["!.git/", "!.git"])
def test_a_repository_that_a_person_calls_work(place: tuple[Store, Path], pattern: str) -> None:
    store, top = place
    (top / ".casfsignore").write_text(f"{pattern}\n")
    Operations(top).make_repository(top, top, top, "main")
    watch = OwnWatch(store, WatchSpec(str(top), "work", 0.0), fanotify=False)
    check(store, watch)
    watch._directory.look(None, SESSION)
    (top / "src/a").write_text("two")
    check(store, watch)
    latest = checkpoint.latest(store, "work")
    assert latest is not None
    assert tree.find(store, latest.root, b".git/HEAD") is not None
    watch.close()


def test_it_rests_while_a_session_writes_what_no_checkpoint_has(
    place: tuple[Store, Path],
) -> None:
    store, top = place
    (top / "package.json").touch()
    (top / "node_modules").mkdir()
    watch = OwnWatch(store, WatchSpec(str(top), "work", 0.0), fanotify=False)
    watch._directory.look(None, SESSION)
    settle(watch)
    (top / "node_modules/x").write_text("1")
    watch.step()
    assert watch.due_in() > 1
    assert not watch.mark("nothing of a checkpoint")
    (top / "src/a").write_text("two")
    (top / "node_modules/x").write_text("2")
    assert watch.mark("two")
    check(store, watch)
    (found, *_) = reversed(checkpoint.listing(store, "work"))
    assert found.message == "two"
    watch.close()


def test_one_that_begins_where_another_has_looked(place: tuple[Store, Path]) -> None:
    store, top = place
    first = OwnWatch(store, WatchSpec(str(top), "work", 0.0), fanotify=False)
    settle(first)
    second = Watch(store, WatchSpec(str(top), "two", 0.0), first._directory)
    second.step()
    assert checkpoint.latest(store, "two") is not None
    first.close()


def test_gc_of_what_the_watch_knows(place: tuple[Store, Path]) -> None:
    from casfs.checkpoints import forget
    from casfs.maintenance import gc

    store, top = place
    watch = OwnWatch(store, WatchSpec(str(top), "work", 0.0))
    settle(watch)
    forget.remove(store, checkpoint.listing(store, "work"))
    gc.collect(store, grace=0)
    (top / "b").write_text("new")
    check(store, watch)
    watch.close()


def test_fanotify_drops_what_happens_elsewhere(place: tuple[Store, Path]) -> None:
    store, top = place
    if not works("fanotify", top):
        pytest.skip("no fanotify here")
    watch = OwnWatch(store, WatchSpec(str(top), "work", 0.0))
    settle(watch)
    assert isinstance(watch._directory._paths.source, Fanotify)
    (top.parent / "beside").mkdir()
    (top.parent / "beside/.gitignore").write_text("*")
    watch.step()
    assert not watch._directory._changes
    watch.close()


@ROOT_ONLY
def test_a_full_disk_and_a_file_system_below(tmp_path: Path) -> None:
    """The store has no room; then another file system is mounted below, which is not part of it."""
    for name in ("small", "work/below"):
        (tmp_path / name).mkdir(parents=True)
    mounts.mount("small", tmp_path / "small", "tmpfs", 0, b"size=8m")
    try:
        with init_store(tmp_path / "small/store") as store:
            watch = OwnWatch(store, WatchSpec(str(tmp_path / "work"), "work", 0.0))
            settle(watch)
            data = os.urandom(12 << 20)
            (tmp_path / "work/large").write_bytes(data)
            watch.step()
            assert watch.spec.error is not None
            assert "space" in watch.spec.error
            (tmp_path / "work/large").write_bytes(data[: 1 << 20])
            watch._failures = 0
            check(store, watch)
            method = watch.spec.method
            mounts.mount("below", tmp_path / "work/below", "ramfs", 0)
            try:
                (tmp_path / "work/below/file").write_text("on another file system")
                watch.step()
                watch._failures = 0
                assert not {
                    path for path, _ in revisions.entries(store, "work") if b"below" in path
                }
                assert watch.spec.method == method
            finally:
                mounts.unmount(tmp_path / "work/below")
            check(store, watch)
            watch.close()
    finally:
        mounts.unmount(tmp_path / "small")


def test_a_look_that_succeeds_ends_the_retries(
    place: tuple[Store, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a change came during it: the next look waits until that rests."""
    store, top = place
    watch = OwnWatch(store, WatchSpec(str(top), "work", 0.0))
    try:
        watch.step()
        watch._failures = 3
        watch._failed_at = time.monotonic() - 10_000
        watch._directory.mark_everything()
        watch.spec.settle = 60.0
        look = watch._look

        def look_and_change() -> Any:
            seen = look()
            (top / "meanwhile").touch()
            return seen

        monkeypatch.setattr(watch, "_look", look_and_change)
        assert watch.step() is False
        assert watch.due_in() > 30
    finally:
        watch.close()


def test_a_left_out_directory_that_cannot_be_opened(
    place: tuple[Store, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It rests: what it holds cannot be followed, so it is not listed again and again."""
    store, top = place
    Operations(top).make_environment(top, top, top, "")

    def refused(*_: object) -> int:
        raise PermissionError

    monkeypatch.setattr(followed_paths, "open_directory", refused)
    watch = OwnWatch(store, WatchSpec(str(top), "work", 0.0), fanotify=False)
    settle(watch)
    watch.close()
