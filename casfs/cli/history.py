"""`blame` and `log`: which step or checkpoint wrote a line, and which changed a path."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import islice
from typing import Any

import click

from casfs.cli.common import Count, open_store
from casfs.cli.diff_output import change_json, print_patch
from casfs.cli.json_values import times
from casfs.cli.on_disk import find_place
from casfs.cli.output import echo_json, json_option, wants_json, write_line
from casfs.cli.terminal import color_option, pager, paint
from casfs.errors import NotFound, Usage
from casfs.history import blame as blames
from casfs.history import details
from casfs.history.log import log as changes
from casfs.system.clock import local_time, rfc3339
from casfs.system.paths import printable
from casfs.system.safe_text import escape
from casfs.trees.diff import unified_diff
from casfs.trees.tree import split_path

LINES = re.compile(r"([1-9]\d{0,8})(?:,([1-9]\d{0,8}))?")
ID_CHARS = 8  # of the end of an id, which name it
PROMPT_CHARS = 30
Row = dict[str, Any]


@click.command()
@click.argument("tree", metavar="REV:PATH|PATH")
@click.option("-L", "lines", metavar="A[,B]", help="Only line A, or lines A to B.")
@click.option("--deleted", metavar="TEXT", help="What removed the last line that had TEXT.")
@color_option
@json_option
def blame(tree: str, lines: str | None, deleted: str | None) -> None:
    """Print each line of a file with the step or checkpoint that wrote it.

    Lines are followed through forks, called threads, restores, renames and copies. Behind the
    agent are its model and, where the trace of the step tells, turn and tool.

    \b
    casfs blame fix:src/parser.py -L 10,20
    casfs blame 01K2@3:src/parser.py
    casfs blame work:README --deleted "old name"
    """
    span = LINES.fullmatch(lines or "1,999999999")
    if span is None or (lines and deleted is not None):
        raise Usage("-L takes A or A,B, counted from 1, and not with --deleted")
    with open_store() as store:
        position, path = find_place(store, tree)
        if deleted is not None:
            blamed_lines = [blames.removal(position, path, os.fsencode(deleted))]
        else:
            blamed_lines = blames.blame(
                position, path, first=int(span[1]), last=int(span[2] or span[1])
            )
        rows = times(list(details.lines(store, blamed_lines)))
    with pager(not wants_json()):
        if wants_json():
            echo_json(rows)
            return
        requested_path = os.fsdecode(b"/".join(split_path(path)))
        moved = any(row["path"] != requested_path for row in rows)
        width = len(str(rows[-1]["line"])) if rows else 0
        for row, head in zip(rows, heads(rows), strict=True):
            left = f"{head} {row['path'] + ' ' if moved else ''}{row['line']:>{width}})"
            text = "(binary or large)" if row["text"] is None else row["text"]
            write_line(f"{paint(escape(left, one_line=True), 'cyan')} {escape(text)}")


@click.command()
@click.argument("tree", metavar="[REV[:PATH]|PATH]", default=".")
@click.option("--patch", "-p", "as_patch", is_flag=True, help="Print a unified diff of each.")
@click.option("--limit", "-n", type=Count(1), metavar="N", help="Only the newest N.")
@color_option
@json_option
def log(tree: str, as_patch: bool, limit: int | None) -> None:
    """Print the steps and checkpoints that changed a path or anything below it, newest first; by
    default those of the directory here. A path may have been deleted.

    \b
    casfs log
    casfs log fix:src -n 5
    casfs log work:README --patch
    """
    if as_patch and wants_json():
        raise Usage("--patch cannot be combined with --json")
    with open_store() as store, pager(not wants_json()):
        position, path = find_place(store, tree)
        log_entries = list(islice(changes(position, path), limit))
        if path and not log_entries:
            version = details.version(store, position.version)["revision"]
            raise NotFound(f"no version up to {version} has {printable(path)}")
        rows = [
            {
                "version": times(details.version(store, log_entry.version)),
                **change_json(store, log_entry.change),
                "letter": log_entry.letter,
            }
            for log_entry in log_entries
        ]
        if wants_json():
            echo_json(rows)
            return
        for entry, row, head in zip(log_entries, rows, heads(rows), strict=True):
            moved = f" {row['source']} -> {row['path']}" if "source" in row else ""
            line = f"{head} {row['letter']}{moved} {entry.version.message}".rstrip()
            write_line(paint(escape(line, one_line=True), "cyan"))
            if as_patch:
                change = entry.change
                paths = [change.path] if change.source is None else [change.source, change.path]
                root = entry.version.root
                print_patch(unified_diff.patch(store, entry.before, root, paths=paths))


def heads(rows: Sequence[Row]) -> list[str]:
    """Returns the aligned columns of versions: revision, role, agent, time, prompt."""
    cells = []
    for row in rows:
        version = row["version"]
        name, _, id = version["revision"].rpartition("@")
        short = (
            f"{name}@{id[-ID_CHARS:]}" if version["step"] is None else f"{name[-ID_CHARS:]}@{id}"
        )
        turn = f"#{row['turn']}" if row.get("turn") else None
        agent = " ".join(filter(None, (version["agent"], version["model"], turn, row.get("tool"))))
        when = local_time(version["recordedAt"] or rfc3339(0))
        prompt = version["prompt"] and f'"{version["prompt"][:PROMPT_CHARS]}"'
        cells.append((short, version["role"], agent, when, prompt or ""))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        " ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True) if width)
        for row in cells
    ]
