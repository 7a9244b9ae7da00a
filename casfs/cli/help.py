"""`casfs help`: the help of a command."""

from __future__ import annotations

import click

from casfs.cli.output import echo
from casfs.cli.terminal import pager


@click.command("help")
@click.argument("words", nargs=-1, metavar="[COMMAND]")
@click.pass_context
def help_(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Print the help of a command.

    \b
    casfs help checkpoint create
    """
    top = ctx.find_root()
    for word in words:
        group = top.command
        if not isinstance(group, click.Group):
            raise click.UsageError(f"{top.command_path} has no commands.", ctx=top)
        name, command, _ = group.resolve_command(top, [word])
        assert command is not None
        top = click.Context(command, info_name=name, parent=top)
    with pager():
        echo(top.get_help())
