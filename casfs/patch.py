"""Unified diffs between two trees, for people and models to read.

Text files only: what has a NUL byte, is not UTF-8 or is larger than MAX_FILE is named as
differing, without its lines. The output is bounded; what does not fit is counted.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from . import tree
from .directory import Entry, File, Symlink
from .store import Store

MAX_FILE = 1 << 18  # bytes; the line matching is quadratic at worst
MAX_PATCH = 1 << 20
LINE = re.compile(rb"[^\n]*\n|[^\n]+")


def patch(store: Store, old: str | None, new: str | None, limit: int = MAX_PATCH) -> bytes:
    """The unified diff from tree `old` to tree `new`, at most `limit` bytes; empty if equal."""
    parts: list[bytes] = []
    left = limit - 100  # the last line has its place
    dropped = 0
    for change in tree.shown(store, tree.diff(store, old, new)):
        part = b"".join(_lines(store, change))
        if dropped or len(part) > left:
            dropped += 1
        else:
            parts.append(part)
            left -= len(part)
    if dropped:
        parts.append(f"... {dropped} more paths differ\n".encode())
    return b"".join(parts)


def _lines(store: Store, change: tree.Change) -> Iterator[bytes]:
    name = change.path
    old, new = _text(store, change.old), _text(store, change.new)
    if isinstance(old, str) or isinstance(new, str):
        yield b"%s %s (%s)\n" % (
            change.letter.encode(),
            name,
            str(old if isinstance(old, str) else new).encode(),
        )
        return
    before = b"a/" + name if change.old else b"/dev/null"
    after = b"b/" + name if change.new else b"/dev/null"
    if old == new:
        yield b"%s %s (%s)\n" % (change.letter.encode(), name, _kinds(change).encode())
    for line in difflib.diff_bytes(difflib.unified_diff, old, new, before, after, lineterm=b"\n"):
        yield line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n"


def _text(store: Store, entry: Entry | None) -> list[bytes] | str:
    """The lines of a text file or of a symlink's target; else a word on why there are none."""
    if entry is None:
        return []
    if isinstance(entry, Symlink):
        return [entry.target]
    if not isinstance(entry, File):
        return "directory"
    if entry.digest.size_bytes > MAX_FILE:
        return "too large to show"
    data = store.get(entry.digest.hash)
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return "binary"
    return "binary" if b"\0" in data else LINE.findall(data)


def _kinds(change: tree.Change) -> str:
    old, new = change.old, change.new
    if isinstance(old, File) and isinstance(new, File) and old.executable != new.executable:
        return "mode: now executable" if new.executable else "mode: not executable any more"
    return "empty" if old is None or new is None else "kind, mode or time"
