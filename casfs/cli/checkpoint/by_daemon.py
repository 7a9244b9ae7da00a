"""A checkpoint that the daemon makes of a directory that it watches.

The command imports and opens nothing for it but the daemon's socket, so it is as fast as that.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from casfs.cli.checkpoint.recorded import Recorded
from casfs.cli.common import message_for_daemon
from casfs.cli.json_values import fields
from casfs.errors import NoDaemon, NotFound
from casfs.system import daemon_socket
from casfs.trees.snapshot.report import Excluded, Hit, SnapshotReport


def record_by_daemon(
    store: Path, directory: Path, name: str, message: str, *, skip: bool
) -> Recorded | None:
    """Has the daemon of a store record a directory that it watches, and knows the changes of;
    returns None where it does not."""
    try:
        answer: dict[str, Any] = daemon_socket.request(
            store,
            "record",
            directory=os.path.realpath(directory),
            name=name,
            message=message_for_daemon(message),
            skip=skip,
        )
    except (NoDaemon, NotFound):
        return None
    stats = answer["stats"]
    report = SnapshotReport(stats["files"], read=answer["read"], read_bytes=answer["readBytes"])
    report.excluded = [Excluded(os.fsencode(path), why) for path, why in answer["excluded"]]
    report.purged = {os.fsencode(path): hash for path, hash in answer["purged"]}
    report.unreadable = {os.fsencode(path): why for path, why in answer["unreadable"]}
    report.local = {os.fsencode(path): why for path, why in answer["private"]}
    for path, kind, line in answer["secrets"]:
        report.exposed[os.fsencode(path)] = (Hit(kind, line),)
    return Recorded(
        fields(answer["checkpoint"]),
        report,
        stats=stats,
        new_bytes=answer["newBytes"],
        skipped=answer["skipped"],
    )
