"""`diff`: the differences between two trees. `checkpoint diff` and `tree diff` are it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import click

from casfs.cli import compare
from casfs.cli.common import WithPaths, open_store
from casfs.cli.diff_output import print_changes, print_patch, print_stat
from casfs.cli.output import json_option, wants_json, warn
from casfs.cli.terminal import color_option, pager
from casfs.digest import TreeHash
from casfs.errors import Usage
from casfs.store.store import Store
from casfs.trees import recorded_state
from casfs.trees import tree as trees
from casfs.trees.diff import renames
from casfs.trees.diff import stat as diffstat
from casfs.trees.diff import unified_diff as patches
from casfs.trees.recorded_state import RecordedState
from casfs.trees.scratch_store import ScratchStore


@dataclass(frozen=True, slots=True)
class DiffFormat:
    stat: bool
    patch: bool


def format_options(verb: Callable[..., None]) -> Callable[..., None]:
    """Adds --stat, --patch and --json; the verb gets a DiffFormat."""

    @click.option("--stat", "as_stat", is_flag=True, help="Count lines and bytes.")
    @click.option("--patch", "-p", "as_patch", is_flag=True, help="Print a unified diff.")
    @color_option
    @json_option
    @wraps(verb)
    def wrapped(*values: Any, as_stat: bool, as_patch: bool, **options: Any) -> None:
        if as_patch and wants_json():
            raise Usage("--patch cannot be combined with --json")
        verb(*values, format=DiffFormat(as_stat, as_patch), **options)

    return wrapped


def print_state_diff(
    store: Store,
    old: RecordedState,
    new: RecordedState,
    format: DiffFormat,
    paths: Sequence[bytes] = (),
) -> None:
    """Prints the differences between two states as a person here sees them: their private files
    are marked, and what is in `.git` is left out."""
    scratch = store if isinstance(store, ScratchStore) else ScratchStore(store)
    before, after = (recorded_state.with_private(scratch, state) for state in (old, new))
    if not paths:
        changed = [change.path for change in trees.changes(scratch, before, after)]
        paths = [path for path in changed if b".git" not in path.split(b"/")]
        if left_out := len(changed) - len(paths):
            warn(f"{left_out} paths in .git are left out")
            after = after if paths else before  # no path at all would stand for every one
        else:
            paths = ()
    private = {*recorded_state.private_files(store, old), *recorded_state.private_files(store, new)}
    print_diff(scratch, before, new=after, format=format, paths=paths, private=private)


def print_diff(
    store: Store,
    old: TreeHash,
    new: TreeHash,
    format: DiffFormat,
    paths: Sequence[bytes] = (),
    private: Collection[bytes] = (),
) -> None:
    """Prints the differences between two trees, on a terminal in colours and by a pager; `private`:
    paths that are marked."""
    with pager(not wants_json()):
        changes = renames.detect(store, trees.changes(store, old, new=new, paths=paths))
        if format.stat:
            print_stat(store, list(diffstat.path_stats(store, changes)), private=private)
        elif not format.patch:
            print_changes(store, iter(changes), private=private)
        if format.patch:
            print_patch(patches.patch(store, old, new, paths=paths))


@click.command(cls=WithPaths)
@click.argument("sides", nargs=-1, metavar="[A] [B|DIR] [-- PATH...]")
@format_options
def diff(sides: tuple[str, ...], paths: tuple[str, ...], format: DiffFormat) -> None:
    """Print changed paths: A added, M modified, D deleted, R renamed, T type, target or mode.

    A and B are revisions or directories. One revision is compared with the working directory;
    without any, that is compared with the tree that it was restored from or recorded as.

    \b
    casfs diff
    casfs diff work~1 work --stat
    casfs diff work@{yesterday} ./project --patch -- src
    """
    if len(sides) > 2:
        raise Usage("give at most two trees; paths follow --")
    with open_store() as store:
        comparison = compare.comparison(store, sides, paths)
        print_state_diff(
            comparison.store,
            comparison.old,
            new=comparison.new,
            format=format,
            paths=comparison.paths,
        )
