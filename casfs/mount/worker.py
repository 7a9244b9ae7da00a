"""A serving process: it opens the store and answers the kernel until the mount is over.

It runs after a fork of the keeper, which has imported all of this before, so that a
successor of one that died serves within milliseconds. It never asks the mount anything
itself: who waits for himself waits for ever. Besides reading it does one thing: now and
then it tells the store what was read, for cache is evicted by its last use.

A successor whose store cannot be read (its database is damaged, its disk fails) serves all
the same, and answers EIO: without a mount there would be an empty directory, which says that
nothing is lost. It ends itself after a while, so that the next one tries again.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from casfs.backend.derived import version_of
from casfs.errors import CasfsError, Corrupt, Failed
from casfs.fuse.inode_table import Table
from casfs.fuse.session import Session
from casfs.fuse.views.root import Name, Unreadable, gone
from casfs.fuse.views.root import root as make_root
from casfs.fuse.views.stats import Stats
from casfs.fuse.views.store_reader import Reader
from casfs.fuse.views.vnode import Directory
from casfs.store import Store
from casfs.system.log import Log

BUILTIN, PYFUSE3, AUTO = "builtin", "pyfuse3", "auto"
MODULES = {"builtin": "kernel.server", "pyfuse3": "pyfuse3.operations"}
NOTE_EVERY = 30  # seconds
YOUNG = 50_000  # objects between two looks for cycles: answers are made of many, and make none
RETRY = 5  # seconds until somebody looks again whether the store can be read
Gone = Callable[[], list[Name]]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be shown where, and how; `point` is an absolute path without links above."""

    store: Path
    point: Path
    source: str
    transport: str
    allow_other: bool = False
    xattr: bool = False


def load(transport: str) -> None:
    """Import what a server with that transport needs. Raises ImportError."""
    import_module(f"casfs.fuse.{MODULES[transport]}")


def by_kernel(
    plan: Plan, fd: int, table: int, answered: bool, on_ready: Callable[[], None], log: Log
) -> bool:
    """Serve /dev/fuse by our own transport, with a table of inodes, until it is unmounted
    (False) or SIGTERM comes (True). `answered`: it is a successor. Raises CasfsError."""
    from casfs.fuse.kernel.server import Transport

    stopped = False
    with _session(plan, log, answered, Table(table)) as (session, gone):
        transport = Transport(session, fd, log, gone)

        def stop(*_: object) -> None:
            nonlocal stopped
            stopped = True
            transport.stop()

        def ready() -> None:
            if stopped:  # before it could be told so
                transport.stop()
            on_ready()

        signal.signal(signal.SIGTERM, stop)
        transport.serve(ready)
    return stopped


def by_pyfuse3(plan: Plan, answered: bool, on_ready: Callable[[], None], log: Log) -> bool:
    """Mount by pyfuse3 and serve, the same otherwise. After SIGTERM the mount is dead."""
    from casfs.fuse.pyfuse3 import operations

    options = {"ro", "nodev", "nosuid", "default_permissions", "subtype=casfs"}
    options.add(f"fsname={plan.source}")
    if plan.allow_other:
        options.add("allow_other")
    with _session(plan, log, answered, None) as (session, _):
        return operations.serve(session, str(plan.point), options, on_ready)


@contextmanager
def _session(
    plan: Plan, log: Log, answered: bool, table: Table | None
) -> Iterator[tuple[Session, Gone]]:
    """What answers, and what tells which names have gone."""
    gc.set_threshold(YOUNG)
    stats = Stats(plan.transport)
    with _shown(plan, stats, log, answered) as (root, gone):
        session = Session(
            root,
            stats,
            log,
            store=plan.store,
            xattr=plan.xattr,
            handles=plan.transport == PYFUSE3,
            watched=plan.transport == BUILTIN,
            table=table,
        )
        yield session, gone


@contextmanager
def _shown(plan: Plan, stats: Stats, log: Log, answered: bool) -> Iterator[tuple[Directory, Gone]]:
    """The store's content; for a successor an error in its place, if need be."""
    with ExitStack() as stack:
        root: Directory
        names: Gone = list
        try:
            store = stack.enter_context(Store.open(plan.store))
            version_of(
                store.backend
            )()  # connects: in a database that was damaged since, that waits
            root = make_root(stack.enter_context(_reading(store, log)), stats)
            names = gone(store.backend)
        except (Corrupt, Failed) as error:
            if not answered:
                raise
            log("store cannot be read", mount=plan.point, error=str(error))
            root = Unreadable(error)
            stack.enter_context(_for_a_while())
        yield root, names


@contextmanager
def _for_a_while() -> Iterator[None]:
    """This server is told to end after RETRY, as if from outside: it has a successor then."""
    timer = threading.Timer(RETRY, os.kill, (os.getpid(), signal.SIGTERM))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def _reading(store: Store, log: Log) -> Iterator[Reader]:
    """A reader whose uses are noted, by a thread of its own."""
    reader, over = Reader(store), threading.Event()

    def note() -> None:
        while not over.wait(NOTE_EVERY):
            _note(reader, log)

    thread = threading.Thread(target=note, name="casfs-uses", daemon=True)
    thread.start()
    try:
        yield reader
    finally:
        over.set()
        thread.join()
        _note(reader, log)


def _note(reader: Reader, log: Log) -> None:
    try:
        reader.note_uses()
    except CasfsError as error:  # a full disk must not end a mount
        log("uses not noted", error=str(error))
