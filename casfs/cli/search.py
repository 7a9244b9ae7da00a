"""Full-text search."""

from __future__ import annotations

from itertools import islice

import click

from casfs.cli.common import Count, json_option, open_store
from casfs.cli.json_values import record
from casfs.cli.output import echo_lines
from casfs.cli.progress import progress

MAX_HITS = 1_000_000  # that are looked at for those of a path


@click.command()
@click.argument("text")
@click.argument("place", required=False, metavar="[REV:PATH|PATH]")
@click.option("--type", help="Only nodes of this type.")
@click.option("--thread", help="Only steps and attempts of this thread.")
@click.option("--limit", type=Count(1), default=100, show_default=True)
@json_option
@click.pass_context
def search(
    ctx: click.Context,
    text: str,
    place: str | None,
    type: str | None,
    thread: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """Find nodes that contain all words of TEXT; prints their paths in a mount.

    With a path in a tree, or on disk in a directory that has a checkpoint: only those of the steps
    and checkpoints that `log` shows for it.

    \b
    casfs search "the retry" --type content
    casfs search "the retry" site/index.html
    """
    from casfs import thread_lookup
    from casfs.cli.on_disk import find_place
    from casfs.history.log import log
    from casfs.maintenance.search import Index

    with (
        open_store(ctx) as store,
        progress("indexing", "blobs") as update,
        Index(store, update) as index,
    ):
        id = thread_lookup.find(store, thread).id if thread else None
        found = index.search(text, type=type, thread=id, limit=limit if place is None else MAX_HITS)
        if place is not None:
            versions = [one.version for one in log(*find_place(store, place))]
            steps = {(one.revision.partition("@")[0], one.index) for one in versions}
            nodes = {one.hash for one in versions}
            found = (one for one in found if (one.thread, one.step) in steps or one.hash in nodes)
        hits = list(islice(found, limit))
    echo_lines(as_json, [record(hit) for hit in hits], (f"{h.path}: {h.snippet}" for h in hits))
