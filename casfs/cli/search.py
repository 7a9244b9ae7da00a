"""Full-text search."""

from __future__ import annotations

import click

from casfs.cli.common import Count, json_option, open_store
from casfs.cli.json_values import record
from casfs.cli.output import echo_lines


@click.command()
@click.argument("text")
@click.option("--type", help="Only nodes of this type.")
@click.option("--thread", help="Only steps and attempts of this thread.")
@click.option("--limit", type=Count(1), default=100, show_default=True)
@json_option
@click.pass_context
def search(
    ctx: click.Context, text: str, type: str | None, thread: str | None, limit: int, as_json: bool
) -> None:
    """Find nodes that contain all words of TEXT; prints their paths in a mount.

    \b
    casfs search "the retry" --type content
    """
    from casfs import thread_lookup
    from casfs.maintenance.search import Index

    with open_store(ctx) as store, Index(store) as index:
        id = thread_lookup.find(store, thread).id if thread else None
        hits = list(index.search(text, type=type, thread=id, limit=limit))
    echo_lines(as_json, [record(hit) for hit in hits], (f"{h.path}: {h.snippet}" for h in hits))
