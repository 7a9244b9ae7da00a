"""Progress on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

PROGRESS_INTERVAL_S = 0.1
PROGRESS_DELAY_S = 1.0  # nothing is shown before: most verbs have ended by then


@contextmanager
def progress_bar(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Shows a progress bar on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    with click.progressbar(length=total, label=label, file=sys.stderr) as shown:
        yield lambda done: shown.update(done - shown.pos)


@contextmanager
def progress_counter(label: str) -> Iterator[Callable[[int], None]]:
    """Shows a running count on a terminal, for work whose total is unknown."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    due = time.monotonic() + PROGRESS_DELAY_S
    shown = False

    def count(done: int) -> None:
        nonlocal due, shown
        if time.monotonic() >= due:
            due, shown = time.monotonic() + PROGRESS_INTERVAL_S, True
            click.echo(f"\r{label} {done}", nl=False, err=True)

    yield count
    if shown:
        click.echo("\r" + " " * (len(label) + 12) + "\r", nl=False, err=True)
