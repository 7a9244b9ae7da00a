"""What several modules of mount tests share: one mount for a whole module, and counts of what
commands ask of it."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from casfs.backend.protocols import Head
from casfs.checkpoints import create
from casfs.store.store import Store
from casfs.system import mounts
from casfs.threads.threads import new_id
from casfs.trees.recorded_state import RecordedState
from casfs.trees.snapshot import walker
from casfs.trees.snapshot.ignore import IgnoreRules
from tests.support.new_store import init_store
from tests.support.served import Mount, end, start
from tests.support.thread_example import STARTED, Example

CACHES = Path("/proc/sys/vm/drop_caches")
UNPROMPTED_REQUESTS = (
    "forget",
    "batch_forget",
)  # sent when the kernel likes to, not because somebody asks
MS_REMOUNT = 32
PLAIN = {"PATH": os.environ["PATH"], "LC_ALL": "C", "HOME": "/nonexistent"}
SIZES = {"row": 700, "file": 9_000, "long": 300_000, "large": 3 << 20}  # of each kind of blob
ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root may do this")


@contextmanager
def lasting(factory: pytest.TempPathFactory, transport: str, *options: str) -> Iterator[Mount]:
    """An empty store, mounted with these options of `casfs mount`."""
    top = factory.mktemp(f"lasting-{transport}")
    where = top / "mnt"
    where.mkdir()
    with init_store(top / "store") as store:
        if "--native" not in options:
            options += ("--native", "off")
        supervisor = start(store, where, "--transport", transport, *options)
        try:
            yield Mount(store, where, supervisor, transport)
        finally:
            end(where, supervisor)


def fill(source: Path) -> dict[str, bytes]:
    """Files of all sizes, of bytes that no other tree has."""
    source.mkdir()
    contents = {f"{about}-{n}": os.urandom(size) for about, size in SIZES.items() for n in (1, 2)}
    for name, data in contents.items():
        (source / name).write_bytes(data)
    return contents


def record(mount: Mount, source: Path, name: str = "ws") -> Path:
    """A checkpoint of everything in `source`, in the mount: of a repository, too, as an older casfs
    has recorded them, since git reads much."""
    with mount.store.batch() as batch:
        full = walker.snapshot(batch, source, IgnoreRules()).dated
        batch.commit()
        batch.settle(filter(None, full))
    state = RecordedState.of_tree(full)
    made = create.create_of_state(mount.store, name, state)
    return mount.path / "trees" / name / made.id


@contextmanager
def read_only(point: Path, plant: Callable[[Path], object]) -> Iterator[Path]:
    """A tmpfs with what `plant` puts there, mounted read-only afterwards."""
    mounts.mount("oracle", point, "tmpfs", 0)
    try:
        plant(point)
        flags = mounts.MS_RDONLY | mounts.MS_NODEV | mounts.MS_NOSUID | MS_REMOUNT
        mounts.mount("oracle", point, "tmpfs", flags)
        yield point
    finally:
        mounts.unmount(point, lazy=True)


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """A directory, open: who starts there walks no path to it."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


def another(thread: Example) -> Example:
    """A thread like this one at its start."""
    id = new_id()
    head = Head(thread.start, {**thread.head.record, "status": "running", "updatedAt": STARTED})
    with thread.store.batch() as batch:
        batch.swap(f"threads/{id}", None, head)
    return replace(thread, id=id, head=head, steps=[])


@contextmanager
def kernel_caches() -> Iterator[None]:
    """Keeps other processes of the suite from dropping the kernel's caches meanwhile."""
    with open(Path(tempfile.gettempdir()) / "casfs-tests.caches", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def drop_caches(what: int = 3) -> None:
    """`what`: as in proc(5), 2 for entries and inodes, 3 for pages too. Only
    root may: of another user nothing is dropped."""
    with kernel_caches():
        if os.geteuid() == 0:
            CACHES.write_text(f"{what}\n")


def inodes(mount: Mount) -> int:
    """How many the kernel knows."""
    report = json.loads((mount.path / ".casfs/stats.json").read_text())
    return int(report["cache"]["inodes"])


def object_of(store: Store, hash: str) -> Path:
    """Where the store has a large blob."""
    return store.root / "objects" / hash[:2] / hash[2:]


def asked(mount: Mount, where: int, command: Sequence[str | Path]) -> dict[str, int]:
    """The requests, by kind, that a command makes which starts in an open directory; without
    those of looking at the counts, and without the kinds of which there were none."""
    first = mount.requests()
    before = mount.requests()
    done = subprocess.run(
        [os.fspath(part) for part in command],
        env=PLAIN | {"GIT_OPTIONAL_LOCKS": "0"},
        preexec_fn=lambda: os.fchdir(where),
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    after = mount.requests()
    made = {
        kind: count - before.get(kind, 0) - (before.get(kind, 0) - first.get(kind, 0))
        for kind, count in after.items()
        if kind not in UNPROMPTED_REQUESTS
    }
    return {kind: count for kind, count in made.items() if count}
