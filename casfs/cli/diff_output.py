"""The output of `diff`: changed paths, a patch, or counts of lines and bytes."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator
from typing import Any

from casfs.cli.output import echo, echo_json, wants_json, write_line
from casfs.cli.terminal import colours, columns, on_terminal, paint
from casfs.store.nodes.directory import Entry, Subdirectory, Symlink
from casfs.store.store import Store
from casfs.system.safe_text import escape
from casfs.trees import tree as trees
from casfs.trees.diff.stat import PathStat

MAX_GRAPH_COLUMNS = 40
COLOURS = {"A": "green", "M": "yellow", "D": "red", "R": "cyan", "T": "magenta"}
PATCH_COLOURS = {"+": "green", "-": "red", "@": "cyan"}
HEADER = ("diff ", "index ", "--- ", "+++ ", "new file", "deleted file", "old mode", "new mode")
RENAME = ("similarity ", "rename ")


def print_changes(
    store: Store, changes: Iterator[trees.Change], private: Collection[bytes] = ()
) -> None:
    """`private`: paths that are marked so."""
    if wants_json():
        echo_json([change_json(store, change, private) for change in changes])
        return
    for change in changes:
        letter = paint(change.letter, COLOURS.get(change.letter))
        mark = "  (private)" if change.path in private else ""
        write_line(f"{letter} {escape(os.fsdecode(shown_path(change)), one_line=True)}{mark}")


def shown_path(change: trees.Change) -> bytes:
    """Returns the path; of a renamed file both."""
    return change.path if change.source is None else change.source + b" -> " + change.path


def print_patch(patch: bytes) -> None:
    """Prints a patch byte by byte, for `patch` or git; on a terminal escaped and in colours."""
    if colours() or on_terminal():
        for line in os.fsdecode(patch).removesuffix("\n").split("\n"):
            write_line(_painted(escape(line)))
    else:
        sys.stdout.buffer.write(patch)
        sys.stdout.buffer.flush()


def _painted(line: str) -> str:
    """Returns a line of a patch in the colours of git."""
    if line.startswith(HEADER + RENAME):
        return paint(line, colour=None, bold=True)
    return paint(line, PATCH_COLOURS.get(line[:1]))


def print_stat(store: Store, rows: list[PathStat], private: Collection[bytes] = ()) -> None:
    """Prints a line for each path and a total, in the layout of `git diff --stat`. `private`: paths
    that are marked so."""
    if wants_json():
        echo_json([change_json(store, row.change, private) | _counts(row) for row in rows])
    elif rows:
        _print_graph(rows, private)


def change_json(
    store: Store, change: trees.Change, private: Collection[bytes] = ()
) -> dict[str, Any]:
    """Returns a change as JSON: `unixMode` is on both sides where one has preserved it. `private`:
    paths that are marked so."""
    old = _entry(change.old)
    new = _entry(change.new)
    modes = trees.modes(store, change)
    if modes is not None and old and new:
        old["unixMode"], new["unixMode"] = modes
    mark = {"private": True} if change.path in private else {}
    return {**letter_json(change), "old": old, "new": new, **mark}


def letter_json(change: trees.Change) -> dict[str, Any]:
    value = {"letter": change.letter, "path": os.fsdecode(change.path)}
    return value if change.source is None else {**value, "source": os.fsdecode(change.source)}


def _entry(entry: Entry | None) -> dict[str, Any] | None:
    """Returns kind, hash, size and mode of one side."""
    if entry is None:
        return None
    value = trees.entry_json(b"", entry)
    del value["name"], value["path"]
    kept = None if isinstance(entry, Subdirectory) else entry.properties
    mode = None if kept is None else kept.unix_mode
    return value if mode is None else {**value, "unixMode": mode}


def _counts(row: PathStat) -> dict[str, Any]:
    added, deleted = row.lines or (None, None)
    return {
        "linesAdded": added,
        "linesDeleted": deleted,
        "oldBytes": row.old_bytes,
        "newBytes": row.new_bytes,
    }


def _print_graph(rows: list[PathStat], private: Collection[bytes]) -> None:
    names = max(len(shown_path(row.change)) for row in rows)
    most = max((sum(row.lines) for row in rows if row.lines), default=0)
    digits = max(len(str(most)), *(len(_count(row)) for row in rows), 3)
    room = columns() - names - digits - 30
    width = max(min(MAX_GRAPH_COLUMNS, room), 10)
    for row in rows:
        name = escape(os.fsdecode(shown_path(row.change).ljust(names)), one_line=True)
        count = _count(row)
        signs = "" if row.lines is None else " " + _signs(*row.lines, most, width)
        size = f"{row.old_bytes} -> {row.new_bytes} bytes"
        mode = " mode {:04o} -> {:04o}".format(*row.modes) if row.modes else ""
        mark = "  (private)" if row.change.path in private else ""
        write_line(f" {name} | {count:>{digits}} {size}{signs}{mode}{mark}")
    echo(_total(rows))


def _count(row: PathStat) -> str:
    """Returns the number of changed lines, or why there is none."""
    if row.lines is not None:
        return str(sum(row.lines))
    for entry in (row.change.new, row.change.old):
        if isinstance(entry, Subdirectory | Symlink):
            return "dir" if isinstance(entry, Subdirectory) else "link"
    return "Bin"


def _signs(added: int, deleted: int, most: int, width: int) -> str:
    def scaled(count: int) -> int:
        return count if most <= width else -(-count * width // most)

    return paint("+" * scaled(added), "green") + paint("-" * scaled(deleted), "red")


def _total(rows: list[PathStat]) -> str:
    added = sum(row.lines[0] for row in rows if row.lines)
    deleted = sum(row.lines[1] for row in rows if row.lines)
    old = sum(row.old_bytes for row in rows)
    new = sum(row.new_bytes for row in rows)
    paths = "1 path" if len(rows) == 1 else f"{len(rows)} paths"
    return f" {paths} changed, +{added} -{deleted} lines, {old} -> {new} bytes"
