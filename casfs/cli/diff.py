"""`diff`: the differences between two trees. `checkpoint diff` and `tree diff` are it."""

from __future__ import annotations

import click

from casfs.cli.common import json_option, open_store
from casfs.cli.diff_output import print_changes, print_patch, print_stat
from casfs.errors import Usage
from casfs.revisions import resolve_tree
from casfs.trees import tree as trees
from casfs.trees.diff import stat as diffstat
from casfs.trees.diff import unified_diff as patches


@click.command()
@click.argument("old", metavar="TREE")
@click.argument("new", metavar="TREE")
@click.option("--stat", "as_stat", is_flag=True, help="Count lines and bytes.")
@click.option("--patch", "as_patch", is_flag=True, help="Print a unified diff.")
@json_option
@click.pass_context
def diff(
    ctx: click.Context, old: str, new: str, as_stat: bool, as_patch: bool, as_json: bool
) -> None:
    """Print changed paths: A added, M modified, D deleted, T type, target or mode.

    \b
    casfs checkpoint diff work@20261122 work --stat
    casfs tree diff 47fda1ed work --patch
    """
    if as_patch and (as_stat or as_json):
        raise Usage("--patch cannot be combined with --stat or --json")
    with open_store(ctx) as store:
        roots = (resolve_tree(store, old), resolve_tree(store, new))
        if as_patch:
            print_patch(patches.patch(store, *roots))
            return
        changes = trees.visible_changes(store, trees.diff(store, *roots))
        if as_stat:
            print_stat(list(diffstat.path_stats(store, changes)), as_json)
        else:
            print_changes(changes, as_json)
