"""`casfs help`: the help of a command, and all of it as a manual page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from inspect import cleandoc

import click

from casfs.cli.output import echo, write_line
from casfs.cli.terminal import pager
from casfs.version import VERSION

ROFF = str.maketrans({"\\": r"\e", "-": r"\-"})


@click.command("help")
@click.argument("words", nargs=-1, metavar="[COMMAND]")
@click.option("--man", is_flag=True, help="Print all commands as a manual page, for `man -l -`.")
@click.pass_context
def help_(ctx: click.Context, words: tuple[str, ...], man: bool) -> None:
    """Print the help of a command.

    \b
    casfs help checkpoint create
    casfs help --man | man -l -
    """
    top = ctx.find_root()
    if man:
        for line in _manual(top):
            write_line(line)
        return
    for word in words:
        group = top.command
        if not isinstance(group, click.Group):
            raise click.UsageError(f"{top.command_path} has no commands.", ctx=top)
        name, command, _ = group.resolve_command(top, [word])
        assert command is not None
        top = click.Context(command, info_name=name, parent=top)
    with pager():
        echo(top.get_help())


def _manual(top: click.Context) -> Iterator[str]:
    """Yields the lines of casfs(1)."""
    yield f'.TH CASFS 1 "" "casfs {VERSION}" "User Commands"'
    yield from (".SH NAME", r"casfs \- content\-addressed store of what agent teams produce")
    yield from (".SH SYNOPSIS", r".B casfs", r"[\fIOPTION\fR]... \fICOMMAND\fR [\fIARGUMENT\fR]...")
    yield from (".SH DESCRIPTION", *_text(top.command.help or ""))
    yield from (".SH OPTIONS", *_options(top))
    yield ".SH COMMANDS"
    yield from _commands(top)
    yield from (".SH EXIT STATUS", "0 done, 1 failed, 2 usage error, 3 not found, 4 refused,")
    yield "5 no daemon, 7 suspended, 130 interrupted."


def _commands(above: click.Context) -> Iterator[str]:
    group = above.command
    assert isinstance(group, click.Group)
    for name in group.list_commands(above):
        command = group.get_command(above, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=above)
        pieces = " ".join(command.collect_usage_pieces(inner))
        yield from (".SS " + f"{inner.command_path} {pieces}".translate(ROFF), "")
        yield from (*_text(command.help or ""), *_options(inner))
        if isinstance(command, click.Group):
            yield from _commands(inner)


def _options(ctx: click.Context) -> Iterator[str]:
    for parameter in ctx.command.get_params(ctx):
        row = parameter.get_help_record(ctx)
        if row is not None and "--help" not in parameter.opts:
            yield from (".TP", rf"\fB{row[0].translate(ROFF)}\fR", _line(row[1]))


def _text(help: str) -> Iterator[str]:
    for paragraph in cleandoc(help).split("\n\n"):
        as_it_is = paragraph.startswith("\b")
        lines = [line for line in paragraph.removeprefix("\b\n").splitlines() if line.strip()]
        yield from (".PP", ".nf") if as_it_is else (".PP",)
        yield from map(_line, lines)
        if as_it_is:
            yield ".fi"


def _line(text: str) -> str:
    return re.sub(r"^(['.])", r"\\&\1", text.translate(ROFF))
