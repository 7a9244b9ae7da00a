"""Trees of a name and version."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

import click

from casfs.cli.common import answer, json_option, opened, say, say_json, warn
from casfs.plugins import registry


@click.group()
def plugin() -> None:
    """Trees of a name and version, stored once; in a mount at trees/plugins/NAME/VERSION.

    \b
    casfs plugin sync linter 1.0 https://example.org/linter.git
    """


@plugin.command()
@click.argument("name")
@click.argument("version")
@click.argument("source")
@click.option("--refresh", is_flag=True, help="Take what the source has now.")
@json_option
@click.pass_context
def sync(
    ctx: click.Context, name: str, version: str, source: str, refresh: bool, as_json: bool
) -> None:
    """Store VERSION of NAME from SOURCE and print its root; what is stored already stays.

    SOURCE is a directory, a git URL (VERSION is the tag, branch or commit) or a tarball. A tag
    or branch that moved since is reported. .git and submodules are left out.

    \b
    casfs plugin sync linter v1.2.0 https://example.org/linter.git
    """
    from casfs.plugins import transfer

    with opened(ctx) as store:
        done = transfer.sync(store, name, version, source, os.environ, refresh=refresh)
    if done.warning:
        warn(f"{name} {version}: {done.warning}")
    one = done.plugin
    what = f"{'stored' if done.stored else 'is already here,'} from {one.source}"
    commit = f" ({one.commit[:12]})" if one.commit else ""
    value = {**asdict(one), "stored": done.stored, "warning": done.warning or None}
    answer(as_json, value, f"{one.root} {name} {version} {what}{commit}")


@plugin.command()
@click.argument("name")
@click.argument("version")
@click.argument("directory")
@json_option
@click.pass_context
def materialize(ctx: click.Context, name: str, version: str, directory: str, as_json: bool) -> None:
    """Write a plugin to DIRECTORY: a new or empty one, or one that got a plugin this way.

    \b
    casfs plugin materialize linter 1.0 ./lint
    """
    from casfs.plugins import transfer

    with opened(ctx) as store:
        found = transfer.materialize(store, name, version, Path(directory))
    value = {**asdict(found), "directory": directory}
    answer(as_json, value, f"{found.root} {name} {version} written to {directory}")


@plugin.command("list")
@json_option
@click.pass_context
def list_(ctx: click.Context, as_json: bool) -> None:
    """List every plugin: name, version, tree, where it is from.

    \b
    casfs plugin list
    """
    with opened(ctx) as store:
        found = registry.listing(store)
    if as_json:
        say_json([asdict(one) for one in found])
    else:
        for one in found:
            say(f"{one.name} {one.version} {one.root[:12]} {one.source}")
