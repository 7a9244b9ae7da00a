"""Garbage collection, and why a blob is kept."""

from __future__ import annotations

import os

import click

from casfs import config
from casfs.backend.derived import total_stored
from casfs.cli.common import Count, open_store, store_root
from casfs.cli.json_values import record
from casfs.cli.output import echo, echo_json, echo_line, echo_result, json_option, wants_json
from casfs.cli.progress import progress
from casfs.cli.purge import PurgeOptions, purge_blobs, targets
from casfs.cli.sizes import SizeOption
from casfs.errors import NotFound
from casfs.store.store import Store
from casfs.system import reserve


@click.command()
@click.option("--dry-run", is_flag=True, help="Print what would be deleted.")
@click.option("--max-size", type=SizeOption(), help="Evict cache until the content fits (5G).")
@click.option("--max-inodes", type=Count(0), help="Maximum number of object files.")
@click.option(
    "--grace",
    type=Count(0),
    metavar="SECONDS",
    help="Grace period before unreferenced blobs are deleted.",
)
@click.option("--why", metavar="HASH", help="Print the path from a root to HASH instead.")
@click.option("--purge", metavar="HASH|REV:PATH", help="As `casfs purge`.")
@click.option("--force", is_flag=True, help="Purge although checkpoints or threads have it.")
@json_option
def gc(
    dry_run: bool,
    max_size: int | None,
    max_inodes: int | None,
    grace: int | None,
    why: str | None,
    purge: str | None,
    force: bool,
) -> None:
    """Delete blobs that no thread, checkpoint, workflow or schema reaches.

    Blobs touched within the grace period (a day, see `casfs config`) are kept. Cache
    (action results, plugins) is evicted only to meet a limit, least recently used first.

    \b
    casfs gc --dry-run
    casfs gc --max-size 50G
    casfs gc --why 8e4c7c1b
    casfs gc --purge work:.env --dry-run
    """
    from casfs.maintenance import gc as collector

    with reserve.released(store_root()), open_store() as store:
        if why is not None:
            _why(store, store.expand(why))
            return
        if purge is not None:
            hashes = targets(store, purge, all_versions=False)
            options = PurgeOptions(with_git=False, force=force, why="", dry_run=dry_run)
            purge_blobs(store, hashes, options)
            return
        values = config.values(store_root(), os.environ)
        limits = collector.Limits(
            max_size if max_size is not None else values["gc.max_size"] or None,
            max_inodes if max_inodes is not None else values["gc.max_inodes"] or None,
            values["attach.max_turn_trees"] or None,
        )
        total = total_stored(store.blobs)
        with progress("marking", "blobs", total=total.blobs, total_bytes=total.bytes) as update:
            result = collector.collect(
                store,
                grace=grace if grace is not None else values["gc.grace_s"],
                limits=limits,
                keep=values["gc.keep_checkpoints"],
                dry_run=dry_run,
                progress=update,
            )
    verb = "would free" if dry_run else "freed"
    freed = result.freed
    kept = result.kept
    line = f"{verb} {freed.blobs} blobs, {freed.bytes} bytes; kept {kept.blobs} blobs,"
    echo_result({**record(result), "dryRun": dry_run}, f"{line} {kept.bytes} bytes")
    if not wants_json():
        for name in result.evicted:
            echo_line(f"{'would evict' if dry_run else 'evicted'} {name}")
        if result.turn_trees:
            echo_line(f"{verb} {result.turn_trees} trees of tool calls, the oldest")
        if result.removals:
            would = "would make" if dry_run else "made"
            echo_line(f"{would} {result.removals} removals final: `casfs undo` cannot undo them")


def _why(store: Store, hash: str) -> None:
    from casfs.maintenance import gc as collector

    path = collector.why(store, hash)
    if path is None:
        raise NotFound(f"no root reaches {hash}; gc may delete it")
    if wants_json():
        echo_json(path)
        return
    echo(path[0])
    for step in path[1:]:
        info = store.blobs.info([step])[step]
        echo(f"  {step} {store.registry.name(info.type) if info.type else 'blob'}")
