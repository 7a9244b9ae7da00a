"""`ls`: the entries of a directory in a tree."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import click

from casfs.cli.common import json_option, open_store
from casfs.cli.output import echo_lines
from casfs.nodes.directory import Entry, File, Subdirectory, Symlink
from casfs.revisions import resolve_entry
from casfs.store import Store
from casfs.trees import tree as trees

Row = tuple[bytes, Entry]  # path, entry


@click.command()
@click.argument("tree", metavar="TREE[:PATH]")
@click.option("--recursive", "-R", is_flag=True, help="Also everything below, by its path.")
@click.option("--long", "-l", is_flag=True, help="Kind (f, x executable, d, l), size, hash, name.")
@json_option
@click.pass_context
def ls(
    ctx: click.Context,
    tree: str,
    recursive: bool = False,
    long: bool = False,
    as_json: bool = False,
) -> None:
    """List a directory, or one file, of TREE; directories end in a slash.

    \b
    casfs ls work:src
    casfs ls work~1 -R -l
    """
    with open_store(ctx) as store:
        rows = _rows(store, tree, recursive)
        value = [_json(*row) for row in rows] if as_json else None
        echo_lines(as_json, value, map(_long if long else _short, rows))


def _rows(store: Store, text: str, recursive: bool) -> Iterator[Row]:
    root, _, entry = resolve_entry(store, text)
    if isinstance(entry, File | Symlink):
        return iter([(entry.name, entry)])
    root = trees.subtree(entry) or root
    if recursive:
        return trees.walk(store, root)
    return iter(trees.load(store, root).items())


def _short(row: Row) -> bytes:
    path, entry = row
    return path + b"/" if isinstance(entry, Subdirectory) else path


def _long(row: Row) -> bytes:
    path, entry = row
    if isinstance(entry, Symlink):
        return b"l %10s %12s %s -> %s" % (b"-", b"-", path, entry.target)
    kind = (b"x" if entry.executable else b"f") if isinstance(entry, File) else b"d"
    size = str(entry.digest.size_bytes).encode()
    return b"%s %10s %s %s" % (kind, size, entry.digest.hash[:12].encode(), path)


def _json(path: bytes, entry: Entry) -> dict[str, Any]:
    names = {"name": os.fsdecode(entry.name), "path": os.fsdecode(path)}
    if isinstance(entry, Symlink):
        return {**names, "kind": "symlink", "target": os.fsdecode(entry.target)}
    common = {**names, "hash": entry.digest.hash}
    if isinstance(entry, File):
        size = entry.digest.size_bytes
        return {**common, "kind": "file", "sizeBytes": size, "executable": entry.executable}
    return {**common, "kind": "directory"}
