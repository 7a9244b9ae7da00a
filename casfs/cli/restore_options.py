"""What `tree restore` and `checkpoint restore` share: options, progress, what was done."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click

from casfs.cli.common import answer, json_option, warn
from casfs.cli.terminal import counter
from casfs.revisions import resolve_tree
from casfs.store import Store
from casfs.trees.restore.restore import Restored, restore


@dataclass(frozen=True, slots=True)
class How:
    """What was asked for besides the tree and the directory."""

    base: str | None
    delete_untracked: bool
    verify: bool
    json: bool


def restore_options(verb: Callable[..., None]) -> Callable[..., None]:
    """--base, --delete-untracked, --verify and --json: the verb is given a `How`."""

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
    @json_option
    @wraps(verb)
    def wrapped(
        *values: Any,
        base: str | None,
        delete_untracked: bool,
        verify: bool,
        as_json: bool,
        **more: Any,
    ) -> None:
        verb(*values, how=How(base, delete_untracked, verify, as_json), **more)

    return wrapped


def bring(store: Store, root: str, directory: str, how: How) -> Restored:
    """Restore and warn of what somebody should know."""
    with counter("files written:") as count:
        done = restore(
            store,
            root,
            Path(directory),
            base=None if how.base is None else resolve_tree(store, how.base),
            delete_untracked=how.delete_untracked,
            verify=how.verify,
            progress=lambda files, _: count(files),
        )
    for path in done.outcome.changed:
        warn(f"{_show(path)}: was changed here, and is now as in the tree")
    for path in done.outcome.kept:
        warn(f"{_show(path)}: stays, since there are files in it that are in no tree")
    return done


def report(done: Restored, what: str, directory: str, more: dict[str, Any], how: How) -> None:
    """`what`: the first word, the hash or the id that was restored."""
    value = {
        **more,
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
        f"{what} restored to {directory}: {done.files} files written, {done.bytes} bytes,"
        f" {done.outcome.deleted} deleted, {done.seconds:.2f} s"
    )
    answer(how.json, value, line)


def _show(path: bytes) -> str:
    return path.decode("utf-8", "replace")
