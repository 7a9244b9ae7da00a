"""`restore`: a tree written to a directory. `checkpoint restore` and `tree restore` are it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import click

from casfs.checkpoints.revisions import resolve, step_of
from casfs.cli.common import open_store, options_as
from casfs.cli.json_values import record
from casfs.cli.output import echo_lines, echo_result, json_option, say_incomplete, wants_json, warn
from casfs.cli.progress import progress
from casfs.cli.purged_notes import print_missing
from casfs.cli.snapshot_options import MAX_NAMED_PATHS, named
from casfs.directories.operations import Intent, Operation, Verb
from casfs.errors import Usage
from casfs.sessions import caller
from casfs.system.paths import printable
from casfs.trees.restore.options import RestoreOptions
from casfs.trees.restore.restore import restore as restore_tree


class Flags(NamedTuple):
    base: str | None
    delete_untracked: bool
    verify: bool
    force: bool
    dry_run: bool
    parents: bool
    preserve: str | None


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
    help="Also delete files that are in neither tree; `casfs undo` brings them back.",
)
@click.option("--verify", is_flag=True, help="Read every file, also where its stat is unchanged.")
@click.option("--force", is_flag=True, help="Overwrite local changes; `undo` has them.")
@click.option("--dry-run", is_flag=True, help="Print what would be changed; change nothing.")
@click.option("--parents", is_flag=True, help="Make missing parent directories.")
@click.option(
    "--preserve",
    type=click.Choice(["mode"]),
    help="Also restore set-id bits of preserved modes, left out otherwise.",
)
@json_option
@options_as(Flags)
def restore(tree: str, directory: str, paths: tuple[str, ...], options: Flags) -> None:
    """Make DIRECTORY hold TREE: a directory that is new, empty, or recorded or restored before.

    In the last case every path of the two trees is checked, and what differs or is missing is
    written, or deleted; files that are in neither tree stay. Local changes are refused, exit 4.
    `casfs undo` takes a restore back, what --force overwrites and --delete-untracked deletes
    included. What `checkpoint create` leaves out, as .git, is never deleted.

    \b
    casfs checkpoint restore work@20261122 ./again
    casfs checkpoint restore work . -- src/main.py
    """
    if any(not path.strip("/") for path in paths):
        raise Usage("an empty path; leave all paths out for the whole tree")
    if paths and options.delete_untracked:
        raise Usage("give --delete-untracked, or paths")
    with open_store() as store, progress("restoring", "files") as update:
        revision = resolve(store, tree)
        source = revision.checkpoint
        done = restore_tree(
            store,
            revision.state,
            Path(directory),
            RestoreOptions(
                base=None if options.base is None else resolve(store, options.base).state.full,
                paths=[os.fsencode(path) for path in paths],
                delete_untracked=options.delete_untracked,
                verify=options.verify,
                set_id=options.preserve is not None,
                parents=options.parents,
                dry_run=options.dry_run,
                force=options.force,
                progress=update,
                name=f"{source.name}@{source.id}" if source else "",
                leaves_out_failed=True,
                operation=Intent(Verb.RESTORE, tree, caller.actor(store, os.environ)),
                step=step_of(store, revision),
            ),
        )
        print_missing(
            store, revision.state.full, f"{source.name}@{source.id}" if source else revision.root
        )
    for path in done.local if options.dry_run else ():
        forced = "moves it aside" if path in done.purged else "overwrites it"
        warn(f"{printable(path)}: changed locally; only --force {forced}")
    for path in done.outcome.changed:
        if path not in done.outcome.aside:
            warn(f"{printable(path)}: changed during the restore, and is now as in the tree")
    print_aside(done.outcome.aside)
    for path in done.outcome.kept:
        warn(f"{printable(path)}: kept, it is or holds what is in neither tree")
    if done.outcome.from_future:
        warn(f"{directory}: files there are from the future: did the clock go back? Build it clean")
    print_failed(done.failed)
    if done.excluded:
        click.echo(f"casfs: kept: {named(done.excluded)}", err=True)
    plan = [(change.letter, change.path) for change in done.plan]
    value = {
        **(record(source) if source else {}),
        "root": revision.root,
        "from": done.old,
        "directory": directory,
        "files": done.files,
        "bytes": done.bytes,
        "deleted": done.outcome.deleted,
        "changed": [os.fsdecode(path) for path in done.outcome.changed],
        "kept": [os.fsdecode(path) for path in [*done.outcome.kept, *done.excluded]],
        "aside": aside_json(done.outcome.aside),
        "failed": [
            {"path": os.fsdecode(path), "reason": reason} for path, reason in done.failed.items()
        ],
        "localChanges": [os.fsdecode(path) for path in done.local],
        "operation": operation_json(done.operation),
        "dryRun": options.dry_run,
        "changes": [{"letter": letter, "path": os.fsdecode(path)} for letter, path in plan],
        "seconds": round(done.seconds, 3),
    }
    if options.dry_run and not wants_json():
        echo_lines(value, (b"%s %s" % (letter.encode(), path) for letter, path in plan))
        return
    name = source.id if source else revision.root
    line = (
        f"{name} restored to {directory}: {done.files} files written,"
        f" {done.bytes} bytes, {done.outcome.deleted} deleted, {done.seconds:.2f} s"
    )
    echo_result(value, line)
    if done.operation is not None and done.old is not None and not wants_json():
        click.echo(f"casfs: {way_back(directory)}", err=True)


def print_failed(failed: Mapping[bytes, str]) -> None:
    """Names the first of the paths that could not be written; the command's exit code is 1 then."""
    for path, reason in islice(failed.items(), MAX_NAMED_PATHS):
        say_incomplete(f"{printable(path)}: {reason}; it is as it was")
    if len(failed) > MAX_NAMED_PATHS:
        say_incomplete(f"and {len(failed) - MAX_NAMED_PATHS} more; see --json")


def print_aside(aside: Mapping[bytes, bytes]) -> None:
    """Names what was moved, since nothing could give it back."""
    for path, moved in aside.items():
        warn(f"{printable(path)}: no checkpoint has what was there; moved to {printable(moved)}")


def aside_json(aside: Mapping[bytes, bytes]) -> list[dict[str, str]]:
    return [
        {"path": os.fsdecode(path), "movedTo": os.fsdecode(moved)} for path, moved in aside.items()
    ]


def way_back(directory: str) -> str:
    """Returns the line that says how to take back what was written into a directory."""
    is_here = False
    with suppress(FileNotFoundError):  # where one is may have gone with the rewind
        is_here = os.path.realpath(directory) == os.path.realpath(".")
    # A bare number is an operation's.
    shown = f"./{directory}" if directory.isdecimal() else printable(os.fsencode(directory))
    where = "" if is_here else f" {shlex.quote(shown)}"
    return f"`casfs undo{where}` takes it back"


def operation_json(operation: Operation | None) -> int | None:
    return None if operation is None else operation.number
