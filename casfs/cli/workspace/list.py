"""`workspace list`."""

from __future__ import annotations

from typing import Any

import click

from casfs.cli.common import json_option, open_store
from casfs.cli.json_values import moment
from casfs.cli.table import Hash, echo_table
from casfs.workspaces import registry
from casfs.workspaces.registry import Workspace


@click.command("list")
@json_option
@click.pass_context
def list_(ctx: click.Context, as_json: bool) -> None:
    """List the open workspaces: root, backend, state, directory.

    \b
    casfs workspace list --json
    """
    with open_store(ctx) as store:
        found = registry.listing(store)
    rows = [
        (Hash(one.root), one.strategy.name, one.state, str(one.path), one.record["name"])
        for one in found
    ]
    headers = "TREE BACKEND STATE DIRECTORY NAME"
    echo_table(
        as_json,
        list(map(workspace_json, found)),
        headers=headers,
        rows=rows,
        whole="TREE DIRECTORY",
    )


def workspace_json(found: Workspace) -> dict[str, Any]:
    return {
        "directory": str(found.path),
        "root": found.root,
        "state": found.state,
        "readOnly": found.record["readOnly"],
        "backend": found.strategy.name,
        "base": found.record["base"],
        "name": found.record["name"],
        "openedAt": moment(found.record["openedAt"]),
    }
