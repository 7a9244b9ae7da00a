"""`workspace open`."""

from __future__ import annotations

from pathlib import Path

import click

from casfs.checkpoints.revisions import resolve
from casfs.cli import implicit_mount
from casfs.cli.common import open_store, store_root
from casfs.cli.output import echo_result, json_option
from casfs.cli.purged_notes import print_missing
from casfs.cli.workspace.backend_option import backend_option
from casfs.cli.workspace.list import workspace_json
from casfs.cli.workspace.opening import Opening, open_best
from casfs.trees.recorded_state import RecordedState
from casfs.workspaces import lifecycle as workspaces


@click.command("open")
@click.argument("tree", metavar="TREE")
@click.argument("directory")
@click.option("--read-only", is_flag=True, help="Open without write access.")
@backend_option
@click.option("--verify", is_flag=True, help="Hash all content first (for erofs-overlay).")
@click.option("--without-local", is_flag=True, help="Leave out private and derived files.")
@json_option
def open_(
    tree: str,
    directory: str,
    read_only: bool,
    backend: str | None,
    verify: bool,
    without_local: bool,
) -> None:
    """Open TREE as DIRECTORY, which must not exist or be empty.

    The best backend that works here is used and printed. A workspace that a reboot has
    unmounted is opened again with its changes.

    \b
    casfs workspace open work ./try
    casfs workspace open work@20260101 ./look --read-only
    """
    path = Path(directory)
    with open_store() as store:
        source = resolve(store, tree)
        if read_only:
            workspaces.sweep(store)
        with implicit_mount.kept(store_root()):
            state = RecordedState.of_tree(source.state.work) if without_local else source.state
            wanted = Opening(backend, origin=source.checkpoint, read_only=read_only, verify=verify)
            workspace = open_best(store, state, path, wanted)
        origin = source.checkpoint
        print_missing(store, state.full, f"{origin.name}@{origin.id}" if origin else source.root)
    echo_result(
        workspace_json(workspace),
        f"{workspace.record['base']} {workspace.path} backend: {workspace.strategy.name}",
    )
