"""`watch` and `mark`: directories that the daemon records whenever they have come to rest."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from casfs import daemon_socket
from casfs.checkpoints import checkpoint, watch_list
from casfs.checkpoints.checkpoint import Checkpoint
from casfs.checkpoints.create import Created
from casfs.cli.background import start_daemon
from casfs.cli.common import (
    force_option,
    json_option,
    open_store,
    refuse_home_or_root,
    step_secrets,
    store_root,
)
from casfs.cli.json_values import times
from casfs.cli.output import echo_result
from casfs.cli.sizes import AgeOption
from casfs.cli.snapshot_options import keep_options, kept
from casfs.cli.table import echo_table
from casfs.errors import NoDaemon, NotFound, Usage
from casfs.store import Store
from casfs.trees.snapshot import exclusions
from casfs.trees.snapshot.file_reader import Hit
from casfs.trees.snapshot.report import Excluded, SnapshotReport


@click.command()
@click.argument("directory", required=False)
@click.option("--name", help="Of the checkpoints (default: that of the directory).")
@click.option("--settle", type=AgeOption(), default="2s", help="Time without a change (2s).")
@click.option("--list", "listing", is_flag=True, help="List the watched directories.")
@click.option("--stop", is_flag=True, help="Watch DIRECTORY no longer.")
@keep_options
@force_option
@json_option
@click.pass_context
def watch(
    ctx: click.Context,
    /,
    directory: str | None,
    name: str | None,
    settle: int,
    listing: bool,
    stop: bool,
    force: bool,
    as_json: bool,
    **policy: int | None,
) -> None:
    """Record DIRECTORY whenever it has come to rest after a change by any program.

    The daemon follows it, and goes on after a restart. What a checkpoint leaves out costs nothing.
    Older checkpoints are removed by the --keep options, as by `checkpoint forget`.

    \b
    casfs watch ./project --keep-last 500 --keep-daily 30
    casfs watch --list
    """
    if (directory is None) != listing or (listing and stop):
        raise Usage("give DIRECTORY, or --list")
    with open_store(ctx) as store:
        if directory is None:
            values, columns = watch_list.listing(store), "directory checkpoint method error"
            rows = [[one[column] for column in columns.split()] for one in values]
            titles = columns.upper()
            echo_table(as_json, times(values), titles, rows, whole="DIRECTORY CHECKPOINT")
            return
    path = os.path.realpath(directory)
    if stop:
        found = daemon_socket.request(store_root(ctx), "unwatch", directory=path)
    else:
        if not os.path.isdir(path):
            raise NotFound(f"no directory {directory}")
        refuse_home_or_root(Path(path), force)
        with open_store(ctx) as store:
            exclusions.refuse_unrecordable(store, Path(path))
        checkpoint.check_name(name := name or os.path.basename(path))
        start_daemon(store_root(ctx))
        fields: dict[str, Any] = {"name": name, "settle": settle, "keep": kept(policy)}
        found = daemon_socket.request(store_root(ctx), "watch", directory=path, **fields)
    verb = "is not watched any more" if stop else "is watched"
    echo_result(as_json, found, f"{found['name']} {path} {verb}")


@click.command()
@click.argument("text", metavar="MESSAGE")
@json_option
@click.pass_context
def mark(ctx: click.Context, text: str, as_json: bool) -> None:
    """Give MESSAGE to the next checkpoint of the watched directory that holds the working one.

    \b
    casfs mark "rename Cart to Basket"
    """
    fields: dict[str, Any] = {"path": os.path.realpath("."), "message": step_secrets().redact(text)}
    found = daemon_socket.request(store_root(ctx), "mark", **fields)
    line = f"nothing has changed in {found['directory']}"
    if found["changed"]:
        line = f'{found["name"]}: the next checkpoint is "{found["message"]}"'
    echo_result(as_json, found, line)


def create_by_daemon(
    store: Store, directory: Path, name: str, message: str, skip: bool
) -> Created | None:
    """Has the daemon record a directory that it watches, and knows the changes of; returns None
    where it does not."""
    path = os.path.realpath(directory)
    if store.root is None or path not in watch_list.load(store):
        return None
    try:
        fields: dict[str, Any] = {"directory": path, "name": name, "message": message, "skip": skip}
        found = daemon_socket.request(store.root, "record", **fields)
    except (NoDaemon, NotFound):
        return None
    made = Checkpoint(**found.pop("checkpoint"))
    stats = dict(store.node(made.hash, "checkpoint").payload["stats"])
    if found["skipped"]:
        stats |= dict.fromkeys(("added", "modified", "deleted"), 0)
    report = SnapshotReport(stats["files"], read=found["read"], read_bytes=found["readBytes"])
    report.excluded = [Excluded(os.fsencode(path), why) for path, why in found["excluded"]]
    report.purged = {os.fsencode(path): hash for path, hash in found["purged"]}
    report.local = {os.fsencode(path): why for path, why in found["private"]}
    for path, kind, line in found["secrets"]:
        report.exposed[os.fsencode(path)] = (Hit(kind, line),)
    return Created(made, report, stats, found["newBytes"], found["skipped"])
