"""Trust: what came from elsewhere is shown whole before a person lets it run."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from casfs.cli.output import echo_line
from casfs.cli.terminal import pager
from casfs.errors import Refused


def ask_for_trust(name: str, lines: Sequence[str], yes: bool) -> None:
    """Prints all that something may run, through the pager on a terminal, and asks there. Raises
    Refused."""
    with pager(len(lines) > 1):
        echo_line(f"{name} may run:")
        for line in lines:
            echo_line(f"  {line}")
    is_asked = not yes and sys.stdin.isatty() and sys.stdout.isatty()
    if is_asked and not click.confirm("Let it run?", err=True):
        raise Refused(f"{name} is not trusted")
