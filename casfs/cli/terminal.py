"""The terminal: whether output goes to one, in colour, and through a pager."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import click

DEFAULT_PAGER = "less"
LESS = "FRX"  # as git: not for one screen, colours as they are, the screen is not cleared
COLOURS = {"auto": None, "always": True, "never": False}

F = TypeVar("F", bound=Callable[..., Any])

_paged = False  # output goes to a terminal by way of a pager


def on_terminal() -> bool:
    """Returns whether stdout is a terminal, or a pager on one."""
    return _paged or sys.stdout.isatty()


def is_asked() -> bool:
    """Can a person be asked here?"""
    return sys.stdin.isatty() and sys.stdout.isatty()


def colours() -> bool:
    """Returns whether to print colours: as --color says, else on a terminal without NO_COLOR."""
    context = click.get_current_context(silent=True)
    if context is not None and (chosen := context.find_root().color) is not None:
        return chosen
    return on_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, colour: str | None, *, bold: bool = False, dim: bool = False) -> str:
    """Returns `text` in a colour where colours are printed."""
    if not colours() or not (colour or bold or dim):
        return text
    return click.style(text, fg=colour, bold=bold or None, dim=dim or None)


def columns() -> int:
    import shutil

    return shutil.get_terminal_size().columns


def color_option(command: F) -> F:
    """Adds --color to a group or a verb; it applies to the whole command line."""

    def choose(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
        if value is not None:
            ctx.find_root().color = COLOURS[value]

    return click.option(
        "--color",
        type=click.Choice(list(COLOURS)),
        expose_value=False,
        is_eager=True,
        callback=choose,
        help="Colours: on a terminal (auto), always or never.",
    )(command)


@contextmanager
def pager(wanted: bool = True) -> Iterator[None]:
    """Sends stdout through $PAGER (default: `less -FRX`) on a terminal, as git does; nowhere else,
    and not through `cat`. Quitting the pager ends the output, which is no error."""
    global _paged
    if not wanted or not sys.stdout.isatty():
        yield
        return
    command = os.environ.get("CASFS_PAGER") or os.environ.get("PAGER") or _default_pager()
    if command in ("", "cat"):
        yield
        return
    import subprocess

    environment = {"LESS": LESS, "LV": "-c", **os.environ}
    process = subprocess.Popen(command, shell=True, stdin=subprocess.PIPE, env=environment)
    assert process.stdin is not None
    before = sys.stdout
    sys.stdout = io.TextIOWrapper(process.stdin, write_through=True)
    _paged = True
    try:
        with suppress(BrokenPipeError):
            yield
    finally:
        with suppress(BrokenPipeError):
            sys.stdout.close()
        sys.stdout = before
        _paged = False
        while True:
            with suppress(KeyboardInterrupt):  # the pager handles it
                process.wait()
                break


def _default_pager() -> str:
    import shutil

    return DEFAULT_PAGER if shutil.which(DEFAULT_PAGER) else ""
