"""Record and restore workspaces."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

import click

from casfs.checkpoints import checkpoint as checkpoints
from casfs.checkpoints import create as recording
from casfs.checkpoints.create import Created
from casfs.cli.common import (
    answer,
    force_option,
    json_option,
    opened,
    refuse_too_much,
    say,
    say_json,
    warn,
)
from casfs.cli.diff_output import Form, diff_options, show
from casfs.cli.restore_options import How, bring, report, restore_options
from casfs.cli.terminal import Size, counter
from casfs.cli.tree import excludes_option
from casfs.errors import NotFound, Usage
from casfs.trees.snapshot.walker import Options

MAX_SIZE = 20 << 30  # bytes


@click.group()
def checkpoint() -> None:
    """Record a directory at a moment, list what was recorded, restore it.

    \b
    casfs checkpoint create work ./project -m "before the refactoring"
    casfs checkpoint restore work ./again
    """


@checkpoint.command()
@click.argument("name")
@click.argument("directory")
@click.option("-m", "--message", default="", help="A word on why.")
@excludes_option
@click.option("--preserve", default="", metavar="mtime,mode", help="Keep these of each file.")
@click.option("--max-size", type=Size(), default=MAX_SIZE, help="Refuse more than this (20G).")
@force_option
@json_option
@click.pass_context
def create(
    ctx: click.Context,
    name: str,
    directory: str,
    message: str,
    defaults: bool,
    preserve: str,
    max_size: int,
    force: bool,
    as_json: bool,
) -> None:
    """Record DIRECTORY under NAME and print the checkpoint's id.

    What has not changed since the last time is not read again. Left out are derived
    directories (node_modules, .git, …) and what .casfsignore names in gitignore's syntax.

    \b
    casfs checkpoint create work ./project -m "before the refactoring"
    """
    path = Path(directory)
    refuse_too_much(path, force)
    start = time.monotonic()
    with opened(ctx) as store, counter("files seen:") as progress:
        options = Options(_properties(preserve), max_size, progress)
        made = recording.create(store, name, path, message, defaults=defaults, options=options)
    for warning in made.report.warnings:
        warn(warning)
    value = {
        **asdict(made.checkpoint),
        "stats": made.stats,
        "read": made.report.read,
        "read_bytes": made.report.read_bytes,
        "new_bytes": made.new_bytes,
        "seconds": round(time.monotonic() - start, 3),
    }
    answer(as_json, value, _line(made, value["seconds"]))


def _line(made: Created, seconds: float) -> str:
    stats, report = made.stats, made.report
    changes = ", ".join(f"{stats[key]} {key}" for key in ("added", "modified", "deleted"))
    return (
        f"{made.checkpoint.id} {changes}; {report.files} files seen, {report.read} read,"
        f" {made.new_bytes} new bytes, {seconds:.2f} s"
    )


def _properties(text: str) -> tuple[str, ...]:
    found = tuple(part for part in text.split(",") if part)
    for part in found:
        if part not in ("mtime", "mode"):
            raise Usage(f"--preserve {part!r}: give mtime, mode, or mtime,mode")
    return found


@checkpoint.command("list")
@click.argument("name", required=False)
@json_option
@click.pass_context
def list_(ctx: click.Context, name: str | None, as_json: bool) -> None:
    """List the checkpoints of NAME, or all, oldest first.

    \b
    casfs checkpoint list work
    """
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
@click.argument("old", metavar="NAME[@ID]")
@click.argument("new", metavar="NAME[@ID]")
@diff_options
@click.pass_context
def diff(ctx: click.Context, old: str, new: str, form: Form) -> None:
    """Print what differs between two checkpoints, or trees, in the forms of `tree diff`.

    \b
    casfs checkpoint diff work@20261122 work --stat
    """
    with opened(ctx) as store:
        show(store, old, new, form)


@checkpoint.command()
@click.argument("checkpoint", metavar="NAME[@ID]")
@click.argument("directory")
@restore_options
@click.pass_context
def restore(ctx: click.Context, checkpoint: str, directory: str, how: How) -> None:
    """Write a checkpoint to DIRECTORY: new, empty, or restored before; see `tree restore`.

    \b
    casfs checkpoint restore work@20261122 ./again
    """
    with opened(ctx) as store:
        one = checkpoints.find(store, checkpoint)
        done = bring(store, one.root, directory, how)
    report(done, one.id, directory, asdict(one), how)
