"""Workspaces: trees as writable directories that record only changes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from casfs.checkpoints.checkpoint import Checkpoint
from casfs.cli import background, implicit_mount
from casfs.cli.common import json_option, message_option, open_store, store_root
from casfs.cli.json_values import moment, record
from casfs.cli.lazy_group import LazyGroup
from casfs.cli.output import echo_result, warn
from casfs.cli.purged_notes import print_missing
from casfs.cli.snapshot_options import notes, print_notes
from casfs.cli.table import Hash, echo_table
from casfs.errors import CasfsError, Corrupt, Refused
from casfs.revisions import resolve
from casfs.store import Store
from casfs.trees.recorded_state import RecordedState
from casfs.workspaces import lifecycle as workspaces
from casfs.workspaces import overlay_mount, registry, strategies, strategy_choice
from casfs.workspaces.commit import commit_workspace
from casfs.workspaces.registry import Workspace
from casfs.workspaces.strategies import Strategy


@click.group(cls=LazyGroup)
def workspace() -> None:
    """A tree as a writable directory that stores only its changes.

    \b
    casfs workspace open NAME ./work               a checkpoint, or any tree by its hash
    casfs workspace exec ./work -- make test       works however it was opened
    casfs workspace commit ./work -m "it builds"   a new checkpoint of NAME
    casfs workspace close ./work
    """


@workspace.command("open")
@click.argument("tree", metavar="TREE")
@click.argument("directory")
@click.option("--read-only", is_flag=True, help="Open without write access.")
@click.option(
    "--backend",
    type=click.Choice(list(strategies.STRATEGIES)),
    help="Default: the first that works. erofs-overlay: over an EROFS image (root); overlay: over"
    " the casfs mount (root); fuse-overlayfs: the same in user space; namespace: visible only"
    " inside `workspace exec`; copy: a plain copy.",
)
@click.option("--verify", is_flag=True, help="Hash all content first (for erofs-overlay).")
@click.option("--without-local", is_flag=True, help="Leave out private and derived files.")
@json_option
@click.pass_context
def open_(
    ctx: click.Context,
    tree: str,
    directory: str,
    read_only: bool,
    backend: str | None,
    verify: bool,
    without_local: bool,
    as_json: bool,
) -> None:
    """Open TREE as DIRECTORY, which must not exist or be empty.

    The best backend that works here is used and printed. A workspace that a reboot has
    unmounted is opened again with its changes.

    \b
    casfs workspace open work ./try
    casfs workspace open work@20260101 ./look --read-only
    """
    path = Path(directory)
    with open_store(ctx) as store:
        source = resolve(store, tree)
        if read_only:
            workspaces.sweep(store)
        with implicit_mount.kept(store_root(ctx)):
            state = RecordedState(source.root) if without_local else source.state
            found = _open(store, state, path, backend, source.checkpoint, read_only, verify)
        origin = source.checkpoint
        print_missing(store, state.full, f"{origin.name}@{origin.id}" if origin else source.root)
    how = "; not visible outside `casfs workspace exec`" if found.state == "namespace-only" else ""
    echo_result(
        as_json,
        _json(found),
        f"{found.record['base']} {found.path} backend: {found.strategy.name}{how}",
    )


def _open(
    store: Store,
    state: RecordedState,
    path: Path,
    backend: str | None,
    origin: Checkpoint | None,
    read_only: bool,
    verify: bool,
) -> Workspace:
    """Opens with that strategy; without one, with the first that works, best first."""
    found = strategy_choice.choose(backend, store)
    if read_only and backend is None:
        found = [one for one in found if one.layered]
    trees = implicit_mount.tree_provider(store, os.environ)
    while True:
        strategy = found.pop(0)
        try:
            return workspaces.open(
                store,
                state,
                path,
                strategy,
                trees,
                origin=origin,
                read_only=read_only,
                verify=verify,
            )
        except Refused:
            raise
        except background.StartFailed as error:  # the mount below: the others need it as well
            found = [one for one in found if not one.over_fuse]
            _warn_of_next(strategy, error, found)
        except CasfsError as error:
            if verify and isinstance(error, Corrupt):
                raise
            _warn_of_next(strategy, error, found)


def _warn_of_next(failed: Strategy, error: CasfsError, left: list[Strategy]) -> None:
    if not left:
        raise error
    warn(f"backend {failed.name} does not work here, trying {left[0].name}: {error}")


@workspace.command("exec", context_settings={"ignore_unknown_options": True})
@click.argument("directory")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def exec_(ctx: click.Context, directory: str, command: tuple[str, ...]) -> None:
    """Run a command in the workspace DIRECTORY; exits with its exit code.

    \b
    casfs workspace exec ./work -- sh -c 'make && make test'
    """
    with open_store(ctx) as store:
        found = registry.find(store, Path(directory))
        inside = found.strategy.layered and found.strategy.mount is None
        layers = found.layers(implicit_mount.tree_provider(store, os.environ)) if inside else None
        registry.check_open(found)
    if layers is not None:
        registry.lock(found)  # held by the command, for as long as it runs
        overlay_mount.enter_namespace(layers)
    os.chdir(found.path)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise CasfsError(f"cannot run {command[0]}: {error.strerror}") from None


@workspace.command()
@click.argument("directory")
@message_option
@json_option
@click.pass_context
def commit(ctx: click.Context, directory: str, message: str, as_json: bool) -> None:
    """Record the content of the workspace DIRECTORY and print its root hash.

    A workspace opened from a checkpoint's NAME gets a new checkpoint of that name, unless
    nothing has changed. What .casfsignore names is left out, unless it was recorded before.

    \b
    casfs workspace commit ./work -m "the tests pass"
    """
    with open_store(ctx) as store:
        made = commit_workspace(store, registry.find(store, Path(directory)), message)
    one = made.checkpoint
    value = {"root": made.root, "checkpoint": record(one) if one else None, **notes(made.report)}
    echo_result(as_json, value, f"{made.root} {one.name}@{one.id}" if one else made.root)
    print_notes(made.report, as_json)


@workspace.command()
@click.argument("directory")
@json_option
@click.pass_context
def discard(ctx: click.Context, directory: str, as_json: bool) -> None:
    """Discard the changes in DIRECTORY since the last commit; it stays open.

    \b
    casfs workspace discard ./work
    """
    with open_store(ctx) as store:
        found = registry.find(store, Path(directory))
        found = workspaces.discard(store, found, implicit_mount.tree_provider(store, os.environ))
    echo_result(as_json, _json(found), f"{found.root} {found.path}")


@workspace.command()
@click.argument("directory")
@click.option("--force", is_flag=True, help="Discard uncommitted changes; also a damaged record.")
@json_option
@click.pass_context
def close(ctx: click.Context, directory: str, force: bool, as_json: bool) -> None:
    """Close the workspace DIRECTORY; refused while it has uncommitted changes.

    \b
    casfs workspace close ./work
    casfs workspace close ./work --force
    """
    path, root, over = registry.absolute(Path(directory)), None, True
    with open_store(ctx) as store:
        if not (force and workspaces.remove_broken(store, path)):
            found = registry.find(store, path)
            root, over = found.root, workspaces.close(store, found, force=force)
        implicit_mount.end_unused(store, os.environ)
    rest = "" if over else "; still used by a container, so the tree is kept"
    value = {"closed": str(path), "root": root, "over": over}
    echo_result(as_json, value, f"{path} closed{rest}")


@workspace.command("list")
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
    echo_table(as_json, list(map(_json, found)), headers, rows, whole="TREE DIRECTORY")


def _json(found: Workspace) -> dict[str, Any]:
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
