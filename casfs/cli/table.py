"""Tables: on a terminal with headers and aligned columns, elsewhere a line of fields with tabs.

A program reads the same fields in full: no header, sizes in bytes, hashes uncut. Times are
those of the local zone; JSON alone has UTC. A cell is a text (bytes: a name of a file), a number, a
`Size`, a `Moment`, an `Age`, a `Hash`, `Short` or `Coloured`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from casfs.cli import terminal
from casfs.cli.output import echo_json, wants_json, write_line
from casfs.system.clock import age, local_moment
from casfs.system.safe_text import escape
from casfs.system.sizes import readable

GAP = "  "
SHORT_HASH = 12
MIN_COLUMN = 8  # no column is cut below this


class Size(NamedTuple):
    """A number of bytes."""

    bytes: int


class Moment(NamedTuple):
    """A time, in ms since 1970 UTC; 0: unknown."""

    ms: int


class Age(NamedTuple):
    """A time, in ms since 1970 UTC, shown by how long ago it was; 0: unknown."""

    ms: int


class Hash(NamedTuple):
    """A hash, cut on a terminal: a prefix is enough for any verb."""

    hash: str


class Short(NamedTuple):
    """A text, shown by a part of it that names the same."""

    text: str
    part: str


class Coloured(NamedTuple):
    text: str
    colour: str | None


Cell = str | bytes | int | None | Size | Moment | Age | Hash | Short | Coloured


def echo_table(
    value: Any, headers: str, rows: Iterable[Sequence[Cell]], *, whole: str = ""
) -> None:
    """Prints a verb's result: `value` as JSON, or the rows under `headers`, words with blanks
    between. Columns that do not fit are cut, but not those of `whole`; where that is not
    enough, each row becomes a paragraph."""
    if wants_json():
        echo_json(value)
    elif terminal.on_terminal():
        _print(headers.split(), [list(row) for row in rows], set(whole.split()))
    else:
        for row in rows:
            write_line("\t".join(map(_plain, row)))


def date(ms: int) -> str:
    """Returns a time in the local zone, to the second."""
    return local_moment(ms).replace("T", " ")


def _plain(cell: Cell) -> str:
    match cell:
        case Size(size):
            return str(size)
        case Hash(text) | Short(text, _):
            return escape(text, one_line=True)
        case Moment(ms) | Age(ms):
            return local_moment(ms) if ms else ""
    return _shown(cell)


def _shown(cell: Cell) -> str:
    match cell:
        case None:
            text = ""
        case Size(size):
            text = readable(size)
        case Hash(hash):
            text = hash[:SHORT_HASH]
        case Moment(ms):
            text = date(ms) if ms else ""
        case Age(ms):
            text = age(ms) if ms else ""
        case Coloured(text, _) | Short(_, text):
            pass
        case bytes():
            text = os.fsdecode(cell)
        case _:
            text = str(cell)
    return escape(text, one_line=True)


def _print(headers: list[str], rows: list[list[Cell]], whole: set[str]) -> None:
    texts = [[_shown(cell) for cell in row] for row in rows]
    used = [index for index, column in enumerate(zip(*texts, strict=True)) if any(column)]
    headers = [headers[index] for index in used]  # a column without any entry is left out
    rows = [[row[index] for index in used] for row in rows]
    texts = [[line[index] for index in used] for line in texts]
    if not rows:
        return
    widths = [max(map(len, column)) for column in zip(headers, *texts, strict=True)]
    cuttable = [index for index, name in enumerate(headers) if name not in whole]
    excess = sum(widths) + len(GAP) * (len(widths) - 1) - terminal.columns()
    while excess > 0 and cuttable:
        widest = max(cuttable, key=lambda index: widths[index])
        if widths[widest] <= max(MIN_COLUMN, len(headers[widest])):
            break
        widths[widest] -= 1
        excess -= 1
    if excess > 0:
        _print_paragraphs(headers, texts)
        return
    numbers = {
        index for row in rows for index, cell in enumerate(row) if isinstance(cell, int | Size)
    }

    def fitted(text: str, index: int) -> str:
        cut = text if len(text) <= widths[index] else text[: widths[index] - 1] + "…"
        return cut.rjust(widths[index]) if index in numbers else cut.ljust(widths[index])

    write_line(
        terminal.paint(
            GAP.join(map(fitted, headers, range(len(headers)))).rstrip(), colour=None, bold=True
        )
    )
    for row, line in zip(rows, texts, strict=True):
        cells = [fitted(text, index) for index, text in enumerate(line)]
        cells[-1] = cells[-1].rstrip()
        write_line(GAP.join(map(_painted, row, cells)).rstrip())


def _painted(cell: Cell, text: str) -> str:
    return terminal.paint(text, cell.colour) if isinstance(cell, Coloured) else text


def _print_paragraphs(headers: list[str], texts: list[list[str]]) -> None:
    for line in texts:
        write_line(line[0])
        for name, text in zip(headers[1:], line[1:], strict=True):
            if text:
                write_line(f"  {name.lower()}: {text}")
