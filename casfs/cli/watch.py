"""`watch`: directories that the daemon records whenever they have come to rest."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from casfs.checkpoints import checkpoint, watch_list
from casfs.cli.background import start_daemon
from casfs.cli.common import (
    force_option,
    open_store,
    store_root,
)
from casfs.cli.json_values import times
from casfs.cli.keep_options import keep_options, kept
from casfs.cli.output import echo_result, json_option
from casfs.cli.sizes import AgeOption
from casfs.cli.table import echo_table
from casfs.errors import NotFound, Usage
from casfs.system import daemon_socket
from casfs.system.home import refuse_home_or_root
from casfs.trees.snapshot import exclusions


@click.command()
@click.argument("directory", required=False)
@click.option("--name", help="Of the checkpoints (default: that of the directory).")
@click.option("--settle", type=AgeOption(), default="2s", help="Time without a change (2s).")
@click.option("--list", "listing", is_flag=True, help="List the watched directories.")
@click.option("--stop", is_flag=True, help="Watch DIRECTORY no longer.")
@keep_options
@force_option
@json_option
def watch(
    directory: str | None,
    name: str | None,
    settle: int,
    listing: bool,
    stop: bool,
    force: bool,
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
    with open_store() as store:
        if directory is None:
            values = watch_list.listing(store)
            columns = "directory checkpoint method error"
            rows = [[row[column] for column in columns.split()] for row in values]
            titles = columns.upper()
            echo_table(times(values), headers=titles, rows=rows, whole="DIRECTORY CHECKPOINT")
            return
    path = os.path.realpath(directory)
    if stop:
        answer = daemon_socket.request(store_root(), "unwatch", directory=path)
    else:
        if not os.path.isdir(path):
            raise NotFound(f"no directory {directory}")
        refuse_home_or_root(Path(path), force)
        with open_store() as store:
            exclusions.refuse_unrecordable(store, Path(path))
        checkpoint.check_name(name := name or os.path.basename(path))
        start_daemon(store_root())
        fields: dict[str, Any] = {"name": name, "settle": settle, "keep": kept(policy)}
        answer = daemon_socket.request(store_root(), "watch", directory=path, **fields)
    verb = "is not watched any more" if stop else "is watched"
    echo_result(answer, f"{answer['name']} {path} {verb}")
