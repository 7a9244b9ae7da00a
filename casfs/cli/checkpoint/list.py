"""`checkpoint list`."""

from __future__ import annotations

import click

from casfs.checkpoints import checkpoint as checkpoints
from casfs.checkpoints.checkpoint import Checkpoint
from casfs.cli.common import open_store
from casfs.cli.json_values import record
from casfs.cli.output import json_option
from casfs.cli.table import Moment, Size, echo_table
from casfs.errors import CasfsError, NotFound
from casfs.store.store import Store


@click.command("list")
@click.argument("name", required=False)
@json_option
def list_(name: str | None) -> None:
    """List the checkpoints of NAME, or all, newest first.

    \b
    casfs checkpoint list work
    """
    with open_store() as store:
        listing = sorted(checkpoints.listing(store, name), key=_age, reverse=True)
        sizes = [recorded_size(store, checkpoint) for checkpoint in listing]
    if name is not None and not listing:
        raise NotFound(f"no checkpoint {name!r}; see `casfs checkpoint list`")
    rows = [
        (
            f"{checkpoint.name}@{checkpoint.id}",
            Moment(checkpoint.created_at),
            files,
            size and Size(size),
            checkpoint.message,
        )
        for checkpoint, (files, size) in zip(listing, sizes, strict=True)
    ]
    values = [
        {**record(checkpoint), "files": files, "bytes": size}
        for checkpoint, (files, size) in zip(listing, sizes, strict=True)
    ]
    echo_table(
        values, headers="CHECKPOINT DATE FILES SIZE MESSAGE", rows=rows, whole="CHECKPOINT DATE"
    )


def _age(checkpoint: Checkpoint) -> tuple[int, str]:
    return checkpoint.created_at, checkpoint.name


def recorded_size(store: Store, checkpoint: Checkpoint) -> tuple[int | None, int | None]:
    """Returns files and bytes; None where the node is damaged."""
    try:
        stats = store.node(checkpoint.hash, "checkpoint").payload["stats"]
    except CasfsError:
        return None, None
    return stats["files"], stats["bytes"]
