"""`worktree add`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from casfs.checkpoints.revisions import resolve
from casfs.cli import implicit_mount
from casfs.cli.common import open_store, refuse_home_or_root, store_root
from casfs.cli.output import echo_result, json_option, warn
from casfs.cli.workspace.opening import Opening, backend_option, open_best
from casfs.cli.worktree import common
from casfs.store.store import Store
from casfs.system.paths import printable
from casfs.trees.recorded_state import RecordedState
from casfs.trees.snapshot.report import SnapshotReport
from casfs.workspaces.registry import Workspace
from casfs.worktrees import worktree
from casfs.worktrees.worktree import NewWorktree

NOW = "."


@click.command()
@click.argument("name", required=False)
@click.option("--from", "origin", metavar="REV", default=NOW, help="By default the directory now.")
@click.option("--branch", metavar="B", help="To check out, new or not. By default NAME, new.")
@click.option("--path", "directory", metavar="DIR", help="By default ../PROJECT.worktrees/NAME.")
@backend_option
@json_option
def add(
    name: str | None, origin: str, branch: str | None, directory: str | None, backend: str | None
) -> None:
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
    report = SnapshotReport()
    with open_store() as store, implicit_mount.kept(store_root()):
        project = common.current_project(store)
        refuse_home_or_root(project, force=None)
        name = worktree.new_name(store, project) if name is None else name
        worktree.check_new(store, project, name)
        path = worktree.default_path(project, name) if directory is None else Path(directory)
        planned = NewWorktree(project, name, Path(os.path.abspath(path)), branch or name)
        state = _state(store, project, origin, report)

        def opened(state: RecordedState, path: Path, record: Mapping[str, Any]) -> Workspace:
            image_tree = worktree.similar_image(store, project, state)
            wanted = Opening(backend, image_tree=image_tree, worktree=record)
            return open_best(store, state, path, wanted)

        created = worktree.add(store, state, planned, os.environ, opened)
    for entry, reason in report.unreadable.items():
        warn(f"{printable(entry)} is left out: {reason}")
    value = common.worktree_json(created)
    on_branch = f" on branch {value['branch']}" if value["branch"] else ""
    echo_result(value, f"{created.path}{on_branch}")


def _state(store: Store, project: Path, origin: str, report: SnapshotReport) -> RecordedState:
    if origin == NOW:
        return worktree.look(store, project, report)
    return worktree.without_git(store, resolve(store, origin).state)
