"""A worker: the process that opens the store and answers the kernel until the mount ends.

It is forked from the supervisor, which has imported all of this before, so that a successor
serves within milliseconds. It must not touch its own mount: deadlock. Besides reading the
store it records the last use of checkpoints, by which cache checkpoints are evicted.

If the store of a restarted worker cannot be read (damaged database, failing disk), the worker
answers every request with EIO: without it the mount point would be an empty directory, as if
the data were lost. It ends itself after STORE_RETRY_S, so that its successor tries again.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path

from casfs.backend.derived import follow, version_of
from casfs.errors import CasfsError, Corrupt, Failed, Unreachable
from casfs.fuse.inode_table import InodeTable
from casfs.fuse.session import Session
from casfs.fuse.views.invalidation import Dentry, invalidated_dentries
from casfs.fuse.views.root import UnreadableRoot
from casfs.fuse.views.root import root as make_root
from casfs.fuse.views.stats import Stats
from casfs.fuse.views.store_reader import StoreReader
from casfs.fuse.views.vnode import Directory
from casfs.mount.walked_trees import WalkedTree
from casfs.store.store import Store
from casfs.system.log import Log
from casfs.trees.dated import DatedTree

BUILTIN = "builtin"
LIBFUSE = "libfuse"
MODULES = {BUILTIN: "kernel.server", LIBFUSE: "pyfuse3.operations"}
USES_INTERVAL_S = 30
GC_GEN0_THRESHOLD = 50_000  # objects; a request allocates many, and no cycles
STORE_RETRY_S = 5
Invalidated = Callable[[], list[Dentry]]


@dataclass(frozen=True, slots=True)
class MountOptions:
    """The store, the mount point (an absolute path without symlinks above it) and how it is
    mounted. `with_local`: checkpoints and steps show private and derived files, too; `native`:
    trees that are walked are mounted by the kernel (`casfs.mount.mounter`)."""

    store: Path
    point: Path
    source: str
    transport: str
    allow_other: bool = False
    xattr: bool = False
    with_local: bool = False
    native: bool = False


def load(transport: str) -> None:
    """Imports what a worker with that transport needs. Raises ImportError."""
    import_module(f"casfs.fuse.{MODULES[transport]}")


def serve_builtin(
    options: MountOptions,
    fd: int,
    table: int,
    answered: bool,
    on_ready: Callable[[], None],
    log: Log,
    walks: int = -1,
) -> bool:
    """Serves /dev/fuse by the built-in transport, with the inode table in `table`, until it is
    unmounted (False) or SIGTERM comes (True). `answered`: an earlier worker has been ready;
    `walks`: the pipe to the mounter, if there is one. Raises CasfsError."""
    from casfs.fuse.kernel.server import FuseServer

    stopped = False
    with _session(options, log, answered=answered, table=InodeTable(table), walks=walks) as (
        session,
        invalidated,
    ):
        server = FuseServer(session, fd, log=log, invalidated=invalidated)

        def stop(*_: object) -> None:
            nonlocal stopped
            stopped = True
            server.stop()

        def ready() -> None:
            if stopped:  # SIGTERM came before `serve` could notice it
                server.stop()
            on_ready()

        signal.signal(signal.SIGTERM, stop)
        server.serve(ready)
    return stopped


def serve_pyfuse3(
    options: MountOptions, answered: bool, on_ready: Callable[[], None], log: Log
) -> bool:
    """The same by pyfuse3, which mounts, too. After SIGTERM the mount is dead."""
    from casfs.fuse.pyfuse3 import operations

    flags = {"ro", "nodev", "nosuid", "default_permissions", "subtype=casfs"}
    flags.add(f"fsname={options.source}")
    if options.allow_other:
        flags.add("allow_other")
    with _session(options, log, answered=answered, table=None) as (session, _):
        return operations.serve(session, str(options.point), options=flags, on_ready=on_ready)


@contextmanager
def _session(
    options: MountOptions, log: Log, answered: bool, table: InodeTable | None, walks: int = -1
) -> Iterator[tuple[Session, Invalidated]]:
    """Yields the session, and the source of dentries to invalidate. The root is an unreadable
    one if a restarted worker cannot open the store."""
    gc.set_threshold(GC_GEN0_THRESHOLD)
    stats = Stats(options.transport)
    with ExitStack() as stack:
        root: Directory
        invalidated: Invalidated = list
        try:
            store = stack.enter_context(Store.open(options.store))
            follow(store.backend)
            version_of(store.backend)()  # connects to the database: fails if it is damaged
            root = make_root(stack.enter_context(_reader(store, log, options.with_local)), stats)
            invalidated = invalidated_dentries(store.backend)
        except (Corrupt, Failed, Unreachable) as error:
            if not answered:
                raise
            log("store cannot be read", mount=options.point, error=str(error))
            root = UnreadableRoot(error)
            stack.enter_context(_sigterm_after(STORE_RETRY_S))
        session = Session(
            root,
            stats,
            log,
            store=options.store,
            xattr=options.xattr,
            handles=options.transport == LIBFUSE,
            invalidates=options.transport == BUILTIN,
            table=table,
            on_walk=partial(_report_walk, walks) if walks >= 0 else None,
        )
        yield session, invalidated


def _report_walk(walks: int, path: str, ino: int, root: DatedTree) -> None:
    WalkedTree(path, ino, root).send(walks)


@contextmanager
def _sigterm_after(seconds: float) -> Iterator[None]:
    """Sends SIGTERM to this worker, as from outside, so that it is restarted."""
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGTERM))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def _reader(store: Store, log: Log, with_local: bool) -> Iterator[StoreReader]:
    """Yields a reader whose uses a worker thread writes to the store."""
    reader = StoreReader(store, with_local=with_local)
    over = threading.Event()

    def write_periodically() -> None:
        while not over.wait(USES_INTERVAL_S):
            _write_uses(reader, log)

    thread = threading.Thread(target=write_periodically, name="casfs-uses", daemon=True)
    thread.start()
    try:
        yield reader
    finally:
        over.set()
        thread.join()
        _write_uses(reader, log)


def _write_uses(reader: StoreReader, log: Log) -> None:
    try:
        reader.note_uses()
    except CasfsError as error:  # a full disk must not end a mount
        log("uses not noted", error=str(error))
