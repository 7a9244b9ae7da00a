"""Directories as Merkle trees."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from casfs import checkpoint
from casfs.cli.common import answer, json_option, opened, say, say_json, tree_root, warn
from casfs.cli.differences import Form, diff_options, show
from casfs.cli.restoring import How, bring, report, restore_options
from casfs.nodes.directory import Entry, File, Symlink
from casfs.trees import snapshot
from casfs.trees import tree as trees

excludes_option = click.option(
    "--default-excludes/--no-default-excludes",
    "defaults",
    default=True,
    help="Leave out node_modules, .git, __pycache__ and the like (the default), or do not.",
)


@click.group()
def tree() -> None:
    """Directories as Merkle trees. A tree is named by its hash, or by a checkpoint's name."""


@tree.command()
@click.argument("directory")
@excludes_option
@json_option
@click.pass_context
def build(ctx: click.Context, directory: str, defaults: bool, as_json: bool) -> None:
    """Store the tree under DIRECTORY and print its root; no name keeps it."""
    path, report = Path(directory), snapshot.Report()
    with opened(ctx) as store, store.batch() as batch:
        ignore = checkpoint.rules(store, path, report, defaults=defaults)
        root = snapshot.build(batch, path, ignore, report)
    for warning in report.warnings:
        warn(warning)
    value = {"hash": root.hash, "files": report.files, "bytes": report.bytes}
    answer(as_json, value, root.hash)


@tree.command()
@click.argument("tree", metavar="TREE")
@click.argument("path", default="")
@json_option
@click.pass_context
def ls(ctx: click.Context, tree: str, path: str, as_json: bool) -> None:
    """List a directory of TREE: kind (f file, x executable, d, l), size, hash, name."""
    with opened(ctx) as store:
        root = tree_root(store, tree)
        found = trees.resolve(store, root, os.fsencode(path))
        if isinstance(found, File | Symlink):
            entries: list[Entry] = [found]
        else:
            entries = list(trees.load(store, found.digest.hash if found else root).values())
    if as_json:
        say_json([_json(entry) for entry in entries])
    else:
        for entry in entries:
            say(_line(entry))


@tree.command()
@click.argument("old")
@click.argument("new")
@diff_options
@click.pass_context
def diff(ctx: click.Context, old: str, new: str, form: Form) -> None:
    """Print what differs: A added, M modified, D deleted, T type, target or mode."""
    with opened(ctx) as store:
        show(store, old, new, form)


@tree.command()
@click.argument("tree", metavar="TREE")
@click.argument("directory")
@restore_options
@click.pass_context
def restore(ctx: click.Context, tree: str, directory: str, how: How) -> None:
    """Write TREE to DIRECTORY: new, empty, or restored from another tree before.

    In the last case only what differs between the two trees is written and deleted; files
    that are in neither stay.
    """
    with opened(ctx) as store:
        root = tree_root(store, tree)
        done = bring(store, root, directory, how)
    report(done, root, directory, {}, how)


def _line(entry: Entry) -> bytes:
    if isinstance(entry, Symlink):
        return b"l %10s %12s %s -> %s" % (b"-", b"-", entry.name, entry.target)
    kind = (b"x" if entry.executable else b"f") if isinstance(entry, File) else b"d"
    size = str(entry.digest.size_bytes).encode()
    return b"%s %10s %s %s" % (kind, size, entry.digest.hash[:12].encode(), entry.name)


def _json(entry: Entry) -> dict[str, Any]:
    if isinstance(entry, Symlink):
        target = os.fsdecode(entry.target)
        return {"name": os.fsdecode(entry.name), "kind": "symlink", "target": target}
    common = {"name": os.fsdecode(entry.name), "hash": entry.digest.hash}
    if isinstance(entry, File):
        size = entry.digest.size_bytes
        return {**common, "kind": "file", "size_bytes": size, "executable": entry.executable}
    return {**common, "kind": "directory"}
