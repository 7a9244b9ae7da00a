"""Which git objects that a thread adds to a repository of its workspace stay in this store.

An agent commits or stashes what is private, and git keeps it under another name, compressed. So
the objects that are new are read. A blob stays here that is private by its path in a new commit,
stash, tree or index, or for a secret in it, or that has no path, as no reader elsewhere can need
it; unless it is empty, or equal to the work at one of its paths. So does a commit or tag with a
secret in its message. All else travels: a pack with private objects is packed anew without them,
under the same name.

Damaged objects, and packs that cannot be read here, stay here.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import BinaryIO, NamedTuple

from casfs.digest import TreeHash, hash_bytes, hash_stream
from casfs.errors import CasfsError
from casfs.scanner import Scanner, ScanningReader
from casfs.scanner.private_names import is_private
from casfs.store.nodes.directory import Entry, File, Subdirectory
from casfs.store.store import Store
from casfs.store.write_batch import Batch
from casfs.trees import recorded_state, tree
from casfs.trees.git.history import History, TooManyPaths
from casfs.trees.git.index import GIT
from casfs.trees.git.object_files import (
    LOOSE,
    PACK_FILE,
    STEM,
    is_object_file,
    loose_id,
    stays,
)
from casfs.trees.git.objects import (
    BESIDE_PACKS,
    BLOB,
    KINDS,
    PACK,
    PACK_INDEX,
    SHA1_BYTES,
    TREE,
    Header,
    LooseObjects,
    Objects,
    PackedObjects,
    ids_in_pack,
)
from casfs.trees.git.recorded_index import index_entries
from casfs.trees.recorded_state import RecordedState

INDEX_OF_PACKS = b"multi-pack-index"
MAX_HISTORY_BYTES = 32 << 20  # of one commit, tag or tree, which is held in memory
MAX_HELD_BYTES = 16 << 20  # of a blob; a larger one is read as a stream

Kept = dict[bytes, Entry | None]  # by path, what the work has in place of an object file


class PrivateObjects(NamedTuple):
    """`entries`: by path, what the work has in place of the files of objects, None: nothing.
    `commits`: by repository, the new commits that lack an object elsewhere, in hex."""

    entries: Kept
    commits: dict[bytes, list[str]]


@dataclass(frozen=True)
class Classes:
    """What decides about objects. `is_private`: whether a path is, by its name; `is_tracked`:
    whether git tracked it when the thread began, so it is work whatever it holds; `work_hash`: of
    the content that the work has at a path, if any; `private`: hashes of private files; `local`:
    the paths that are private or derived."""

    is_private: Callable[[bytes], bool]
    is_tracked: Callable[[bytes], bool]
    work_hash: Callable[[bytes], str | None]
    private: Collection[str]
    local: Collection[bytes]
    scanner: Scanner | None


NO_CLASSES = Classes(
    lambda _: False, lambda _: False, work_hash=lambda _: None, private=(), local=(), scanner=None
)


def private_objects(
    store: Store, batch: Batch, base: RecordedState, full: TreeHash, classes: Classes
) -> PrivateObjects:
    """Returns what stays here of the git objects in the whole directory `full`, which was `base`
    before. Raises as `Store.get`."""
    changed = {
        change.path: change.new
        for change in tree.changes(store, base.full, full)
        if is_object_file(change.path)
    }
    derived = _derived_before(store, base, classes.local)
    for path in derived:  # no longer: nothing in it was looked at
        changed |= _object_files_below(store, full, path)
    stems = {match[1] for path in changed if PACK_FILE.match(path) and (match := STEM.match(path))}
    for stem in stems:  # a pack is decided as one
        changed |= {path: tree.find(store, full, path) for path in _files_of(store, full, stem)}
    hidden = _hidden(store, base)
    entries = {
        path: entry
        for path, entry in hidden.items()
        if path not in changed and tree.find(store, full, path) is not None
    }
    added = {path: entry for path, entry in changed.items() if isinstance(entry, File)}
    entries |= {path: None for path in added if stays(path)}
    commits: dict[bytes, list[str]] = {}
    for git, files in _by_repository(added).items():
        repository = _Repository(
            store, batch, git=git, base=base, full=full, classes=classes, derived=derived
        )
        entries |= repository.private_files(files, hidden)
        if repository.incomplete:
            commits[git] = repository.incomplete
    for folder in {os.path.dirname(path) for path in entries if PACK_FILE.match(path)}:
        # It says where in the packs of the whole directory an object is.
        entries |= {
            path: None
            for name in _names(store, full, folder)
            if (path := folder + b"/" + name) and name.startswith(INDEX_OF_PACKS)
        }
    return PrivateObjects(entries, commits)


def _derived_before(
    store: Store, base: RecordedState, local: Collection[bytes]
) -> tuple[bytes, ...]:
    """Returns the directories that were derived, and are work now."""
    before = recorded_state.local_paths(store, base.tree, base.full)
    return tuple(
        path for path, entry in before if isinstance(entry, Subdirectory) and path not in local
    )


def _object_files_below(store: Store, root: TreeHash, folder: bytes) -> dict[bytes, Entry | None]:
    below = tree.below(store, root, folder)
    return {path: entry for path, entry in below if is_object_file(path)}


def _files_of(store: Store, root: TreeHash, stem: bytes) -> Iterable[bytes]:
    """Yields the paths of the files of a pack, of those that the work may lack."""
    folder, name = os.path.split(stem)
    for other in _names(store, root, folder):
        if other in {name + end for end in (PACK, PACK_INDEX, *BESIDE_PACKS)}:
            yield folder + b"/" + other


class StayingObjects(NamedTuple):
    """Of a repository, the objects that stay here: how many, and the commits that lack one of them
    elsewhere, in hex; none are known where they are in packs that cannot be read here."""

    total: int
    commits: list[str]


def staying_objects(store: Store, state: RecordedState) -> dict[bytes, StayingObjects]:
    """Returns what stays here of the git objects of a recorded directory, by repository."""
    hidden = _hidden(store, state)
    repositories: dict[bytes, StayingObjects] = {}
    for path in hidden:
        match = LOOSE.match(path) or PACK_FILE.match(path)
        git = (match[1] or b"").removesuffix(b"/") if match else None
        if git is not None and git not in repositories:
            repository = _Repository(
                store, store.batch(), git=git, base=state, full=state.full, classes=NO_CLASSES
            )
            repositories[git] = repository.staying(hidden)
    return repositories


def _hidden(store: Store, base: RecordedState) -> Kept:
    """Returns the object files that stay here, with what the work has in place of each."""
    if base.local is None:
        return {}
    return {
        path: tree.find(store, base.tree, path)
        for path, entry in recorded_state.local_paths(store, base.tree, base.full)
        if isinstance(entry, File) and is_object_file(path)
    }


def _by_repository(files: Mapping[bytes, File]) -> dict[bytes, dict[bytes, File]]:
    """Sorts object files by the path of their repository."""
    repositories: dict[bytes, dict[bytes, File]] = {}
    for path, entry in files.items():
        if match := LOOSE.match(path) or PACK_FILE.match(path):
            git = (match[1] or b"").removesuffix(b"/")
            repositories.setdefault(git, {})[path] = entry
    return repositories


def _names(store: Store, root: TreeHash, folder: bytes) -> Iterable[bytes]:
    entry = tree.find(store, root, folder)
    return tree.load(store, entry.digest.hash) if isinstance(entry, Subdirectory) else ()


class _Repository:
    """The repository in the directory `git` of `full`, which was `base` before."""

    def __init__(
        self,
        store: Store,
        batch: Batch,
        git: bytes,
        base: RecordedState,
        full: TreeHash,
        classes: Classes,
        derived: Sequence[bytes] = (),
    ) -> None:
        """`derived`: directories of which nothing was looked at before."""
        self.incomplete: list[str] = []  # new commits that lack an object elsewhere, in hex
        self._store = store
        self._batch = batch
        self._base = base
        self._full = full
        self._classes = classes
        self._git = git
        self._inside = git + b"/" if git else b""
        above, _, name = git.rpartition(b"/")
        self._is_unread = any(
            (self._inside + b"/").startswith(directory + b"/") for directory in derived
        )
        self._has_work_tree = name == os.fsencode(GIT)
        self._work_tree = above + b"/" if self._has_work_tree and above else b""

    def private_files(self, files: Mapping[bytes, File], hidden: Kept) -> Kept:
        """Returns which of these new object files stay here. `hidden`: those that did before."""
        loose = {object_id: path for path in files if (object_id := loose_id(path))}
        hashes = {object_id: files[path].digest.hash for object_id, path in loose.items()}
        sources: list[Objects] = [LooseObjects(self._store, hashes)]
        stems = [path.removesuffix(PACK) for path in files if path.endswith(PACK)]
        private = self._hidden_ids(hidden)
        kept: Kept = {}
        if not stems:
            private |= self._private(sources, loose, private)
        else:
            try:
                private, kept = self._private_in_packs(
                    sources, files, stems=stems, loose=loose, private=private
                )
            except CasfsError:  # no git on this machine, or a damaged pack
                private |= self._private(sources, loose, private)
                kept = {path: None for stem in stems for path in self._pack_files(stem)}
        return kept | {path: None for object_id, path in loose.items() if object_id in private}

    def _private_in_packs(
        self,
        sources: list[Objects],
        files: Mapping[bytes, File],
        stems: Iterable[bytes],
        loose: Collection[bytes],
        private: set[bytes],
    ) -> tuple[set[bytes], Kept]:
        """As `_private`; also returns what stays here of new packs. Raises CasfsError where one
        cannot be read."""
        kept: Kept = {}
        with PackedObjects(self._id_bytes(stems)) as packed:
            held: dict[bytes, list[bytes]] = {}
            for stem in stems:
                with closing(self._store.blobs.open(files[stem + PACK].digest.hash)) as file:
                    held[stem] = packed.add_pack(file)
            in_packs = {object_id for ids in held.values() for object_id in ids}
            packed.wanted = sorted(in_packs - self._ids_before())
            wanted = {*loose, *packed.wanted}
            private = private | self._private([*sources, packed], wanted, private)
            for stem, ids in held.items():
                if private.intersection(ids):
                    kept |= self._without(
                        packed, stem, [object_id for object_id in ids if object_id not in private]
                    )
        return private, kept

    def _id_bytes(self, stems: Iterable[bytes]) -> int:
        """Returns the length of ids, by the index of a pack. Raises CasfsError."""
        for stem in stems:
            if ids := ids_in_pack(self._content(self._full, stem + PACK_INDEX)):
                return len(ids[0])
        return SHA1_BYTES

    def _without(self, packed: PackedObjects, stem: bytes, ids: list[bytes]) -> Kept:
        """Returns what takes the place of the files of a pack: one of these objects alone."""
        kept: Kept = dict.fromkeys(self._pack_files(stem))
        if ids:
            for pack_path in packed.packed(ids):
                path = stem + os.fsencode(pack_path.suffix)
                with pack_path.open("rb") as file:
                    kept[path] = File(os.path.basename(path), self._batch.put_stream(file))
        return kept

    def _pack_files(self, stem: bytes) -> Iterable[bytes]:
        return _files_of(self._store, self._full, stem)

    def _content(self, root: TreeHash, path: bytes) -> bytes:
        """Raises NotFound."""
        entry = tree.resolve(self._store, root, path)
        return self._store.get(entry.digest.hash) if isinstance(entry, File) else b""

    def _ids_of(self, root: TreeHash, index: bytes) -> list[bytes]:
        """Returns what the index of a pack says that it has; nothing for a damaged one, so that
        what is in the pack is read where another pack has it."""
        try:
            return ids_in_pack(self._content(root, index))
        except CasfsError:
            return []

    def _ids_before(self) -> set[bytes]:
        """Returns all objects that the repository had, and that were looked at."""
        ids: set[bytes] = set()
        if self._is_unread:
            return ids
        folder = tree.find(self._store, self._base.full, self._inside + b"objects")
        if isinstance(folder, Subdirectory):
            for path, _ in tree.walk(self._store, folder.digest.hash, b"objects/"):
                if object_id := loose_id(path):
                    ids.add(object_id)
                elif path.endswith(PACK_INDEX):
                    ids.update(self._ids_of(self._base.full, self._inside + path))
        return ids

    def _hidden_ids(self, hidden: Kept) -> set[bytes]:
        """Returns the objects that stayed here before."""
        ids: set[bytes] = set()
        for path, entry in hidden.items():
            if not path.startswith(self._inside + b"objects/"):
                continue
            if object_id := loose_id(path):
                ids.add(object_id)
            elif path.endswith(PACK_INDEX):
                ids.update(self._ids_of(self._base.full, path))
                if isinstance(entry, File):
                    ids.difference_update(self._ids_of(self._base.tree, path))
        return ids

    def staying(self, hidden: Kept) -> StayingObjects:
        """`hidden`: the object files that stay here."""
        private = self._hidden_ids(hidden)
        files_here = [path for path in hidden if path.startswith(self._inside + b"objects/")]
        if not private:  # damaged ones alone
            return StayingObjects(len(files_here), [])
        folder = tree.find(self._store, self._full, self._inside + b"objects")
        files = (
            {
                object_id: entry.digest.hash
                for path, entry in tree.walk(self._store, folder.digest.hash, b"objects/")
                if isinstance(entry, File) and (object_id := loose_id(path))
            }
            if isinstance(folder, Subdirectory)
            else {}
        )
        id_bytes = len(next(iter(private)))
        history = History(id_bytes)
        loose = LooseObjects(self._store, files)
        self._add_history(history, loose, loose.headers())
        packs = [path for path in files_here if path.endswith(PACK)]
        with suppress(CasfsError):  # no git here
            for path in packs:
                with PackedObjects(id_bytes) as packed:
                    packed.wanted = packed.add_pack(io.BytesIO(self._content(self._full, path)))
                    self._add_history(history, packed, packed.headers())
        return StayingObjects(len(private), history.commits_with(private))

    # -- what is private -------------------------------------------------------------------

    def _private(
        self, sources: Iterable[Objects], ids: Collection[bytes], before: Collection[bytes]
    ) -> set[bytes]:
        """Returns those of the objects `ids` in `sources` that are private, and notes the commits
        that lack one of them, or of those that are private since `before`."""
        if not ids:
            return set()
        history = History(len(next(iter(ids))))
        headers = [(source, source.headers()) for source in sources]
        readable = {object_id for _, readable_headers in headers for object_id in readable_headers}
        private = set(ids) - readable
        for source, source_headers in headers:
            private |= self._add_history(history, source, source_headers)
        paths: dict[bytes, set[bytes]] = {}
        with suppress(TooManyPaths):  # then each blob stays
            paths = history.blob_paths()
            for path, object_id in self._indexed():
                paths.setdefault(object_id, set()).add(path)
        for source, source_headers in headers:
            blobs = [
                object_id for object_id, header in source_headers.items() if header.kind == BLOB
            ]
            for object_id, content in source.contents(blobs):
                size = source_headers[object_id].size
                where = [self._work_tree + path for path in paths.get(object_id, ())]
                is_private = self._is_private_blob(content, size, where)
                if is_private or not source.is_sound(object_id, content):
                    private.add(object_id)
        self.incomplete = history.commits_with({*private, *before})
        return private

    def _add_history(
        self, history: History, source: Objects, headers: Mapping[bytes, Header]
    ) -> set[bytes]:
        """Adds commits and trees; returns the private ones: with a secret in the text, damaged, or
        too large to be read."""
        private = {object_id for object_id, header in headers.items() if header.kind not in KINDS}
        history_ids = [
            object_id
            for object_id, header in headers.items()
            if header.kind != BLOB and object_id not in private
        ]
        scanner = self._classes.scanner
        for object_id, content in source.contents(history_ids):
            kind = headers[object_id].kind
            data = content.read(MAX_HISTORY_BYTES)
            if len(data) == MAX_HISTORY_BYTES or not source.is_sound(object_id, content):
                private.add(object_id)
                continue
            try:
                history.add(object_id, kind, data)
            except ValueError:
                private.add(object_id)
            if kind != TREE and scanner is not None and scanner.scan(data):
                private.add(object_id)
        return private

    def _indexed(self) -> Iterable[tuple[bytes, bytes]]:
        """Yields the path and the object of each entry of the indexes of the repository."""
        linked = self._inside + b"worktrees"
        for git in (
            self._git,
            *(linked + b"/" + name for name in _names(self._store, self._full, linked)),
        ):
            yield from index_entries(self._store, self._full, git).items()

    def _is_private_blob(self, content: BinaryIO, size: int, paths: Collection[bytes]) -> bool:
        """`paths`: where new commits and indexes have it."""
        if size == 0:
            return False
        hash, has_secret = self._read(content, size)
        if not paths or hash in self._classes.private:
            return self._work_hash_is(hash, paths) is False
        if self._work_hash_is(hash, paths):
            return False
        if not self._has_work_tree:  # the paths in a bare repository are no files of the directory
            return has_secret() or any(is_private(os.path.basename(path)) for path in paths)
        if any(self._classes.is_private(path) for path in paths):
            return True
        return has_secret() and not all(self._classes.is_tracked(path) for path in paths)

    def _work_hash_is(self, hash: str, paths: Iterable[bytes]) -> bool:
        """Whether the work has this content at one of these paths."""
        return self._has_work_tree and any(self._classes.work_hash(path) == hash for path in paths)

    def _read(self, content: BinaryIO, size: int) -> tuple[str, Callable[[], bool]]:
        """Returns the hash of a blob's content, and what tells whether it has a secret."""
        scanner = self._classes.scanner
        if scanner is None:
            return hash_stream(content).hash, lambda: False
        if size <= MAX_HELD_BYTES:
            data = content.read()
            return hash_bytes(data), lambda: bool(scanner.scan(data))
        reader = ScanningReader(content, scanner)
        hash = hash_stream(reader).hash  # type: ignore[arg-type]  # it has what is used of BinaryIO
        return hash, lambda: bool(reader.findings)
