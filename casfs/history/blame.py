"""Blame: for each line of a file the version that wrote it; or which version removed a text.

A line that the version before has too (`casfs.trees.diff.matching`) is passed on to it. The rest
was written by this version, unless

- an older version of the chain has the same content at the path: all goes to the oldest of these,
  so a restore writes nothing;
- the path is new, and another file of the tree before has the same content: a rename, where that
  one is deleted, else a copy;
- the step called threads: a line that is in the last tree of one goes there.

A binary or large file has one author, as one line would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice

from casfs.digest import TreeHash
from casfs.errors import NotFound
from casfs.history.versions import Chain, Place, Version, content
from casfs.nodes.directory import Entry, File, Subdirectory
from casfs.store import Store
from casfs.system import interruption
from casfs.system.paths import printable
from casfs.trees import tree
from casfs.trees.diff import unified_diff
from casfs.trees.diff.matching import Lines, changed_blocks

MAX_BYTES = 4 << 20  # of a file whose lines have authors of their own
MAX_COPY_ENTRIES = 20_000  # of a tree in which the source of a new file is looked for
CACHED_TEXTS = 4
Find = Callable[[Entry | None], tuple[int, bytes] | None]
Lost = dict[int, int]  # a line in the text of some version: its index in the result


@dataclass(frozen=True, slots=True)
class Line:
    """`text`: None for a whole file; `path`: of the file in the version that wrote the line."""

    number: int
    text: bytes | None
    version: Version
    path: bytes


@dataclass(frozen=True, slots=True)
class _Work:
    place: Place
    path: bytes
    lost: Lost


def blame(place: Place, path: bytes, first: int = 1, last: int | None = None) -> list[Line]:
    """Returns the lines from `first` to `last` of a file with their authors. Raises NotFound."""
    path = b"/".join(tree.split_path(path))
    return _Blame(place.chain.history.store).run(place, path, first, last)


class _Blame:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._authors: dict[int, tuple[Version, bytes]] = {}
        self._work: list[_Work] = []
        self._lines = lru_cache(CACHED_TEXTS)(self._read_lines)

    def run(self, place: Place, path: bytes, first: int, last: int | None) -> list[Line]:
        entry = place.entry(path)
        if entry is None or isinstance(entry, Subdirectory):
            what = "not in that tree" if entry is None else "a directory; `casfs log` shows its"
            raise NotFound(f"{printable(path)}: {what}{' history' if entry else ''}")
        lines = self._lines(entry)
        wanted = range(first - 1, min(len(lines or [b""]), last or 1 << 62))
        if lines is None or not lines:
            wanted = range(1 if lines is None else 0)
        elif not wanted:
            raise NotFound(f"{printable(path)} has only {len(lines)} lines")
        self._work.append(_Work(place, path, {index: index for index in wanted}))
        while self._work:
            interruption.check()
            self._step(self._work.pop())
        texts = [None] if lines is None else lines
        return [Line(index + 1, texts[index], *self._authors[index]) for index in wanted]

    def _step(self, work: _Work) -> None:
        """Passes lines on from the version that has this content first; the rest is its own."""
        path, lost = work.path, work.lost
        place = work.place.oldest(path)
        entry = place.entry(path)
        older = place.older()
        if older is not None:
            lost = self._pass(older, path, entry, lost)
            if content(older.entry(path)) is None:
                lost = self._pass_elsewhere(place, older, entry, lost)
        for called in place.called() if lost else ():
            lost = self._pass(called, path, entry, lost)
        self._authors.update(dict.fromkeys(lost.values(), (place.version, path)))

    def _pass(self, to: Place, path: bytes, entry: Entry | None, lost: Lost) -> Lost:
        """Passes on the lines that another version has too; returns the others."""
        there = to.entry(path)
        if not lost or content(there) is None:
            return lost
        if content(there) == content(entry):
            self._work.append(_Work(to, path, lost))
            return {}
        old, new = self._lines(there), self._lines(entry)
        if old is None or new is None:
            return lost
        passed: Lost = {}
        for i, j, count in _equal_runs(old, new):
            both = zip(range(i, i + count), range(j, j + count), strict=True)
            passed |= {at: lost[line] for at, line in both if line in lost}
        if passed:
            self._work.append(_Work(to, path, passed))
        gone = set(passed.values())
        return {line: index for line, index in lost.items() if index not in gone}

    def _pass_elsewhere(self, at: Place, to: Place, entry: Entry | None, lost: Lost) -> Lost:
        """Passes all lines on to the file from which this one was renamed or copied."""
        if not lost or not isinstance(entry, File) or to.version.root is None:
            return lost
        path = same_content(self._store, to.version.root, at.version.root, entry)
        if path is None:
            return lost
        self._work.append(_Work(to, path, lost))
        return {}

    def _read_lines(self, entry: Entry | None) -> Lines | None:
        found = unified_diff.text_lines(self._store, entry, MAX_BYTES)
        return None if isinstance(found, str) else found


def _equal_runs(old: Lines, new: Lines) -> Iterator[tuple[int, int, int]]:
    """Yields runs of equal lines: old line, new line, number of lines."""
    i = j = 0
    for i1, i2, _, j2 in [*changed_blocks(old, new), (len(old), 0, len(new), 0)]:
        yield i, j, i1 - i
        i, j = i2, j2


def same_content(store: Store, old: TreeHash, new: TreeHash | None, file: File) -> bytes | None:
    """Returns the path of a file with the same content in a tree: one that `new` does not have,
    else any. In a large tree only the beginning is searched for the latter."""
    deleted = ((one.path, one.old) for one in tree.diff(store, old, new) if one.new is None)
    for found in (deleted, islice(tree.walk(store, old), MAX_COPY_ENTRIES)):
        for path, entry in found:
            interruption.check()
            if isinstance(entry, File) and entry.digest == file.digest:
                return path
    return None


def removal(place: Place, path: bytes, text: bytes) -> Line:
    """Returns the last line that contained a text, with the version that removed it. Raises
    NotFound, also where a line still contains it."""
    path = b"/".join(tree.split_path(path))
    find = partial(_containing, place.chain.history.store, text=text)
    if (found := find(place.entry(path))) is not None:
        raise NotFound(f"{printable(path)} still has that text, in line {found[0]}")
    line = _removal(place, path, find)
    if line is None:
        raise NotFound(f"no version of {printable(path)} had that text")
    return line


def _removal(newer: Place, path: bytes, find: Find, within: Chain | None = None) -> Line | None:
    """`within`: only in this chain, of a called thread."""
    while (older := newer.older()) is not None and within in (None, older.chain):
        interruption.check()
        entry = older.entry(path)
        if content(entry) != content(newer.entry(path)) and (found := find(entry)) is not None:
            last = [one for one in newer.called() if find(one.entry(path)) is None]
            inner = (_removal(one, path, find, one.chain) for one in last)
            return next((one for one in inner if one), Line(*found, newer.version, path))
        newer = older
    return None


def _containing(store: Store, entry: Entry | None, text: bytes) -> tuple[int, bytes] | None:
    """Returns the last line of a file that contains a text, and its number."""
    if not isinstance(entry, File) or text not in (data := store.get(entry.digest.hash)):
        return None
    at = data.rindex(text)
    begin = data.rfind(b"\n", 0, at) + 1
    end = data.find(b"\n", at)
    return data.count(b"\n", 0, at) + 1, data[begin : None if end < 0 else end + 1]
