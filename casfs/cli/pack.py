"""The cold tier."""

from __future__ import annotations

import os

import click

from casfs import config
from casfs.backend.derived import total_stored
from casfs.cli.common import open_store, store_root
from casfs.cli.output import echo_result, json_option
from casfs.cli.progress import progress
from casfs.cli.sizes import AgeOption, parse_age
from casfs.system.sizes import readable

DEFAULT_AGE = "30d"


@click.command()
@click.option("--older-than", type=AgeOption(), help="Least age since the last use (30d).")
@click.option("--dry-run", is_flag=True, help="Print what would be packed.")
@json_option
def pack(older_than: int | None, dry_run: bool) -> None:
    """Compress the blobs that nothing has used lately, many in one file.

    They stay readable as before. What an image of a tree, an open workspace or a mount by the
    kernel needs is left as it is. Interrupted, the next run goes on.

    \b
    casfs pack --dry-run
    casfs pack --older-than 7d
    """
    from casfs.maintenance import cold

    with open_store() as store:
        if older_than is None:
            values = config.values(store_root(), os.environ)
            older_than = parse_age(values["pack.older_than"] or DEFAULT_AGE)
        total = total_stored(store.blobs)
        with progress("packing", "blobs", total=total.blobs, total_bytes=total.bytes) as update:
            done = cold.pack(store, older_than=older_than, dry_run=dry_run, progress=update)
    value = {"blobs": done.blobs, "bytes": done.bytes, "packs": done.files, "dryRun": dry_run}
    line = f"{done.blobs} blobs, {readable(done.bytes)}"
    text = f"would pack {line}" if dry_run else f"packed {line}, into {done.files} packs"
    echo_result(value, text)
