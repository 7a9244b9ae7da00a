"""How two trees differ, in the forms that `tree diff` and `checkpoint diff` print."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import click

from casfs.cli.common import json_option, say, say_json
from casfs.errors import Usage
from casfs.nodes.directory import Entry, File, Subdirectory
from casfs.revisions import resolve_tree
from casfs.store import Store
from casfs.trees import tree as trees
from casfs.trees.diff import patch as patches
from casfs.trees.diff import stat as diffstat
from casfs.trees.diff.stat import Row

GRAPH = 40  # columns of signs at most


@dataclass(frozen=True, slots=True)
class Form:
    """How it is to be printed."""

    stat: bool
    patch: bool
    json: bool


def diff_options(verb: Callable[..., None]) -> Callable[..., None]:
    """--stat, --patch and --json: the verb is given a `Form`."""

    @click.option("--stat", "as_stat", is_flag=True, help="Count lines and bytes.")
    @click.option("--patch", "as_patch", is_flag=True, help="Print a unified diff.")
    @json_option
    @wraps(verb)
    def wrapped(*values: Any, as_stat: bool, as_patch: bool, as_json: bool, **more: Any) -> None:
        verb(*values, form=Form(as_stat, as_patch, as_json), **more)

    return wrapped


def show(store: Store, old: str, new: str, form: Form) -> None:
    """Print what differs between two trees, by hash or by checkpoint. Raises Usage, NotFound."""
    if form.patch and (form.stat or form.json):
        raise Usage("--patch is a form of its own: give it without --stat and --json")
    old, new = resolve_tree(store, old), resolve_tree(store, new)
    if form.patch:
        sys.stdout.buffer.write(patches.patch(store, old, new))
        sys.stdout.buffer.flush()
        return
    changes = trees.shown(store, trees.diff(store, old, new))
    if form.stat:
        rows = list(diffstat.rows(store, changes))
        if form.json:
            say_json([_json(row.change) | _counts(row) for row in rows])
        else:
            _say_stat(rows)
    elif form.json:
        say_json([_json(change) for change in changes])
    else:
        for change in changes:
            say(change.letter.encode() + b" " + change.path)


def _json(change: trees.Change) -> dict[str, Any]:
    return {
        "letter": change.letter,
        "path": os.fsdecode(change.path),
        "old": _entry(change.old),
        "new": _entry(change.new),
    }


def _entry(entry: Entry | None) -> dict[str, Any] | None:
    """Kind, hash, size and mode of one side."""
    if entry is None:
        return None
    if isinstance(entry, Subdirectory):
        return {"kind": "directory", "hash": entry.digest.hash}
    kept = entry.properties
    mode = None if kept is None else kept.unix_mode
    if isinstance(entry, File):
        value: dict[str, Any] = {
            "kind": "file",
            "hash": entry.digest.hash,
            "size_bytes": entry.digest.size_bytes,
            "executable": entry.executable,
        }
    else:
        value = {"kind": "symlink", "target": os.fsdecode(entry.target)}
    return value if mode is None else {**value, "unix_mode": mode}


def _counts(row: Row) -> dict[str, Any]:
    added, deleted = row.lines or (None, None)
    return {
        "lines_added": added,
        "lines_deleted": deleted,
        "old_bytes": row.old_bytes,
        "new_bytes": row.new_bytes,
    }


def _say_stat(rows: list[Row]) -> None:
    """A line for each path and one for all, as people know it from git."""
    if not rows:
        return
    names = max(len(row.change.path) for row in rows)
    most = max((sum(row.lines) for row in rows if row.lines), default=0)
    digits = max(len(str(most)), 3)
    room = shutil.get_terminal_size().columns - names - digits - 30
    width = max(min(GRAPH, room), 10)
    for row in rows:
        size = f"{row.old_bytes} -> {row.new_bytes} bytes".encode()
        name = row.change.path.ljust(names)
        if row.lines is None:
            say(b" %s | %s %s" % (name, b"Bin".rjust(digits), size))
        else:
            count = str(sum(row.lines)).rjust(digits).encode()
            say(b" %s | %s %s %s" % (name, count, size, _signs(*row.lines, most, width)))
    say(_total(rows))


def _signs(added: int, deleted: int, most: int, width: int) -> bytes:
    def scaled(count: int) -> int:
        return count if most <= width else -(-count * width // most)

    return b"+" * scaled(added) + b"-" * scaled(deleted)


def _total(rows: list[Row]) -> str:
    added = sum(row.lines[0] for row in rows if row.lines)
    deleted = sum(row.lines[1] for row in rows if row.lines)
    old, new = sum(row.old_bytes for row in rows), sum(row.new_bytes for row in rows)
    paths = "1 path" if len(rows) == 1 else f"{len(rows)} paths"
    return f" {paths} changed, +{added} -{deleted} lines, {old} -> {new} bytes"
