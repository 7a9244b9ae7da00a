"""`checkpoint list`."""

from __future__ import annotations

import click

from casfs.checkpoints import checkpoint as checkpoints
from casfs.checkpoints.checkpoint import BEFORE_RESTORE, Checkpoint
from casfs.cli.common import json_option, open_store
from casfs.cli.json_values import record
from casfs.cli.table import Moment, Size, echo_table
from casfs.errors import CasfsError, NotFound
from casfs.store import Store


@click.command("list")
@click.argument("name", required=False)
@json_option
@click.pass_context
def list_(ctx: click.Context, name: str | None, as_json: bool) -> None:
    """List the checkpoints of NAME, or all, newest first; of `before-restore` only the newest.

    \b
    casfs checkpoint list work
    """
    with open_store(ctx) as store:
        found = sorted(checkpoints.listing(store, name), key=_age, reverse=True)
        sizes = [recorded_size(store, one) for one in found]
    if name is not None and not found:
        raise NotFound(f"no checkpoint {name!r}; see `casfs checkpoint list`")
    undos = [one for one in found if name is None and one.name == BEFORE_RESTORE]
    more = f" (and {len(undos) - 1} more: casfs checkpoint list {BEFORE_RESTORE})"
    older = set(undos[1:])
    counted = {undos[0].id: more} if older else {}
    rows = [
        (
            f"{one.name}@{one.id}",
            Moment(one.created_at),
            files,
            size and Size(size),
            one.message + counted.get(one.id, ""),
        )
        for one, (files, size) in zip(found, sizes, strict=True)
        if one not in older
    ]
    values = [
        {**record(one), "files": files, "bytes": size}
        for one, (files, size) in zip(found, sizes, strict=True)
    ]
    echo_table(
        as_json,
        values,
        headers="CHECKPOINT DATE FILES SIZE MESSAGE",
        rows=rows,
        whole="CHECKPOINT DATE",
    )


def _age(one: Checkpoint) -> tuple[int, str]:
    return one.created_at, one.name


def recorded_size(store: Store, one: Checkpoint) -> tuple[int | None, int | None]:
    """Returns files and bytes; None where the node is damaged."""
    try:
        stats = store.node(one.hash, "checkpoint").payload["stats"]
    except CasfsError:
        return None, None
    return stats["files"], stats["bytes"]
