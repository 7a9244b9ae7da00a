"""`restore`: a tree written to a directory. `checkpoint restore` and `tree restore` are it."""

from __future__ import annotations

import os
from pathlib import Path

import click

from casfs.cli.common import json_option, open_store
from casfs.cli.json_values import record
from casfs.cli.output import echo_result, warn
from casfs.cli.progress import progress
from casfs.revisions import resolve, resolve_tree
from casfs.system.paths import printable
from casfs.trees.restore.restore import restore as restore_tree


@click.command()
@click.argument("tree", metavar="TREE")
@click.argument("directory")
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
@click.option("--verify", is_flag=True, help="Check every path, not only those that differ.")
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
    base: str | None,
    delete_untracked: bool,
    verify: bool,
    preserve: str | None,
    as_json: bool,
) -> None:
    """Write TREE to DIRECTORY: new, empty, or restored before.

    In the last case only the differences between the two trees are written and deleted;
    files that are in neither tree stay.

    \b
    casfs checkpoint restore work@20261122 ./again
    casfs tree restore 47fda1ed ./again
    """
    with open_store(ctx) as store, progress("restoring", "files") as update:
        found = resolve(store, tree)
        done = restore_tree(
            store,
            found.root,
            Path(directory),
            base=None if base is None else resolve_tree(store, base),
            delete_untracked=delete_untracked,
            verify=verify,
            set_id=preserve is not None,
            progress=update,
        )
    for path in done.outcome.changed:
        warn(f"{printable(path)}: was changed here, and is now as in the tree")
    for path in done.outcome.kept:
        warn(f"{printable(path)}: kept, it holds files that are in neither tree")
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
        "seconds": round(done.seconds, 3),
    }
    line = (
        f"{named.id if named else done.root} restored to {directory}: {done.files} files written,"
        f" {done.bytes} bytes, {done.outcome.deleted} deleted, {done.seconds:.2f} s"
    )
    echo_result(as_json, value, line)
