"""`workspace commit`, `discard` and `close`: the end of changes."""

from __future__ import annotations

import os
from pathlib import Path

import click

from casfs.cli import implicit_mount
from casfs.cli.common import message_option, open_store, step_secrets
from casfs.cli.json_values import record
from casfs.cli.output import echo_result, json_option
from casfs.cli.snapshot_options import notes, print_notes
from casfs.cli.workspace.list import workspace_json
from casfs.errors import Refused
from casfs.store.store import Store
from casfs.workspaces import lifecycle as workspaces
from casfs.workspaces import registry
from casfs.workspaces.commit import commit_workspace
from casfs.workspaces.registry import Workspace


@click.command()
@click.argument("directory")
@message_option
@json_option
def commit(directory: str, message: str) -> None:
    """Record the content of the workspace DIRECTORY and print its root hash.

    A workspace opened from a checkpoint's NAME gets a new checkpoint of that name, unless
    nothing has changed. What .casfsignore names is left out, unless it was recorded before.

    \b
    casfs workspace commit ./work -m "the tests pass"
    """
    with open_store() as store:
        about = step_secrets().redact(message)
        committed = commit_workspace(store, _find(store, Path(directory)), about)
    checkpoint = committed.checkpoint
    value = {
        "root": committed.root,
        "checkpoint": record(checkpoint) if checkpoint else None,
        **notes(committed.report),
    }
    echo_result(
        value,
        f"{committed.root} {checkpoint.name}@{checkpoint.id}" if checkpoint else committed.root,
    )
    print_notes(committed.report)


@click.command()
@click.argument("directory")
@json_option
def discard(directory: str) -> None:
    """Discard the changes in DIRECTORY since the last commit; it stays open.

    \b
    casfs workspace discard ./work
    """
    with open_store() as store:
        workspace = _find(store, Path(directory))
        workspace = workspaces.discard(
            store, workspace, implicit_mount.tree_provider(store, os.environ)
        )
    echo_result(workspace_json(workspace), f"{workspace.root} {workspace.path}")


@click.command()
@click.argument("directory")
@click.option("--force", is_flag=True, help="Discard uncommitted changes; also a damaged record.")
@json_option
def close(directory: str, force: bool) -> None:
    """Close the workspace DIRECTORY; refused while it has uncommitted changes.

    \b
    casfs workspace close ./work
    casfs workspace close ./work --force
    """
    path = registry.absolute(Path(directory))
    root = None
    over = True
    with open_store() as store:
        if not (force and workspaces.remove_broken(store, path)):
            workspace = _find(store, path)
            root = workspace.root
            over = workspaces.close(store, workspace, force=force)
        implicit_mount.end_unused(store, os.environ)
    suffix = "" if over else "; still used by a container, so the tree is kept"
    value = {"closed": str(path), "root": root, "over": over}
    echo_result(value, f"{path} closed{suffix}")


def _find(store: Store, directory: Path) -> Workspace:
    """Raises NotFound; Refused for a worktree, of which casfs knows what was applied."""
    workspace = registry.find(store, directory)
    if registry.WORKTREE in workspace.record:
        raise Refused(f"{workspace.path} is a worktree; see `casfs worktree apply` and `rm`")
    return workspace
