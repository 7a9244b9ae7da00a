"""The picker of `casfs rewind`: prompts and calls of a session in a terminal."""

from __future__ import annotations

from collections.abc import Iterable

import click

from casfs.cli.output import escape_line
from casfs.cli.table import date
from casfs.cli.terminal import columns, paint
from casfs.errors import NotFound
from casfs.sessions.points import PROMPT, PointRow
from casfs.sessions.session_steps import Point

PAGE = 20  # rows that are shown at once
TEXT_COLUMNS = 60


def pick(rows: Iterable[PointRow]) -> Point:
    """Shows the points, a page at a time, and returns the one that a person chooses. Raises
    NotFound for a session without any, Abort."""
    remaining = list(rows)
    if not remaining:
        raise NotFound("the session has no prompt yet")
    known = {str(row.point): row.point for row in remaining}
    newest = str(remaining[0].point)
    while True:
        for row in remaining[:PAGE]:
            click.echo(_line(row))
        remaining = remaining[PAGE:]
        older = ", or Enter for older ones" if remaining else ""
        answer = click.prompt(
            f"Rewind to before which{older}, q for none",
            default="" if remaining else newest,
            show_default=False,
        )
        if answer in known:
            return known[answer]
        if answer == "q":
            raise click.Abort
        if answer:
            click.echo(f"{escape_line(answer)} is not among them, like {newest}")


def pick_what(choices: tuple[str, ...]) -> str:
    """Asks what to rewind. Raises Abort."""
    first = choices[0]
    answer: str = click.prompt("What", type=click.Choice(choices), default=first)
    return answer


def _line(row: PointRow) -> str:
    is_prompt = row.tool == PROMPT
    what = row.text if is_prompt else f"{row.tool} {row.text}"
    outcome = f"  {row.outcome}" if row.outcome else ""
    text = escape_line(f"{what[:TEXT_COLUMNS]}{outcome}")[: max(20, columns() - 30)]
    begin = f"{row.point!s:>6}  {date(row.reported_ms)}  "
    return begin + paint(text, "cyan" if is_prompt else None, bold=is_prompt)
