"""Renames: which deleted file an added one was made from, as `git diff -M` finds them.

Two files are similar by the share of their bytes that is in equal pieces; a piece is a line, or 64
bytes of a longer one. A pair with the same content counts first, then one of files whose base name
occurs once on both sides, then the most similar pair. Of many files only those pairs are compared
that share pieces which few files have. The work is bounded: what is beyond the limit stays deleted
and added.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress

from casfs.digest import BlobHash
from casfs.errors import CasfsError
from casfs.store.nodes.directory import Entry, File
from casfs.store.store import Store
from casfs.system import interruption
from casfs.trees.tree import Change

MIN_SIMILARITY = 0.5  # git's default
MIN_SIMILARITY_OF_BASENAME = 0.75
MAX_FILE_BYTES = 1 << 20  # of a file whose content is compared
MAX_READ_BYTES = 64 << 20  # of all of them
MAX_PAIRS = 40_000  # that are all compared
MAX_OWNERS = 32  # deleted files with a piece that tells where an added one may be from
MAX_LIKELY = 8  # deleted files that an added one is compared with, of many
MAX_EQUAL = 100  # deleted files of one content among which the same base name is looked for
MAX_PIECES = 4_000_000  # that are compared in all
PIECE = re.compile(rb"[^\n]{0,63}\n|[^\n]{1,64}")
TEXT_PREFIX = 8000  # bytes in which a NUL shows that a file is binary
Files = Mapping[bytes, File]  # by path


def detect(store: Store, changes: Iterable[Change]) -> list[Change]:
    """Returns the changes with each renamed file as one change, which has a `source`, in place of
    the two."""
    all_changes = list(changes)
    deleted = {change.path: change.old for change in all_changes if change.new is None}
    added = {change.path: change.new for change in all_changes if change.old is None}
    search = _found(store, _files(deleted), _files(added))
    sources = search.sources
    gone = set(sources.values())
    result = []
    for change in all_changes:
        source = sources.get(change.path)
        if source is not None and change.old is None:
            similarity = search.similarities[change.path]
            old = deleted[source]
            result.append(change._replace(old=old, source=source, similarity=similarity))
        elif change.path not in gone or change.new is not None:
            result.append(change)
    return result


def pairs(store: Store, deleted: Files, added: Files) -> dict[bytes, bytes]:
    """Returns the path of the deleted file for each added file that was made from one."""
    return _found(store, deleted, added).sources


def _found(store: Store, deleted: Files, added: Files) -> _Search:
    search = _Search(store, deleted, added)
    search.take_equal()
    search.take_basenames()
    search.take_most_similar()
    return search


class _Search:
    def __init__(self, store: Store, deleted: Files, added: Files) -> None:
        self._store = store
        self._deleted = dict(deleted)
        self._added = dict(added)
        self._pieces: dict[BlobHash, Counter[bytes] | None] = {}
        self._bytes_left = MAX_READ_BYTES
        self._pieces_left = MAX_PIECES
        self.sources: dict[bytes, bytes] = {}
        self.similarities: dict[bytes, int] = {}  # in percent; 100 where all is equal

    def take_equal(self) -> None:
        by_hash: dict[BlobHash, list[bytes]] = {}
        for path, file in self._deleted.items():
            by_hash.setdefault(file.digest.hash, []).append(path)
        for path, file in list(self._added.items()):
            equal = by_hash.get(file.digest.hash)
            if not equal:
                continue
            source = max(
                equal[:MAX_EQUAL], key=lambda candidate: _basename(candidate) == _basename(path)
            )
            equal.remove(source)
            self._take(path, source, 100)

    def take_basenames(self) -> None:
        sources = _unique_basenames(self._deleted)
        for name, path in _unique_basenames(self._added).items():
            source = sources.get(name)
            if source is None:
                continue
            similarity = self._similarity(source, path)
            if similarity >= MIN_SIMILARITY_OF_BASENAME:
                self._take(path, source, min(99, int(similarity * 100)))

    def take_most_similar(self) -> None:
        is_few = len(self._deleted) * len(self._added) <= MAX_PAIRS
        owners = {} if is_few else self._owners()
        candidates = []
        for path in self._added:
            interruption.check()
            for source in self._deleted if is_few else self._likely_sources(path, owners):
                similarity = self._similarity(source, path)
                if similarity >= MIN_SIMILARITY:
                    is_same_name = _basename(source) == _basename(path)
                    candidates.append((similarity, is_same_name, path, source))
        candidates.sort(key=lambda candidate: candidate[:2], reverse=True)
        for similarity, _, path, source in candidates:
            if path in self._added and source in self._deleted:
                self._take(path, source, min(99, int(similarity * 100)))

    def _owners(self) -> dict[bytes, list[bytes]]:
        """Returns the deleted files that have a piece."""
        owners: dict[bytes, list[bytes]] = {}
        for path, file in self._deleted.items():
            interruption.check()
            for piece in self._pieces_of(file) or ():
                owners.setdefault(piece, []).append(path)
        return owners

    def _likely_sources(self, path: bytes, owners: Mapping[bytes, list[bytes]]) -> list[bytes]:
        shared = Counter[bytes]()
        for piece in self._pieces_of(self._added[path]) or ():
            sources = owners.get(piece, ())
            if len(sources) <= MAX_OWNERS:
                for source in sources:
                    shared[source] += len(piece)
        return [source for source, _ in shared.most_common(MAX_LIKELY)]

    def _take(self, path: bytes, source: bytes, similarity: int) -> None:
        self.sources[path] = source
        self.similarities[path] = similarity
        del self._added[path]
        del self._deleted[source]

    def _similarity(self, source: bytes, path: bytes) -> float:
        """Returns the share of bytes that two files have in common, 0 where that is too little or
        the limit is reached."""
        old = self._deleted[source]
        new = self._added[path]
        smaller, larger = sorted((old.digest.size_bytes, new.digest.size_bytes))
        if smaller < larger * MIN_SIMILARITY or smaller == 0:
            return 0.0
        before = self._pieces_of(old)
        after = self._pieces_of(new)
        if before is None or after is None:
            return 0.0
        fewer, more_pieces = sorted((before, after), key=len)
        self._pieces_left -= len(fewer)
        if self._pieces_left < 0:
            return 0.0
        common = sum(min(count, more_pieces[piece]) * len(piece) for piece, count in fewer.items())
        return common / larger

    def _pieces_of(self, file: File) -> Counter[bytes] | None:
        """Returns how often a file has each piece; None for a file beyond the limits."""
        hash = file.digest.hash
        if hash not in self._pieces:
            size = file.digest.size_bytes
            if size > min(MAX_FILE_BYTES, self._bytes_left):
                self._pieces[hash] = None
            else:
                self._bytes_left -= size
                self._pieces[hash] = None
                with suppress(CasfsError):  # purged, or damaged
                    self._pieces[hash] = _pieces(self._store.get(hash))
        return self._pieces[hash]


def _pieces(data: bytes) -> Counter[bytes]:
    if b"\0" not in data[:TEXT_PREFIX]:
        data = data.replace(b"\r\n", b"\n")
    return Counter(PIECE.findall(data))


def _files(entries: Mapping[bytes, Entry | None]) -> dict[bytes, File]:
    return {path: entry for path, entry in entries.items() if isinstance(entry, File)}


def _unique_basenames(paths: Iterable[bytes]) -> dict[bytes, bytes]:
    """Returns the paths by base name, where no other path has it."""
    paths = list(paths)
    counts = Counter(map(_basename, paths))
    return {_basename(path): path for path in paths if counts[_basename(path)] == 1}


def _basename(path: bytes) -> bytes:
    return path.rpartition(b"/")[2]
