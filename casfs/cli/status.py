"""The state of a store: its processes (status) and its content in figures (stats)."""

from __future__ import annotations

from typing import Any

import click

from casfs.backend.derived import count_by_type, total_stored
from casfs.cli.common import json_option, open_store
from casfs.cli.json_values import record
from casfs.cli.output import echo, echo_json
from casfs.store import Store


@click.command()
@click.argument("directory", required=False)
@click.option("--against", metavar="TREE", help="Compare DIRECTORY with this tree.")
@json_option
@click.pass_context
def status(ctx: click.Context, directory: str | None, against: str | None, as_json: bool) -> None:
    """Print what has changed in DIRECTORY since it was restored or recorded; without it, where the
    store is, whether its daemon runs, and where it is mounted.

    \b
    casfs status .
    casfs status ./project --against work~1
    """
    if directory is not None or against is not None:
        _directory_status(ctx, directory or ".", against, as_json)
    else:
        _store_status(ctx, as_json)


def _directory_status(
    ctx: click.Context, directory: str, against: str | None, as_json: bool
) -> None:
    from casfs.cli import compare
    from casfs.cli.diff_output import change_json, print_changes
    from casfs.trees import tree

    with open_store(ctx) as store:
        found = compare.against(store, directory, against)
        name = compare.name_of(store, found.old)
        changes = list(tree.changes(store, found.old, found.new, found.paths))
    if as_json:
        values = [change_json(change) for change in changes]
        echo_json(
            {"directory": str(found.directory), "tree": found.old, "name": name, "changes": values}
        )
        return
    echo(f"{found.directory} compared with {name or found.old}")
    print_changes(iter(changes), as_json)
    if not changes:
        echo("no changes")


def _store_status(ctx: click.Context, as_json: bool) -> None:
    from casfs import daemon_socket
    from casfs.mount import mount_points, registry

    with open_store(ctx) as store:
        assert store.root is not None
        daemon = daemon_socket.find(store.root)
        points = [str(point) for point in mount_points.mounted(store.root)]
        serving = {str(one.mount): one for one in registry.listing(store.root)}
        value = {
            "store": str(store.root),
            "daemon": daemon,
            "mounts": points,
            "serving": [record(one) for one in serving.values()],
        }
    if as_json:
        echo_json(value)
        return
    echo(f"store   {value['store']}")
    echo(f"daemon  pid {daemon['pid']}, {daemon['socket']}" if daemon else "daemon  none")
    for point in points:
        echo(f"mount   {point}")
        if point in serving:
            echo(f"        {serving[point]}")


@click.command()
@json_option
@click.pass_context
def stats(ctx: click.Context, as_json: bool) -> None:
    """Print how much is stored, by type, and the space that it takes.

    \b
    casfs stats --json
    """
    with open_store(ctx) as store:
        value = _stats(store)
    if as_json:
        echo_json(value)
        return
    for name in ("blobs", "bytes", "files", "heads", "databaseBytes"):
        echo(f"{name:16} {value[name]}")
    for name, count in value["types"].items():
        echo(f"  {name:14} {count}")


def _stats(store: Store) -> dict[str, Any]:
    assert store.root is not None
    by_type: dict[str, int] = {}
    for hash, count in count_by_type(store.blobs).items():
        name = store.registry.name(hash)
        by_type[name] = by_type.get(name, 0) + count
    return {
        **record(total_stored(store.blobs)),
        "heads": sum(1 for _ in store.heads.list()),
        "databaseBytes": (store.root / "store.db").stat().st_size,
        "types": dict(sorted(by_type.items())),
    }
