"""The store: how much room its content takes, what gc would free, mounts, the daemon, fsck."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.responses import Response

from casfs.backend.derived import room_by_type, total_stored
from casfs.backend.protocols import Total
from casfs.checkpoints import watch_list
from casfs.errors import CasfsError, Corrupt
from casfs.maintenance import gc
from casfs.store.store import Store
from casfs.system import daemon_socket, store_mounts
from casfs.system.log import FSCK_LOG, last_event
from casfs.version import VERSION
from casfs.web.site import Call, time_limit

GC_LIMIT_S = 20.0
TOO_LONG = "this takes longer than a page may; `casfs gc --dry-run` goes on to the end"
CHECKED = ("time", "faults", "blobs", "bytes")  # of a line of fsck's log


@dataclass(frozen=True)
class Page:
    """`rooms`: by type, the largest first; `fsck`: the last one that was run; None where there is
    no such thing."""

    root: Path
    version: str
    total: Total
    database_bytes: int | None
    rooms: Sequence[tuple[str, Total]]
    watches: Sequence[Mapping[str, Any]]
    mounts: Sequence[Path]
    daemon: Mapping[str, Any] | None
    fsck: Mapping[str, Any] | None


@dataclass(frozen=True)
class Garbage:
    """What gc would free now; `fault`: why that is not known."""

    result: gc.Result | None = None
    fault: str | None = None


def show(call: Call) -> Response:
    garbage_report = garbage(call.store) if call.query.get("gc") == "1" else None
    return call.page(
        "store.html", page=page(call.store), garbage=garbage_report, grace_s=gc.GRACE_S
    )


def page(store: Store) -> Page:
    root = store.root
    return Page(
        root,
        VERSION,
        total=total_stored(store.blobs),
        database_bytes=(root / "store.db").stat().st_size,
        rooms=rooms(store),
        watches=watch_list.listing(store),
        mounts=store_mounts.mounted(root),
        daemon=daemon_socket.status(root),
        fsck=last_event(root / "log" / FSCK_LOG, CHECKED),
    )


def rooms(store: Store) -> list[tuple[str, Total]]:
    """Returns what is stored of each type; versions of a schema count as one."""
    totals: dict[str, Total] = {}
    for hash, room in room_by_type(store.blobs).items():
        try:
            name = "files and other bytes" if hash is None else store.registry.name(hash)
        except CasfsError:
            name = "nodes of an unknown type"
        into = totals.setdefault(name, Total())
        into.blobs += room.blobs
        into.bytes += room.bytes
        into.files += room.files
    return sorted(totals.items(), key=lambda named_total: -named_total[1].bytes)


def garbage(store: Store) -> Garbage:
    """Returns what gc without limits would free; deletes nothing."""
    try:
        with time_limit(GC_LIMIT_S, TOO_LONG):
            return Garbage(gc.collect(store.whole, dry_run=True))
    except Corrupt:
        return Garbage(fault="something is damaged; run `casfs fsck`")  # it may be hidden here
    except CasfsError as error:
        return Garbage(fault=str(error))
