"""Full-text search."""

from __future__ import annotations

from itertools import islice

import click

from casfs.cli.common import Count, open_store
from casfs.cli.json_values import record
from casfs.cli.output import echo_lines, json_option
from casfs.cli.progress import progress

MAX_HITS = 1_000_000  # that are looked at for those of a path


@click.command()
@click.argument("text")
@click.argument("path", required=False, metavar="[REV:PATH|PATH]")
@click.option("--type", help="Only nodes of this type.")
@click.option("--thread", help="Only steps and attempts of this thread.")
@click.option("--limit", type=Count(1), default=100, show_default=True)
@json_option
def search(text: str, path: str | None, type: str | None, thread: str | None, limit: int) -> None:
    """Find nodes that contain all words of TEXT; prints their paths in a mount.

    With a path in a tree, or on disk in a directory that has a checkpoint: only those of the steps
    and checkpoints that `log` shows for it.

    \b
    casfs search "the retry" --type content
    casfs search "the retry" site/index.html
    """
    from casfs.cli.on_disk import find_place
    from casfs.history.log import log
    from casfs.maintenance.search import Index
    from casfs.threads import lookup

    with (
        open_store() as store,
        progress("indexing", "blobs") as update,
        Index(store, update) as index,
    ):
        id = lookup.find(store, thread).id if thread else None
        matches = index.search(
            text, type=type, thread=id, limit=limit if path is None else MAX_HITS
        )
        if path is not None:
            versions = [log_entry.version for log_entry in log(*find_place(store, path))]
            steps = {(version.revision.partition("@")[0], version.index) for version in versions}
            nodes = {version.hash for version in versions}
            matches = (
                hit for hit in matches if (hit.thread, hit.step) in steps or hit.hash in nodes
            )
        hits = list(islice(matches, limit))
    echo_lines([record(hit) for hit in hits], (f"{h.path}: {h.snippet}" for h in hits))
