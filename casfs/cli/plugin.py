"""Plugins: dependency trees of a name and version."""

from __future__ import annotations

import os
from pathlib import Path

import click

from casfs.cli.common import open_store
from casfs.cli.json_values import record
from casfs.cli.lazy_group import LazyGroup
from casfs.cli.output import echo_result, json_option, warn
from casfs.cli.progress import progress
from casfs.cli.removal import remove_heads
from casfs.cli.table import Hash, Moment, echo_table
from casfs.plugins import registry


@click.group(cls=LazyGroup)
def plugin() -> None:
    """Dependency trees of a name and version, stored once; mounted at
    trees/plugins/NAME/VERSION.

    \b
    casfs plugin sync linter 1.0 https://example.org/linter.git
    """


@plugin.command()
@click.argument("name")
@click.argument("version")
@click.argument("source")
@click.option("--refresh", is_flag=True, help="Update to the current upstream.")
@json_option
def sync(name: str, version: str, source: str, refresh: bool) -> None:
    """Store VERSION of NAME from SOURCE and print its root hash; a stored version is kept.

    SOURCE is a directory, a git URL (VERSION is the tag, branch or commit) or a tarball. A tag
    or branch that has moved upstream is reported. .git and submodules are excluded.

    \b
    casfs plugin sync linter v1.2.0 https://example.org/linter.git
    """
    from casfs.plugins import transfer

    with open_store() as store, progress("storing", "files") as update:
        done = transfer.sync(
            store,
            name,
            version=version,
            source=source,
            env=os.environ,
            refresh=refresh,
            progress=update,
        )
    if done.warning:
        warn(f"{name} {version}: {done.warning}")
    plugin = done.plugin
    what = f"{'stored' if done.stored else 'already stored,'} from {plugin.source}"
    commit = f" ({plugin.commit[:12]})" if plugin.commit else ""
    value = {**record(plugin), "stored": done.stored, "warning": done.warning or None}
    echo_result(value, f"{plugin.root} {name} {version} {what}{commit}")


@plugin.command()
@click.argument("name")
@click.argument("version")
@click.argument("directory")
@json_option
def materialize(name: str, version: str, directory: str) -> None:
    """Restore a plugin to DIRECTORY: new, empty, or restored to before.

    \b
    casfs plugin materialize linter 1.0 ./lint
    """
    from casfs.plugins import transfer

    with open_store() as store:
        plugin = transfer.materialize(store, name, version=version, target=Path(directory))
    value = {**record(plugin), "directory": directory}
    echo_result(value, f"{plugin.root} {name} {version} written to {directory}")


@plugin.command("list")
@json_option
def list_() -> None:
    """List the plugins: name, version, tree, time of the last sync, source.

    \b
    casfs plugin list
    """
    with open_store() as store:
        plugins = registry.listing(store)
    rows = [
        (plugin.name, plugin.version, Hash(plugin.root), Moment(plugin.synced_at), plugin.source)
        for plugin in plugins
    ]
    echo_table(
        list(map(record, plugins)),
        headers="NAME VERSION TREE SYNCED SOURCE",
        rows=rows,
        whole="TREE",
    )


@plugin.command()
@click.argument("name")
@click.argument("version")
@json_option
def rm(name: str, version: str) -> None:
    """Remove VERSION of a plugin; `casfs undo --store` restores it until gc deletes it.

    \b
    casfs plugin rm linter 1.0
    """
    with open_store() as store:
        registry.find(store, name, version)
        key = registry.head_name(name, version)
        head = store.heads.get(key)
        if head is not None:
            remove_heads(store, [(key, head)])
