"""What a person types: a line, or one key. A module of its own: few commands ask."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from collections.abc import Callable
from contextlib import suppress

import click

from casfs.cli.terminal import is_asked
from casfs.system.safe_text import escape

MAX_KEY_BYTES = 32
LOOK_S = 0.5  # between two looks whether it is still asked
END_OF_INPUT = "\x04"  # Ctrl-D


def read_line(prompt: str) -> str | None:
    """Reads a line with line editing; None at the end of input, or without a terminal."""
    if not is_asked():
        return None
    import readline  # noqa: F401  # `input` uses it

    termios.tcflush(sys.stdin, termios.TCIFLUSH)  # typed before the question: no answer to it
    with suppress(EOFError, KeyboardInterrupt):
        return input(escape(prompt, one_line=True)).strip()
    click.echo()
    return None


class AnsweredElsewhere(Exception):
    """A question was answered while the terminal asked it."""


def read_key(prompt: str, is_open: Callable[[], bool]) -> str | None:
    """Reads one key, in lower case; None at the end of input, for Ctrl-C, and without a terminal.
    Raises AnsweredElsewhere where the question is not `is_open` any more."""
    if not is_asked():
        return None
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    key = ""
    try:
        # Before the prompt: what is typed behind it counts, what was typed before does not.
        tty.setcbreak(descriptor, termios.TCSAFLUSH)
        click.echo(escape(prompt, one_line=True), nl=False)
        with suppress(KeyboardInterrupt):
            while not select.select([descriptor], [], [], LOOK_S)[0]:
                if not is_open():
                    raise AnsweredElsewhere
            # As one piece: the keys of arrows send several characters, and are none of ours.
            key = os.read(descriptor, MAX_KEY_BYTES).decode(errors="replace").lower()
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
    click.echo(key if key.isprintable() else "")
    return None if key in ("", END_OF_INPUT) else key
