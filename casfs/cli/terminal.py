"""Sizes on the command line, and progress on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
EVERY = 0.1  # seconds between two counts
SILENT = 1.0  # seconds before anything is shown: most verbs are over by then


class Size(click.ParamType[int]):
    """A number of bytes, or with K, M, G, T of KiB and so on."""

    name = "size"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        if isinstance(value, int):
            return value
        number, unit = value.rstrip("KMGT"), value[len(value.rstrip("KMGT")) :]
        if not (number.isascii() and number.isdigit()) or unit not in UNITS:
            self.fail(f"invalid size {value!r}: give bytes, or a number with K, M, G or T")
        return int(number) * UNITS[unit]


@contextmanager
def bar(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    with click.progressbar(length=total, label=label, file=sys.stderr) as shown:
        yield lambda done: shown.update(done - shown.pos)


@contextmanager
def counter(label: str) -> Iterator[Callable[[int], None]]:
    """A running count on a terminal, where the total is not known beforehand."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    due = time.monotonic() + SILENT
    shown = False

    def count(done: int) -> None:
        nonlocal due, shown
        if time.monotonic() >= due:
            due, shown = time.monotonic() + EVERY, True
            click.echo(f"\r{label} {done}", nl=False, err=True)

    yield count
    if shown:
        click.echo("\r" + " " * (len(label) + 12) + "\r", nl=False, err=True)
