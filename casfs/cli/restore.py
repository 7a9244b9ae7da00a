"""`restore`: a tree written to a directory. `checkpoint restore` and `tree restore` are it."""

from __future__ import annotations

import os
from pathlib import Path

import click

from casfs.checkpoints.checkpoint import Checkpoint
from casfs.checkpoints.create import create_before_restore
from casfs.cli.common import json_option, open_store
from casfs.cli.json_values import record
from casfs.cli.output import echo_lines, echo_result, warn
from casfs.cli.progress import progress
from casfs.errors import Usage
from casfs.revisions import resolve, resolve_tree
from casfs.system.paths import printable
from casfs.trees.restore.restore import restore as restore_tree


@click.command()
@click.argument("tree", metavar="TREE")
@click.argument("directory")
@click.argument("paths", nargs=-1, metavar="[-- PATH…]")
@click.option(
    "--base",
    metavar="TREE",
    help="Tree that DIRECTORY holds now; needed only where casfs did not restore it.",
)
@click.option(
    "--delete-untracked",
    is_flag=True,
    help="Also delete files that are in neither tree: your own, node_modules, .git.",
)
@click.option("--verify", is_flag=True, help="Read every file, also where its stat is unchanged.")
@click.option("--force", is_flag=True, help="Overwrite local changes; a checkpoint records them.")
@click.option("--dry-run", is_flag=True, help="Print what would be changed; change nothing.")
@click.option("--parents", is_flag=True, help="Make missing parent directories.")
@click.option(
    "--preserve",
    type=click.Choice(["mode"]),
    help="Also restore set-id bits of preserved modes, left out otherwise.",
)
@json_option
@click.pass_context
def restore(
    ctx: click.Context,
    tree: str,
    directory: str,
    paths: tuple[str, ...],
    base: str | None,
    delete_untracked: bool,
    verify: bool,
    force: bool,
    dry_run: bool,
    parents: bool,
    preserve: str | None,
    as_json: bool,
) -> None:
    """Make DIRECTORY hold TREE: a directory that is new, empty, or recorded or restored before.

    In the last case every path of the two trees is checked, and what differs or is missing is
    written, or deleted; files that are in neither tree stay. Local changes are refused, exit 4.

    \b
    casfs checkpoint restore work@20261122 ./again
    casfs checkpoint restore work . -- src/main.py
    """
    if paths and delete_untracked:
        raise Usage("give --delete-untracked, or paths")
    saved: list[Checkpoint] = []
    with open_store(ctx) as store, progress("restoring", "files") as update:
        found = resolve(store, tree)
        done = restore_tree(
            store,
            found.root,
            Path(directory),
            base=None if base is None else resolve_tree(store, base),
            paths=[os.fsencode(path) for path in paths],
            delete_untracked=delete_untracked,
            verify=verify,
            set_id=preserve is not None,
            parents=parents,
            dry_run=dry_run,
            on_local_changes=(
                lambda tree, _: saved.append(create_before_restore(store, tree, Path(directory)))
            )
            if force
            else None,
            progress=update,
        )
    for path in done.local if dry_run else ():
        warn(f"{printable(path)}: changed locally; only --force overwrites it")
    for one in saved:
        warn(f"local changes are recorded as {one.name}@{one.id}")
    for path in done.outcome.changed:
        warn(f"{printable(path)}: changed during the restore, and is now as in the tree")
    for path in done.outcome.kept:
        warn(f"{printable(path)}: kept, it holds files that are in neither tree")
    plan = [(change.letter, change.path) for change in done.plan]
    plan += [("D", path) for path in done.untracked]
    named = found.checkpoint
    value = {
        **(record(named) if named else {}),
        "root": done.root,
        "from": done.old,
        "directory": directory,
        "files": done.files,
        "bytes": done.bytes,
        "deleted": done.outcome.deleted,
        "changed": [os.fsdecode(path) for path in done.outcome.changed],
        "kept": [os.fsdecode(path) for path in done.outcome.kept],
        "localChanges": [os.fsdecode(path) for path in done.local],
        "recordedAs": [f"{one.name}@{one.id}" for one in saved],
        "dryRun": dry_run,
        "changes": [{"letter": letter, "path": os.fsdecode(path)} for letter, path in plan],
        "seconds": round(done.seconds, 3),
    }
    if dry_run and not as_json:
        echo_lines(False, value, (b"%s %s" % (one.encode(), path) for one, path in plan))
        return
    line = (
        f"{named.id if named else done.root} restored to {directory}: {done.files} files written,"
        f" {done.bytes} bytes, {done.outcome.deleted} deleted, {done.seconds:.2f} s"
    )
    echo_result(as_json, value, line)
