"""Record and restore workspaces."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from casfs import checkpoint as checkpoints
from casfs.cli.common import answer, json_option, opened, say, say_json, warn
from casfs.cli.tree import excludes_option
from casfs.errors import NotFound


@click.group()
def checkpoint() -> None:
    """Record a directory at a moment, list what was recorded, restore it."""


@checkpoint.command()
@click.argument("name")
@click.argument("directory")
@click.option("-m", "--message", default="", help="A word on why.")
@excludes_option
@json_option
@click.pass_context
def create(
    ctx: click.Context, name: str, directory: str, message: str, defaults: bool, as_json: bool
) -> None:
    """Record DIRECTORY under NAME and print the checkpoint's id.

    \b
    casfs checkpoint create work ./project -m "before the refactoring"
    """
    with opened(ctx) as store:
        made = checkpoints.create(store, name, Path(directory), message, defaults=defaults)
    for warning in made.report.warnings:
        warn(warning)
    stats, one = made.stats, made.checkpoint
    changes = ", ".join(f"{stats[key]} {key}" for key in ("added", "modified", "deleted"))
    line = f"{one.id} {stats['files']} files, {stats['bytes']} bytes: {changes}"
    value = {**asdict(one), "stats": stats, "new_bytes": made.new_bytes}
    answer(as_json, value, f"{line}; {made.new_bytes} new bytes")


@checkpoint.command("list")
@click.argument("name", required=False)
@json_option
@click.pass_context
def list_(ctx: click.Context, name: str | None, as_json: bool) -> None:
    """List the checkpoints of NAME, or all, oldest first."""
    with opened(ctx) as store:
        found = checkpoints.listing(store, name)
    if name is not None and not found:
        raise NotFound(f"no checkpoint {name!r}; see `casfs checkpoint list`")
    if as_json:
        say_json([asdict(one) for one in found])
    else:
        for one in found:
            say(f"{one.name}@{one.id} {one.root[:12]} {one.message}".rstrip())


@checkpoint.command()
@click.argument("checkpoint", metavar="NAME[@ID]")
@click.argument("directory")
@json_option
@click.pass_context
def restore(ctx: click.Context, checkpoint: str, directory: str, as_json: bool) -> None:
    """Write a checkpoint to DIRECTORY, which must not exist or be empty."""
    with opened(ctx) as store:
        one = checkpoints.restore_to(store, checkpoint, Path(directory))
    value = {**asdict(one), "directory": directory}
    answer(as_json, value, f"{one.id} restored to {directory}")
