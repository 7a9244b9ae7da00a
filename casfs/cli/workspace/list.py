"""`workspace list`."""

from __future__ import annotations

from typing import Any

import click

from casfs.cli.common import open_store
from casfs.cli.json_values import moment
from casfs.cli.output import json_option
from casfs.cli.table import Hash, echo_table
from casfs.workspaces import registry
from casfs.workspaces.registry import Workspace


@click.command("list")
@json_option
def list_() -> None:
    """List the open workspaces: root, backend, state, directory.

    \b
    casfs workspace list --json
    """
    with open_store() as store:
        workspaces = registry.listing(store)
    rows = [
        (
            Hash(workspace.root),
            workspace.strategy.name,
            workspace.state,
            str(workspace.path),
            workspace.record["name"],
        )
        for workspace in workspaces
    ]
    headers = "TREE BACKEND STATE DIRECTORY NAME"
    echo_table(
        list(map(workspace_json, workspaces)), headers=headers, rows=rows, whole="TREE DIRECTORY"
    )


def workspace_json(workspace: Workspace) -> dict[str, Any]:
    return {
        "directory": str(workspace.path),
        "root": workspace.root,
        "state": workspace.state,
        "readOnly": workspace.record["readOnly"],
        "backend": workspace.strategy.name,
        "base": workspace.record["base"],
        "name": workspace.record["name"],
        "openedAt": moment(workspace.record["openedAt"]),
    }
