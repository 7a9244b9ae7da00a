"""Directories as Merkle trees."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from casfs.cli.common import force_option, json_option, open_store, refuse_home_or_root
from casfs.cli.diff import diff
from casfs.cli.output import echo_lines, echo_result, warn
from casfs.cli.restore import restore
from casfs.nodes.directory import Entry, File, Symlink
from casfs.revisions import resolve_tree
from casfs.trees import tree as trees
from casfs.trees.snapshot import exclusions, walker
from casfs.trees.snapshot.report import SnapshotReport

excludes_option = click.option(
    "--default-excludes/--no-default-excludes",
    "defaults",
    default=True,
    help="Exclude node_modules, .git, __pycache__ and the like (the default), or not.",
)


@click.group()
def tree() -> None:
    """Directories as Merkle trees. A tree is named by its hash or by a checkpoint's name.

    \b
    casfs tree build ./project
    casfs tree diff work@20261122 work --stat
    """


@tree.command()
@click.argument("directory")
@excludes_option
@force_option
@json_option
@click.pass_context
def build(ctx: click.Context, directory: str, defaults: bool, force: bool, as_json: bool) -> None:
    """Store the tree under DIRECTORY and print its root hash; no ref keeps it.

    \b
    casfs tree build ./project
    """
    path, report = Path(directory), SnapshotReport()
    refuse_home_or_root(path, force)
    with open_store(ctx) as store, store.batch() as batch:
        ignore = exclusions.ignore_rules(store, path, report, defaults=defaults)
        root = walker.snapshot(batch, path, ignore, report)
    for warning in report.warnings:
        warn(warning)
    value = {"hash": root.hash, "files": report.files, "bytes": report.bytes}
    echo_result(as_json, value, root.hash)


@tree.command()
@click.argument("tree", metavar="TREE")
@click.argument("path", default="")
@json_option
@click.pass_context
def ls(ctx: click.Context, tree: str, path: str, as_json: bool) -> None:
    """List a directory of TREE: kind (f file, x executable, d, l), size, hash, name.

    \b
    casfs tree ls work src
    """
    with open_store(ctx) as store:
        root = resolve_tree(store, tree)
        found = trees.resolve(store, root, os.fsencode(path))
        if isinstance(found, File | Symlink):
            entries: list[Entry] = [found]
        else:
            entries = list(trees.load(store, found.digest.hash if found else root).values())
    echo_lines(as_json, [_json(entry) for entry in entries], map(_line, entries))


tree.add_command(diff)
tree.add_command(restore)


@tree.command()
@click.argument("tree", metavar="TREE")
@click.argument("directory")
@json_option
@click.pass_context
def mount(ctx: click.Context, tree: str, directory: str, as_json: bool) -> None:
    """Mount TREE natively at DIRECTORY, read-only: no casfs process serves it.

    `workspace open --read-only --backend erofs-overlay`: requires root, and keeps the tree until
    `tree umount`, or until gc finds that a reboot has ended it.

    \b
    casfs tree mount work ./look
    casfs tree mount work@20261122 ./before
    """
    from casfs.cli.workspace import open_

    ctx.invoke(
        open_,
        tree=tree,
        directory=directory,
        read_only=True,
        backend="erofs-overlay",
        as_json=as_json,
    )


@tree.command()
@click.argument("directory")
@json_option
@click.pass_context
def umount(ctx: click.Context, directory: str, as_json: bool) -> None:
    """End the tree mount at DIRECTORY: `workspace close`.

    A container that uses it goes on with it; the tree is kept until the container ends.

    \b
    casfs tree umount ./look
    """
    from casfs.cli.workspace import close

    ctx.invoke(close, directory=directory, force=False, as_json=as_json)


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
        return {**common, "kind": "file", "sizeBytes": size, "executable": entry.executable}
    return {**common, "kind": "directory"}
