"""`worktree add`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from casfs.cli.common import store_root
from casfs.cli.output import echo_result, json_option
from casfs.cli.workspace.backend_option import backend_option
from casfs.cli.worktree import by_daemon


@click.command()
@click.argument("name", required=False)
@click.option("--from", "revision", metavar="REV", help="By default the directory now.")
@click.option("--branch", metavar="B", help="To check out, new or not. By default NAME, new.")
@click.option("--path", metavar="DIR", help="By default ../PROJECT.worktrees/NAME.")
@click.option("--all", "with_all", is_flag=True, help="Also what .worktreeinclude does not name.")
@click.option(
    "--relocate/--no-relocate",
    default=None,
    help="Have a .venv or CMake's build lead to itself; a .venv that imports the project does.",
)
@backend_option
@json_option
def add(backend: str | None, path: str | None, **wanted: Any) -> None:
    """Make the project's directory, as it is now, another directory: a worktree.

    It has what is not committed, ignored files such as .env, node_modules and build caches, with
    their times, so nothing is built or installed again; what is written in it is seen in it alone.
    In a git project it is a worktree of the repository, too: commits there are in it. What
    .casfsignore names is left out; of the ignored files what a .worktreeinclude does not name.

    \b
    casfs worktree add
    casfs worktree add fix --branch fix/login
    casfs worktree add again --from work@20260101
    """
    wanted["path"] = None if path is None else os.path.abspath(path)
    summary = by_daemon.create(store_root(), Path.cwd(), **wanted) if backend is None else None
    if summary is None:
        summary = _create(backend, wanted)
    on_branch = f" on branch {summary['branch']}" if summary["branch"] else ""
    echo_result(summary, f"{summary['directory']}{on_branch}")


def _create(backend: str | None, wanted: dict[str, Any]) -> dict[str, Any]:
    # What the daemon does need not be imported.
    from casfs.cli import implicit_mount
    from casfs.cli.common import open_store
    from casfs.cli.worktree.creating import create
    from casfs.worktrees.creation import Wanted

    with open_store() as store, implicit_mount.kept(store_root()):
        return create(store, Path.cwd(), Wanted(**wanted), backend).summary
