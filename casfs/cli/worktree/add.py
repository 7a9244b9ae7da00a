"""`worktree add`."""

from __future__ import annotations

from pathlib import Path

import click

from casfs.cli import implicit_mount
from casfs.cli.common import open_store, options_as, store_root
from casfs.cli.output import echo_result, json_option
from casfs.cli.workspace.opening import backend_option
from casfs.cli.worktree import common
from casfs.cli.worktree.creating import Wanted, create


@click.command()
@click.argument("name", required=False)
@click.option("--from", "revision", metavar="REV", help="By default the directory now.")
@click.option("--branch", metavar="B", help="To check out, new or not. By default NAME, new.")
@click.option("--path", metavar="DIR", help="By default ../PROJECT.worktrees/NAME.")
@backend_option
@json_option
@options_as(Wanted, "wanted")
def add(wanted: Wanted) -> None:
    """Make the project's directory, as it is now, another directory: a worktree.

    It has what is not committed, ignored files such as .env, node_modules and build caches, with
    their times, so nothing is built or installed again; what is written in it is seen in it alone.
    In a git project it is a worktree of the repository, too: commits there are in it. What
    .casfsignore names is left out.

    \b
    casfs worktree add
    casfs worktree add fix --branch fix/login
    casfs worktree add again --from work@20260101
    """
    with open_store() as store, implicit_mount.kept(store_root()):
        created = create(store, Path.cwd(), wanted)
    value = common.worktree_json(created)
    on_branch = f" on branch {value['branch']}" if value["branch"] else ""
    echo_result(value, f"{created.path}{on_branch}")
