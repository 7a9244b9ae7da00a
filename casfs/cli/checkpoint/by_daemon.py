"""A checkpoint that the daemon makes of a directory that it watches."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from casfs.checkpoints import watch_list
from casfs.checkpoints.checkpoint import Checkpoint
from casfs.checkpoints.create import Created
from casfs.errors import NoDaemon, NotFound
from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.trees.snapshot.file_reader import Hit
from casfs.trees.snapshot.report import Excluded, SnapshotReport


def create_by_daemon(
    store: Store, directory: Path, name: str, message: str, skip: bool
) -> Created | None:
    """Has the daemon record a directory that it watches, and knows the changes of; returns None
    where it does not."""
    path = os.path.realpath(directory)
    if path not in watch_list.load(store):
        return None
    try:
        fields: dict[str, Any] = {"directory": path, "name": name, "message": message, "skip": skip}
        answer = daemon_socket.request(store.root, "record", **fields)
    except (NoDaemon, NotFound):
        return None
    checkpoint = Checkpoint(**answer.pop("checkpoint"))
    stats = dict(store.node(checkpoint.hash, "checkpoint").payload["stats"])
    if answer["skipped"]:
        stats |= dict.fromkeys(("added", "modified", "deleted"), 0)
    report = SnapshotReport(stats["files"], read=answer["read"], read_bytes=answer["readBytes"])
    report.excluded = [Excluded(os.fsencode(path), why) for path, why in answer["excluded"]]
    report.purged = {os.fsencode(path): hash for path, hash in answer["purged"]}
    report.unreadable = {os.fsencode(path): why for path, why in answer["unreadable"]}
    report.local = {os.fsencode(path): why for path, why in answer["private"]}
    for path, kind, line in answer["secrets"]:
        report.exposed[os.fsencode(path)] = (Hit(kind, line),)
    return Created(
        checkpoint, report, stats=stats, new_bytes=answer["newBytes"], skipped=answer["skipped"]
    )
