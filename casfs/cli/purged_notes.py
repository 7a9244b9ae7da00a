"""Says on stderr what a tree lacks, since it was purged."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import click

from casfs.cli.output import escape_line
from casfs.digest import TreeHash
from casfs.store.store import Store
from casfs.store.tombstones import Tombstone
from casfs.system.clock import rfc3339
from casfs.system.paths import printable
from casfs.trees import tree

MAX_LINES = 20


def print_missing(store: Store, root: TreeHash, name: str) -> None:
    """Prints a line for each file of a tree that was purged. `name`: of its checkpoint or tree."""
    for line in islice(lines(store, root, name), MAX_LINES):
        click.echo(f"casfs: {escape_line(line)}", err=True)


def lines(store: Store, root: TreeHash, name: str) -> Iterator[str]:
    missing = tree.missing(store, root)
    for path, tombstone in islice(missing, MAX_LINES - 1):
        yield f"{name}:{printable(path)}: {_fate(tombstone)}"
    remaining = sum(1 for _ in missing)
    if remaining:
        yield f"{name}: {remaining} more files were purged; see `casfs purge --list`"


def _fate(tombstone: Tombstone) -> str:
    why = f" ({tombstone.why})" if tombstone.why else ""
    day = rfc3339(tombstone.purged_at)[:10]
    fate = "left out" if tombstone.substitute is None else "the rest of its text is there"
    return f"purged {day}{why}; {fate}"
