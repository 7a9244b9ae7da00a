"""Trust: what came from elsewhere is shown whole before a person lets it run."""

from __future__ import annotations

from collections.abc import Sequence

import click

from casfs.cli.output import echo_line
from casfs.cli.terminal import is_asked, pager
from casfs.errors import Refused
from casfs.store.store import Store


def ask_for_trust(name: str, lines: Sequence[str], yes: bool) -> None:
    """Prints all that something may run, through the pager on a terminal, and asks there. Raises
    Refused."""
    with pager(len(lines) > 1):
        echo_line(f"{name} may run:")
        for line in lines:
            echo_line(f"  {line}")
    if not yes and is_asked() and not click.confirm("Let it run?", err=True):
        raise Refused(f"{name} is not trusted")


def trust_workflow(store: Store, name: str) -> None:
    """`--yes`: lets a workflow run that came from elsewhere, and says on stderr what it may run."""
    from engine.workflow import registry

    if not registry.is_trusted(store, name):
        echo_trusted(registry.all_runs(store, name))
        registry.trust(store, name)


def echo_trusted(lines: Sequence[str]) -> None:
    for line in lines:
        click.echo(f"casfs: trusted: {line}", err=True)
