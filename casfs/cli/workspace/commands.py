"""Workspaces: trees as writable directories that record only changes."""

from __future__ import annotations

import click

from casfs.cli.lazy_group import LazyGroup

MODULES = {
    "open": "workspace.open:open_",
    "commit": "workspace.commit:commit",
    "discard": "workspace.commit:discard",
    "close": "workspace.commit:close",
    "list": "workspace.list:list_",
}


@click.group(cls=LazyGroup, modules=MODULES)
def workspace() -> None:
    """A tree as a writable directory that stores only its changes.

    \b
    casfs workspace open NAME ./work               a checkpoint, or any tree by its hash
    casfs workspace commit ./work -m "it builds"   a new checkpoint of NAME
    casfs workspace close ./work
    """
