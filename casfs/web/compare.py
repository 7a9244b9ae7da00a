"""Compares two trees: what changed, by directory, and the lines of each file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, islice, zip_longest
from typing import NamedTuple

from starlette.responses import Response

from casfs.checkpoints import checkpoint
from casfs.checkpoints.revisions import Revision, resolve
from casfs.digest import TreeHash
from casfs.errors import CasfsError
from casfs.store.nodes.directory import Entry, Symlink
from casfs.store.store import Store
from casfs.trees import tree
from casfs.trees.diff import lines as line_diff
from casfs.trees.diff import renames, unified_diff
from casfs.trees.diff.lines import NumberedLine
from casfs.trees.tree import Change
from casfs.web.site import Call

PAGE = 100  # paths
PAGE_WITH_LINES = 10
MAX_CHANGES = 100_000
MAX_DIRECTORIES = 200  # that are listed
MAX_LINES = 3000  # of a page
MAX_LINE_CHARS = 2000
MAX_NAMES = 200  # of checkpoints that the form suggests
LIST = "list"
UNIFIED = "unified"
SPLIT = "split"
VIEWS = {LIST: "List", UNIFIED: "Unified", SPLIT: "Side by side"}
ADDED = "added"
REMOVED = "removed"
CHANGED = "changed"
RENAMED = "renamed"
MODE = "mode"
KINDS = {kind: kind for kind in (ADDED, REMOVED, CHANGED, RENAMED)} | {MODE: "mode or time"}
LETTERS = {"A": ADDED, "D": REMOVED, "M": CHANGED, "R": RENAMED}
Counts = Counter[str]  # by kind


class Line(NamedTuple):
    """A line of a diff: its numbers on both sides, None where it is not there. `ended`: by a line
    feed."""

    old: int | None
    new: int | None
    text: str
    ended: bool

    @property
    def kind(self) -> str:
        return REMOVED if self.new is None else ADDED if self.old is None else ""


Hunk = list[Line]


@dataclass(frozen=True)
class Diff:
    """`why` there are no lines: binary, too large; `left`: number of lines that are not shown."""

    why: str | None
    hunks: list[Hunk]
    left: int = 0

    @property
    def rows(self) -> list[list[tuple[Line | None, Line | None]]]:
        """The hunks side by side."""
        return [list(pairs(hunk)) for hunk in self.hunks]


@dataclass(frozen=True)
class FileChange:
    change: Change
    kind: str
    modes: tuple[int, int] | None
    diff: Diff | None


@dataclass(frozen=True)
class Comparison:
    """What differs below `path`. `files`: a window of it, from index `first` on, of `total`;
    `directories`: those directly below `path`; `cut`: there are more than MAX_CHANGES."""

    a: Revision
    b: Revision
    path: bytes
    view: str
    counts: Counts
    directories: list[tuple[bytes, Counts]]
    files: list[FileChange]
    first: int
    total: int
    size: int
    cut: bool

    @property
    def parents(self) -> list[tuple[bytes, bytes]]:
        """The directories that `path` leads through, and their names; the root is the first."""
        parts = self.path.split(b"/") if self.path else []
        above = [b"/".join(parts[:count]) for count in range(len(parts))]
        return [(directory, directory.rpartition(b"/")[2]) for directory in above]


def show(call: Call) -> Response:
    a, b = (call.query.get(name, "").strip() for name in "ab")
    view = call.query.get("view", LIST)
    comparison = None
    if a and b:
        sides = resolve(call.store, a), resolve(call.store, b)
        path = b"/".join(tree.split_path(call.octets("path")))
        comparison = compare(call.store, *sides, path, view, call.index("first"))
    names = [] if comparison else checkpoint.names(call.store)[:MAX_NAMES]
    return call.page(
        "compare.html", found=comparison, a=a, b=b, names=names, views=VIEWS, kinds=KINDS
    )


def compare(
    store: Store, a: Revision, b: Revision, path: bytes = b"", view: str = LIST, first: int = 0
) -> Comparison:
    """Returns the window of a comparison that begins at index `first`. Raises NotFound, Corrupt."""
    view = view if view in VIEWS else LIST
    chosen, cut = changes(store, a.root, new=b.root, path=path)
    below = path + b"/" if path else b""
    counts = Counter(kind for _, kind in chosen)
    directories: dict[bytes, Counts] = {}
    for change, kind in chosen:
        name, slash, _ = change.path[len(below) :].partition(b"/")
        if slash:
            directories.setdefault(below + name, Counter())[kind] += 1
    size = PAGE if view == LIST else PAGE_WITH_LINES
    first = min(first, max(0, len(chosen) - 1) // size * size)
    files = list(_files(store, chosen[first : first + size], view))
    listed = list(islice(directories.items(), MAX_DIRECTORIES))
    return Comparison(
        a,
        b,
        path=path,
        view=view,
        counts=counts,
        directories=listed,
        files=files,
        first=first,
        total=len(chosen),
        size=size,
        cut=cut,
    )


def changes(
    store: Store, old: TreeHash, new: TreeHash, path: bytes = b""
) -> tuple[list[tuple[Change, str]], bool]:
    """Returns the first MAX_CHANGES changes at and below a path with their kinds, and whether there
    are more; cached in the store."""
    key = f"changes {old} {new} {path!r}"
    cached: tuple[list[tuple[Change, str]], bool] | None = store.cache.get(key)
    if cached is None:
        differing = tree.changes(store, old, new=new, paths=[path])
        renamed = renames.detect(store, islice(differing, MAX_CHANGES))
        first = [(change, kind_of(change)) for change in renamed]
        cached = first, next(differing, None) is not None
        store.cache.put(key, cached, len(first) + 1)
    return cached


def kind_of(change: Change) -> str:
    old = change.old
    new = change.new
    known = LETTERS.get(change.letter)
    if known is not None or type(old) is not type(new):
        return known or CHANGED
    targets = isinstance(old, Symlink) and isinstance(new, Symlink) and old.target != new.target
    return CHANGED if targets else MODE


def _files(store: Store, chosen: list[tuple[Change, str]], view: str) -> Iterator[FileChange]:
    left = MAX_LINES
    for change, kind in chosen:
        file_diff = None if view == LIST else diff(store, change.old, change.new, left)
        left -= sum(map(len, file_diff.hunks)) if file_diff else 0
        yield FileChange(change, kind, modes=tree.changed_modes(store, change), diff=file_diff)


def diff(store: Store, old: Entry | None, new: Entry | None, limit: int = MAX_LINES) -> Diff:
    """Returns the diff of two entries, of `limit` lines at most."""
    try:
        before = unified_diff.text_lines(store, old)
        after = unified_diff.text_lines(store, new)
    except CasfsError as error:  # purged, or damaged
        return Diff(str(error), [])
    for why in (after, before):
        if isinstance(why, str):
            return Diff(why, [])
    assert not isinstance(before, str)
    assert not isinstance(after, str)
    hunks = []
    left = 0
    for hunk in line_diff.numbered_hunks(before, after):
        fitting = [_line(numbered) for numbered in hunk[: max(0, limit)]]
        limit -= len(fitting)
        left += len(hunk) - len(fitting)
        if fitting:
            hunks.append(fitting)
    return Diff(None, hunks, left)


def _line(numbered: NumberedLine) -> Line:
    text = numbered.text.decode("utf-8", "backslashreplace").removesuffix("\n")
    if len(text) > MAX_LINE_CHARS:
        text = f"{text[:MAX_LINE_CHARS]}… ({len(text) - MAX_LINE_CHARS} more characters)"
    ended = numbered.text.endswith(b"\n")
    return Line(numbered.old, numbered.new, text=text, ended=ended)


def pairs(hunk: Hunk) -> Iterator[tuple[Line | None, Line | None]]:
    """Yields the rows of a hunk side by side: what was removed beside what was added."""
    for is_equal, lines in groupby(hunk, key=lambda line: not line.kind):
        run = list(lines)
        gone, come = ([line for line in run if line.kind == kind] for kind in (REMOVED, ADDED))
        yield from zip(run, run, strict=True) if is_equal else zip_longest(gone, come)
