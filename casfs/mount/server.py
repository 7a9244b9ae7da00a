"""A serving process: it opens the store and answers the kernel until the mount is over.

It runs after a fork of the keeper, which has imported all of this before, so that a
successor of one that died serves within milliseconds. It never asks the mount anything
itself: who waits for himself waits for ever. Besides reading it does one thing: now and
then it tells the store what was read, for cache is evicted by its last use.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from ..errors import CasfsError
from ..fuse.reader import Reader
from ..fuse.session import Session
from ..fuse.stats import Stats
from ..fuse.table import Table
from ..fuse.views import gone
from ..fuse.views import root as make_root
from ..log import Log
from ..store import Store

KERNEL, PYFUSE3, AUTO = "kernel", "pyfuse3", "auto"
MODULES = {KERNEL: "transport", PYFUSE3: "ops"}
NOTE_EVERY = 30  # seconds


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


def by_kernel(plan: Plan, fd: int, table: int, on_ready: Callable[[], None], log: Log) -> bool:
    """Serve /dev/fuse by our own transport, with a table of inodes, until it is unmounted
    (False) or SIGTERM comes (True). Raises CasfsError."""
    from ..fuse.transport import Transport

    stopped = False
    with Store.open(plan.store) as store, _reading(store, log) as reader:
        session = _session(plan, reader, log, Table(table))
        transport = Transport(session, fd, log, gone(store.backend))

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


def by_pyfuse3(plan: Plan, on_ready: Callable[[], None], log: Log) -> bool:
    """Mount by pyfuse3 and serve, the same otherwise. After SIGTERM the mount is dead."""
    from ..fuse import ops

    options = {"ro", "nodev", "nosuid", "default_permissions", "subtype=casfs"}
    options.add(f"fsname={plan.source}")
    if plan.allow_other:
        options.add("allow_other")
    with Store.open(plan.store) as store, _reading(store, log) as reader:
        session = _session(plan, reader, log, None)
        return ops.serve(session, str(plan.point), options, on_ready)


def _session(plan: Plan, reader: Reader, log: Log, table: Table | None) -> Session:
    stats = Stats(plan.transport)
    return Session(
        make_root(reader, stats),
        stats,
        log,
        store=plan.store,
        xattr=plan.xattr,
        handles=plan.transport == PYFUSE3,
        watched=plan.transport == KERNEL,
        table=table,
    )


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
