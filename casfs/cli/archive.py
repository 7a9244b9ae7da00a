"""Archives: export and import."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from casfs.cli.arrived import arrived_lines
from casfs.cli.common import STDIO, open_store, read_input, with_local_option
from casfs.cli.disclosed import agree
from casfs.cli.json_values import record
from casfs.cli.output import echo, echo_json, echo_line, echo_result, json_option, wants_json, warn
from casfs.cli.progress import progress
from casfs.cli.purged_paths import warn_purged
from casfs.digest import is_hash
from casfs.errors import Invalid
from casfs.system.files import os_errors, replacing

COMPRESSED_SUFFIX = ".zst"


@click.command()
@click.argument("roots", nargs=-1, required=True, metavar="ROOT...")
@click.option("-o", "output", required=True, metavar="FILE", help="Compressed if it ends in .zst.")
@click.option("--have", metavar="FILE", help="Hashes that the receiver has, one a line.")
@click.option("--yes", is_flag=True, help="Write sessions of agents without a question.")
@with_local_option
@json_option
def export(
    roots: tuple[str, ...], output: str, have: str | None, yes: bool, with_local: bool
) -> None:
    """Write threads, checkpoints (NAME[@ID]), workflows or hashes, with all they reach.

    A session of an attached agent is written after a question that says what is in it.

    \b
    casfs export 01J9ZTHREAD work -o history.tar.zst
    """
    from casfs.maintenance import archive, names

    known = _hashes(have) if have else frozenset()
    with open_store() as store:
        # Without --with-local the hash of a private file is not found.
        hashes, heads = names.roots(store.shown(with_local=with_local), list(roots))
        agree(store, dict(heads), roots=hashes, yes=yes, verb="write")
        compress = output.endswith(COMPRESSED_SUFFIX)
        with _replace_file(output) as target, progress("exporting", "members") as update:
            done = archive.export(
                store,
                hashes,
                heads=heads,
                target=target,
                options=archive.ExportOptions(
                    have=known, compress=compress, with_local=with_local, progress=update
                ),
            )
        warn_purged(store, done.purged)
    if output != STDIO:
        line = f"{output} {done.members} members, {done.bytes} bytes"
        echo_result({"file": output, **record(done)}, line)


@click.command("import")
@click.argument("file")
@with_local_option
@json_option
def import_(file: str, with_local: bool) -> None:
    """Import an exported FILE; every digest, type and reference is checked first.

    A name of this store stays: what the archive has is `import.NAME`. What arrives runs after
    `casfs workflow trust` or `casfs thread trust`.

    \b
    casfs import history.tar.zst
    """
    from casfs.maintenance import archive

    size = 0 if file.endswith(COMPRESSED_SUFFIX) else _size(file)
    with open_store() as store, progress("importing", "members", total_bytes=2 * size) as update:
        done = archive.load(store, Path(file), update, with_local=with_local)
        lines = arrived_lines(
            store, "imported", names=done.heads, replaced=done.replaced, renamed=done.renamed
        )
    if done.kept:
        warn(f"purged where {file} is from, and kept here: {len(done.kept)} contents")
    if done.purged:
        warn(f"purged where {file} is from: {done.purged} contents; see `casfs purge --list`")
    if wants_json():
        echo_json(record(done))
        return
    echo(f"{done.members} members, {done.new_bytes} new bytes")
    for line in lines:
        echo_line(line)


def _size(file: str) -> int:
    try:
        return Path(file).stat().st_size
    except OSError:
        return 0  # reading it will tell


def _hashes(file: str) -> frozenset[str]:
    hashes = read_input(file).decode("utf-8", "replace").split()
    for hash in hashes:
        if not is_hash(hash):
            raise Invalid(f"{file}: {hash[:80]!r} is not a valid hash")
    return frozenset(hashes)


@contextmanager
def _replace_file(name: str) -> Iterator[Any]:
    """Opens a file that appears complete or not at all; `-` is stdout. Raises Failed."""
    if name == STDIO:
        yield sys.stdout.buffer
        return
    with os_errors(f"cannot write {name}"), replacing(Path(name), durable=True) as target:
        yield target
