"""`ls`: the entries of a directory in a tree."""

from __future__ import annotations

import click

from casfs.checkpoints.revisions import entries
from casfs.cli.common import open_store, with_local_option
from casfs.cli.output import echo_lines, json_option, wants_json
from casfs.store.nodes.directory import Entry, File, Subdirectory, Symlink
from casfs.trees.tree import entry_json

Row = tuple[bytes, Entry]  # path, entry


@click.command()
@click.argument("tree", metavar="TREE[:PATH]")
@click.option("--recursive", "-R", is_flag=True, help="Also everything below, by its path.")
@click.option("--long", "-l", is_flag=True, help="Kind (f, x executable, d, l), size, hash, name.")
@with_local_option
@json_option
def ls(tree: str, recursive: bool = False, long: bool = False, with_local: bool = False) -> None:
    """List a directory, or one file, of TREE; directories end in a slash.

    \b
    casfs ls work:src
    casfs ls work~1 -R -l
    """
    with open_store(with_local) as store:
        rows = entries(store, tree, recursive=recursive, with_local=with_local)
        value = [entry_json(*row) for row in rows] if wants_json() else None
        echo_lines(value, map(_long if long else _short, rows))


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
