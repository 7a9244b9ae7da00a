"""Blame: for each line of a file the version that wrote it; or which version removed a text.

A line that the version before has too (`casfs.trees.diff.matching`) is passed on to it. The rest
was written by this version, unless

- an older version of the chain has the same content at the path: all goes to the oldest of these,
  so a restore writes nothing;
- the path is new, and another file of the tree before has the same content: a rename, where that
  one is deleted, else a copy; or a deleted file is similar: a rename with an edit
  (`casfs.trees.diff.renames`);
- the step called threads: a line that is in the last tree of one goes there.

A binary or large file has one author, as one line would.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

from casfs.digest import TreeHash
from casfs.errors import NotFound
from casfs.history.path_entries import content
from casfs.history.version import Version
from casfs.history.versions import Chain, Place
from casfs.store.nodes.directory import Entry, File, Subdirectory
from casfs.store.store import Store
from casfs.system import interruption
from casfs.system.paths import printable
from casfs.trees import tree
from casfs.trees.diff import renames, unified_diff
from casfs.trees.diff.matching import Lines, changed_blocks

MAX_BYTES = 4 << 20  # of a file whose lines have authors of their own
MAX_COPY_ENTRIES = 20_000  # of a tree in which the source of a new file is looked for
CACHED_TEXTS = 4
Rest = dict[
    int, int
]  # lines of a version's text that have no author yet: their index in the result
Find = Callable[[Entry | None], tuple[int, bytes] | None]


@dataclass(frozen=True, slots=True)
class Line:
    """`text`: None for a whole file; `path`: of the file in the version that wrote the line."""

    number: int
    text: bytes | None
    version: Version
    path: bytes


def blame(position: Place, path: bytes, first: int = 1, last: int = 1 << 62) -> list[Line]:
    """Returns the lines from `first` to `last` of a file with their authors. Raises NotFound."""
    path = b"/".join(tree.split_path(path))
    entry = position.entry(path)
    if entry is None or isinstance(entry, Subdirectory):
        raise NotFound(f"{printable(path)} is not a file of {position.version.revision}")
    run = _Run(position.chain.store)
    lines = run.lines(entry)
    texts: list[bytes | None] = [None] if lines is None else [*lines]
    wanted = range(first - 1 if lines else 0, min(len(texts), last if lines else 1))
    if texts and not wanted:
        raise NotFound(f"{printable(path)} has only {len(texts)} lines")
    run.todo.append((position, path, {index: index for index in wanted}))
    while run.todo:
        interruption.check()
        run.step(*run.todo.pop())
    return [Line(index + 1, texts[index], *run.authors[index]) for index in wanted]


class _Run:
    def __init__(self, store: Store) -> None:
        self._store = store
        self.authors: dict[int, tuple[Version, bytes]] = {}
        self.todo: list[tuple[Place, bytes, Rest]] = []
        self.lines = lru_cache(CACHED_TEXTS)(self._lines)

    def step(self, position: Place, path: bytes, unattributed: Rest) -> None:
        """Passes lines on from the version that had this content first; the rest is its own."""
        entry = position.entry(path)
        position = position.chain.oldest(path, content(entry))
        older = position.older
        if older is not None:
            source: bytes | None = path
            if unattributed and content(older.entry(path)) is None and isinstance(entry, File):
                source = find_source(
                    self._store, older.version.root, new=position.version.root, path=path
                )
            if source is not None:
                unattributed = self._pass(older, source, entry=entry, unattributed=unattributed)
        for called in position.called() if unattributed else ():
            unattributed = self._pass(called, path, entry=entry, unattributed=unattributed)
        self.authors.update(dict.fromkeys(unattributed.values(), (position.version, path)))

    def _pass(self, to: Place, path: bytes, entry: Entry | None, unattributed: Rest) -> Rest:
        """Passes on the lines that another version has too; returns the others."""
        there = to.entry(path)
        if not unattributed or content(there) is None:
            return unattributed
        passed = unattributed
        if content(there) != content(entry):
            old = self.lines(there)
            new = self.lines(entry)
            if old is None or new is None:
                return unattributed
            passed = {}
            i = 0
            j = 0
            for _, i2, j1, j2 in [*changed_blocks(old, new), (0, 0, len(new), 0)]:
                passed |= {
                    i + line - j: unattributed[line]
                    for line in range(j, j1)
                    if line in unattributed
                }
                i = i2
                j = j2
        self.todo.append((to, path, passed))
        gone = set(passed.values())
        return {line: index for line, index in unattributed.items() if index not in gone}

    def _lines(self, entry: Entry | None) -> Lines | None:
        lines = unified_diff.text_lines(self._store, entry, MAX_BYTES)
        return None if isinstance(lines, str) else lines


def find_source(
    store: Store, old: TreeHash | None, new: TreeHash | None, path: bytes
) -> bytes | None:
    """Returns the path in the old tree of the file that a new one was made from: a deleted file
    with the same content, else any, else a similar deleted one. In a large tree only the beginning
    is searched for a copy."""
    file = None if new is None else tree.find(store, new, path)
    if old is None or not isinstance(file, File):
        return None
    renamed = find_renamed(store, old, new=new, path=path)
    if renamed is not None and content(tree.find(store, old, renamed)) == content(file):
        return renamed
    for source, entry in islice(tree.walk(store, old), MAX_COPY_ENTRIES):
        interruption.check()
        if isinstance(entry, File) and entry.digest == file.digest:
            return source
    return renamed


def find_renamed(
    store: Store, old: TreeHash | None, new: TreeHash | None, path: bytes
) -> bytes | None:
    """As `find_source`, but only a deleted file: a copy leaves its source where it was."""
    file = None if new is None else tree.find(store, new, path)
    if old is None or not isinstance(file, File):
        return None
    changes = tree.diff(store, old, new)
    deleted = {
        change.path: change.old
        for change in changes
        if change.new is None and isinstance(change.old, File)
    }
    return renames.pairs(store, deleted, {path: file}).get(path)


def removal(position: Place, path: bytes, text: bytes) -> Line:
    """Returns the last line that contained a text, with the version that removed it. Raises
    NotFound, also where a line still contains it."""
    path = b"/".join(tree.split_path(path))
    store = position.chain.store

    def last_line(entry: Entry | None) -> tuple[int, bytes] | None:
        data = store.get(entry.digest.hash) if isinstance(entry, File) else b""
        if (offset := data.rfind(text)) < 0:
            return None
        begin = data.rfind(b"\n", 0, offset) + 1
        number = data.count(b"\n", 0, offset) + 1
        return number, data[begin:].partition(b"\n")[0]

    if (numbered_line := last_line(position.entry(path))) is not None:
        raise NotFound(f"{printable(path)} still has that text, in line {numbered_line[0]}")
    if (line := _removal(position, path, last_line)) is None:
        raise NotFound(f"no version of {printable(path)} had that text")
    return line


def _removal(newer: Place, path: bytes, find: Find, within: Chain | None = None) -> Line | None:
    """`within`: only in this chain, of a called thread."""
    while (older := newer.older) is not None and within in (None, older.chain):
        interruption.check()
        entry = older.entry(path)
        if (
            content(entry) != content(newer.entry(path))
            and (numbered_line := find(entry)) is not None
        ):
            last = [called for called in newer.called() if find(called.entry(path)) is None]
            inner = (_removal(called, path, find=find, within=called.chain) for called in last)
            return next((line for line in inner if line), Line(*numbered_line, newer.version, path))
        newer = older
    return None
