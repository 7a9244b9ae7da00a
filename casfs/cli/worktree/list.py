"""`worktree list` and `worktree path`."""

from __future__ import annotations

import click

from casfs.cli import implicit_mount
from casfs.cli.common import open_store, store_root
from casfs.cli.output import echo_result, json_option, say_incomplete
from casfs.cli.table import echo_table
from casfs.cli.worktree import common
from casfs.errors import CasfsError
from casfs.worktrees import worktree


@click.command("list")
@click.option("--all", "of_all", is_flag=True, help="Of all projects.")
@json_option
def list_(of_all: bool) -> None:
    """List the worktrees of the project. What a reboot or a dead server has unmounted is
    mounted again, and what git has lost of it is mended.

    \b
    casfs worktree list
    casfs worktree list --all --json
    """
    with open_store() as store, implicit_mount.kept(store_root()):
        project = None if of_all else common.current_project(store)
        for listed in worktree.listing(store, project):
            try:
                common.mount(store, listed)
            except CasfsError as error:
                say_incomplete(f"worktree {listed.name}: {error}")
        values = [listed.summary for listed in worktree.listing(store, project)]
    rows = [
        (value["name"], value["branch"], value["state"], value["directory"]) for value in values
    ]
    echo_table(values, headers="NAME BRANCH STATE DIRECTORY", rows=rows, whole="NAME DIRECTORY")


@click.command()
@click.argument("name")
@json_option
def path(name: str) -> None:
    """Print the directory of a worktree.

    \b
    cd "$(casfs worktree path try)"
    """
    with open_store() as store, implicit_mount.kept(store_root()):
        named = common.find(store, name)
        common.mount(store, named)
    echo_result(named.summary, str(named.path))
