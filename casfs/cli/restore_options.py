"""Restoring a tree to a directory, as `tree restore` and `checkpoint restore` share it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click

from casfs.cli.common import json_option
from casfs.cli.output import echo_result, warn
from casfs.cli.terminal import progress_counter
from casfs.digest import TreeHash
from casfs.revisions import resolve_tree
from casfs.store import Store
from casfs.system.paths import printable
from casfs.trees.restore.restore import RestoreResult, restore


@dataclass(frozen=True, slots=True)
class RestoreOptions:
    base: str | None
    delete_untracked: bool
    verify: bool
    set_id: bool
    as_json: bool


def restore_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of a restore; the verb gets RestoreOptions."""

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
    @wraps(verb)
    def wrapped(
        *values: Any,
        base: str | None,
        delete_untracked: bool,
        verify: bool,
        preserve: str | None,
        as_json: bool,
        **more: Any,
    ) -> None:
        options = RestoreOptions(base, delete_untracked, verify, preserve is not None, as_json)
        verb(*values, options=options, **more)

    return wrapped


def restore_tree(
    store: Store, root: TreeHash, directory: str, options: RestoreOptions
) -> RestoreResult:
    """Restores a tree with progress, and warns of overwritten changes and kept directories."""
    with progress_counter("files written:") as count:
        done = restore(
            store,
            root,
            Path(directory),
            base=None if options.base is None else resolve_tree(store, options.base),
            delete_untracked=options.delete_untracked,
            verify=options.verify,
            set_id=options.set_id,
            progress=lambda files, _: count(files),
        )
    for path in done.outcome.changed:
        warn(f"{printable(path)}: was changed here, and is now as in the tree")
    for path in done.outcome.kept:
        warn(f"{printable(path)}: kept, it holds files that are in neither tree")
    return done


def print_restored(
    done: RestoreResult, name: str, directory: str, fields: dict[str, Any], options: RestoreOptions
) -> None:
    """Prints the result: a line that begins with `name`, or JSON that begins with `fields`."""
    value = {
        **fields,
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
        f"{name} restored to {directory}: {done.files} files written, {done.bytes} bytes,"
        f" {done.outcome.deleted} deleted, {done.seconds:.2f} s"
    )
    echo_result(options.as_json, value, line)
