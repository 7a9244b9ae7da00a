"""What a recorded git repository is: its HEAD and refs, its stashes, what its index tracks, and the
files that git's commands go by, such as its configuration and an unfinished merge.

All else in `.git` is how git keeps that, or a trace: packs or loose objects, packed or loose refs,
the stats in an index, logs, locks, what was fetched. Two recordings with the same state are the
same repository, whatever `git gc` or `git status` have written. What other work trees of a
repository own in it is theirs.

Read from the files in a tree, without git: git runs programs that a repository's configuration
names, and agents write that.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from casfs.digest import TreeHash
from casfs.errors import CasfsError
from casfs.store.nodes.directory import Entry, File, Subdirectory
from casfs.store.store import Store
from casfs.trees import tree
from casfs.trees.git import index, objects

GIT = b".git"
HEAD = b"HEAD"
INDEX = b"index"
PACKED_REFS = b"packed-refs"
STASH_LOG = b"logs/refs/stash"  # the stashes but the last are in the log of its ref alone
LOGS = b"logs/"
HEAD_LOG = LOGS + HEAD
MAX_LOGGED = 50  # entries of it, the newest
OBJECTS = b"objects"
LFS = b"lfs"  # large files, which are kept as objects are, by their SHA-256
OBJECT_FOLDERS = OBJECTS, LFS
ALTERNATES = b"/objects/info/alternates"  # where the objects are that it has not itself
REFS = b"refs"
OTHER_WORK_TREES = b"worktrees"  # each is a git directory of its own, and so is each submodule's
MODULES = b"modules"
NO_STATE = *OBJECT_FOLDERS, OTHER_WORK_TREES, MODULES  # in which nothing is state by itself
COMMON = b"commondir"  # in the git directory of a linked work tree: where the refs are
WORK_TREE = b"gitdir"  # and where its `.git` is, which leads back
SYMBOLIC = b"ref: "
BRANCHES = b"refs/heads/"
OBJECT_ID = re.compile(rb"(?:[0-9a-f]{40}|[0-9a-f]{64})\Z")
# What git writes on the way, and what no command goes by.
TRACES = re.compile(
    rb"(?:logs/.*|info/refs|FETCH_HEAD|ORIG_HEAD|COMMIT_EDITMSG|gc\.log|gc\.pid|sharedindex\..*|.*\.lock"
    rb"|fsmonitor--daemon.*|index\.stash\..*|tmp[_-].*)\Z",
    re.DOTALL,
)
MODE = struct.Struct(">I")
MODE_AT = 24  # of an entry of an index: behind two times, a device and an inode
# The flags of an index entry that are state: the others are its length, and git's own notes.
COMPARED_FLAGS = 0x8000 | 0x3000  # assume-unchanged, stage
COMPARED_EXTENDED = 0x4000 | 0x2000  # skip-worktree, intent-to-add
SHORT_ID_CHARS = 7

Tracked = tuple[object, ...]


@dataclass(frozen=True)
class RepositoryState:
    """`refs`: the content of each by its name, HEAD among them; `stashes`: their commits, oldest
    first; `tracked`: what the index has; `index`, `stash_log`: the files with these; `files`: what
    else git's commands go by, by path; `held`: branches that a work tree elsewhere has checked
    out."""

    refs: Mapping[bytes, bytes]
    stashes: tuple[bytes, ...] = ()
    tracked: Tracked = ()
    index: File | None = None
    stash_log: File | None = None
    files: Mapping[bytes, Entry] = field(default_factory=dict)
    held: Collection[bytes] = ()

    @property
    def identity(self) -> tuple[object, ...]:
        """Equal for equal repositories."""
        files = {path: _content(entry) for path, entry in self.files.items()}
        return dict(self.refs), self.stashes, self.tracked, files


def read(store: Store, root: TreeHash, path: bytes) -> RepositoryState | None:
    """Returns the state of the repository at a path of a tree; None where there is none. Raises
    NotFound, Corrupt."""
    top = tree.find(store, root, path)
    if not isinstance(top, Subdirectory):
        return None
    entries = tree.load(store, top.digest.hash)
    if not isinstance(entries.get(HEAD), File):
        return None
    leaves = _leaves_of_state(store, top.digest.hash)
    index_file = leaves.get(INDEX)
    stash_log = leaves.get(STASH_LOG)
    return RepositoryState(
        _refs(store, leaves),
        _stashes(store, stash_log),
        tracked(store, index_file, top.digest.hash),
        index_file if isinstance(index_file, File) else None,
        stash_log if isinstance(stash_log, File) else None,
        {name: entry for name, entry in leaves.items() if _is_file_of_state(name)},
        _held(store, root, entries.get(OTHER_WORK_TREES)),
    )


def is_kept_by_git(path: bytes) -> bool:
    """Whether a path is in a `.git`, and of what a repository consists of: of its objects, too,
    which git writes before what names them."""
    parts = path.split(b"/")
    if GIT not in parts[:-1]:
        return False
    name = b"/".join(parts[parts.index(GIT) + 1 :])
    return not TRACES.match(name) and not name.startswith(OTHER_WORK_TREES + b"/")


def state_files(store: Store, root: TreeHash, path: bytes) -> dict[bytes, Entry]:
    """Returns the files in which the repository at a path of a tree keeps its state, by path."""
    top = tree.find(store, root, path)
    if not isinstance(top, Subdirectory):
        return {}
    leaves = _leaves_of_state(store, top.digest.hash)
    return {path + b"/" + name: entry for name, entry in leaves.items() if is_state(name)}


def is_object(path: bytes) -> bool:
    """Whether a path in a repository is of its objects."""
    return path.startswith(tuple(folder + b"/" for folder in OBJECT_FOLDERS))


def is_lost(path: bytes, change: tree.Change) -> bool:
    """Whether a change, of a path in a repository, has taken what is of no state, and which git
    cannot make again: objects, or a log of a ref."""
    if path.startswith(LOGS):
        is_empty = isinstance(change.new, File) and not change.new.digest.size_bytes
        return change.old is not None and (change.new is None or is_empty)
    return change.old is not None and is_object(path)


def is_state(path: bytes) -> bool:
    """Whether a path in a repository is of its state, in one form or another."""
    first = path.partition(b"/")[0]
    if first in NO_STATE:
        return False
    return path in (INDEX, STASH_LOG) or not TRACES.match(path)


def _leaves_of_state(store: Store, repository: TreeHash) -> dict[bytes, Entry]:
    leaves: dict[bytes, Entry] = {}
    for name, entry in tree.load(store, repository).items():
        if isinstance(entry, Subdirectory):
            if name not in NO_STATE:
                below = tree.walk(store, entry.digest.hash, name + b"/")
                leaves |= {inner: leaf for inner, leaf in below if _is_leaf(leaf)}
        else:
            leaves[name] = entry
    return leaves


def _is_file_of_state(path: bytes) -> bool:
    is_ref = path in (HEAD, PACKED_REFS, INDEX) or path.startswith(b"refs/")
    return not is_ref and not TRACES.match(path)


def _is_leaf(entry: Entry) -> bool:
    return not isinstance(entry, Subdirectory)


def _content(entry: Entry) -> object:
    if isinstance(entry, File):
        return entry.digest.hash, entry.executable
    return entry


def packed_refs(data: bytes) -> dict[bytes, bytes]:
    """Returns the id of each ref in a file of packed ones, by its name."""
    refs = {}
    for line in data.splitlines():
        id, _, name = line.partition(b" ")
        if name and not line.startswith((b"#", b"^")):
            refs[name] = id
    return refs


def _refs(store: Store, leaves: Mapping[bytes, Entry]) -> dict[bytes, bytes]:
    refs: dict[bytes, bytes] = {}
    packed = leaves.get(PACKED_REFS)
    if isinstance(packed, File):
        refs |= packed_refs(_read(store, packed))
    for path, entry in leaves.items():
        is_ref = path == HEAD or (path.startswith(b"refs/") and not path.endswith(b".lock"))
        if is_ref and isinstance(entry, File):
            refs[path] = _read(store, entry).strip()
    return refs


def _stashes(store: Store, log: Entry | None) -> tuple[bytes, ...]:
    """Each line of a log has the id before, and the one after."""
    if not isinstance(log, File):
        return ()
    lines = _read(store, log).splitlines()
    return tuple(line.split(b" ", 2)[1] for line in lines if line.count(b" ") > 1)


def tracked(store: Store, file: Entry | None, repository: TreeHash) -> Tracked:
    """Returns what an index has of each path: mode, object and flags, without stats. Of one that is
    damaged its hash: it is equal to itself alone."""
    if not isinstance(file, File):
        return ()
    with suppress(CasfsError):
        data = _read(store, file)
        for id_bytes in index.ID_BYTES:
            with suppress(ValueError, IndexError, struct.error):
                return _tracked(data, id_bytes)
        # A split index: its entries stand in another file, too.
        entries = index.entries(data, "", lambda name: _shared(store, repository, name))
        return tuple(sorted(entries.items()))
    return (file.digest.hash,)


def _tracked(data: bytes, id_bytes: int) -> Tracked:
    """Raises ValueError for an index with other entries elsewhere, or of ids of another length."""
    own, end = index.own_entries(data, id_bytes)
    if index.extension(data, end, len(data) - id_bytes) is not None:
        raise ValueError("a split index")
    entries = []
    for entry in own:
        (mode,) = MODE.unpack_from(data, entry.offset + MODE_AT)
        flags_at = entry.offset + index.STAT_BYTES + id_bytes
        (flags,) = index.FLAGS.unpack_from(data, flags_at)
        extended = 0
        if flags & index.EXTENDED_FLAG:
            (extended,) = index.FLAGS.unpack_from(data, flags_at + index.FLAGS.size)
        compared = flags & COMPARED_FLAGS, extended & COMPARED_EXTENDED
        entries.append((entry.path, mode, entry.object_id, compared))
    return tuple(entries)


def _shared(store: Store, repository: TreeHash, name: str) -> bytes:
    entry = tree.find(store, repository, name.encode())
    if not isinstance(entry, File):
        raise OSError(name)
    return _read(store, entry)


def _held(store: Store, root: TreeHash, work_trees: Entry | None) -> frozenset[bytes]:
    if not isinstance(work_trees, Subdirectory):
        return frozenset()
    heads = set()
    for folder in tree.load(store, work_trees.digest.hash).values():
        entries = tree.load(store, folder.digest.hash) if isinstance(folder, Subdirectory) else {}
        head = entries.get(HEAD)
        if isinstance(head, File) and not _leads_into(store, root, folder.name, entries):
            heads.add(_read(store, head).strip().removeprefix(SYMBOLIC))
    return frozenset(heads)


def heads_of_work_trees(store: Store, root: TreeHash, path: bytes) -> dict[bytes, bytes]:
    """Returns what the HEAD of each linked work tree names, by the path of the file."""
    heads = {}
    for name, entry in tree.below(store, root, path + b"/" + OTHER_WORK_TREES):
        is_head = name[len(path) :].count(b"/") == 3 and name.endswith(b"/" + HEAD)
        if is_head and isinstance(entry, File):
            heads[name] = _read(store, entry).strip().removeprefix(SYMBOLIC)
    return heads


def is_of_work_tree_elsewhere(
    store: Store, path: bytes, current: TreeHash, other_trees: Collection[TreeHash]
) -> bool:
    """Whether a git directory, which the tree `current` has, is of a linked work tree that is
    neither in that nor in other trees of the same directory."""
    if tree.find(store, current, path) is None:
        return False
    is_linked = False
    for root in (current, *other_trees):
        top = tree.find(store, root, path)
        entries = tree.load(store, top.digest.hash) if isinstance(top, Subdirectory) else {}
        if COMMON in entries:
            is_linked = True
            if _leads_into(store, root, path.rpartition(b"/")[2], entries):
                return False
    return is_linked


def _leads_into(store: Store, root: TreeHash, name: bytes, entries: Mapping[bytes, Entry]) -> bool:
    """Whether the work tree whose git directory has these entries is in a tree."""
    link = entries.get(WORK_TREE)
    if not isinstance(link, File):
        return False
    parts = _read(store, link).strip().rpartition(b"../")[2].split(b"/")
    # Where the tree was is not known: the end of the path leads to a `.git` that leads back.
    for start in range(len(parts)):
        back = tree.find(store, root, b"/".join(parts[start:]))
        if isinstance(back, File):
            return _read(store, back).strip().endswith(b"/" + OTHER_WORK_TREES + b"/" + name)
    return False


def _read(store: Store, file: File) -> bytes:
    data: bytes = store.blobs.get(file.digest.hash).data
    return data


def object_files(store: Store, root: TreeHash, path: bytes) -> dict[bytes, Entry]:
    """Returns the files with objects of the repository at a path of a tree, loose and packed, by
    path."""
    return {
        name: entry
        for folder in OBJECT_FOLDERS
        for name, entry in tree.below(store, root, path + b"/" + folder)
        if _is_leaf(entry)
    }


def ids_in(store: Store, path: bytes, entry: Entry) -> set[bytes]:
    """Returns the objects of a loose object's file, or of the pack whose index it is, in
    hexadecimal digits; none of any other file."""
    *_, above, name = path.split(b"/")
    for id in (above + name, name):  # a loose object, a large file
        if OBJECT_ID.match(id):
            return {id}
    if name.endswith(b".idx") and isinstance(entry, File):
        with suppress(CasfsError):
            return {id.hex().encode() for id in objects.ids_in_pack(_read(store, entry))}
    return set()


def is_named_by_content(path: bytes) -> bool:
    """Whether a file of objects has a name that says which they are, or says where others are."""
    *_, above, name = path.split(b"/")
    is_object = OBJECT_ID.match(above + name) or OBJECT_ID.match(name)
    is_pack = name.startswith(b"pack-") and name.endswith((b".pack", b".idx"))
    return bool(is_object) or is_pack or path.endswith(ALTERNATES)


def ids(state: RepositoryState) -> set[bytes]:
    """Returns the objects that a repository's refs, stashes and index name, in hexadecimal
    digits."""
    named = commit_ids(state)
    for entry in state.tracked:
        if isinstance(entry, tuple) and len(entry) == 4:
            named.add(entry[2].hex().encode())
    return {id for id in named if id.strip(b"0")}


def commit_ids(state: RepositoryState) -> set[bytes]:
    """Returns the commits and tags that a repository's refs and stashes name, in hexadecimal
    digits."""
    named = {*state.refs.values(), *state.stashes}
    return {id for id in named if OBJECT_ID.match(id) and id.strip(b"0")}


def words(before: RepositoryState | None, after: RepositoryState | None) -> list[str]:
    """Says what differs between two states, a line each, such as `main 61e3bc7 → 71a9ccb`."""
    if before is None or after is None:
        return ["made"] if before is None else ["deleted"]
    lines = []
    for name in sorted(before.refs.keys() | after.refs.keys()):
        old, new = before.refs.get(name), after.refs.get(name)
        if old != new:
            label = name.removeprefix(BRANCHES).removeprefix(b"refs/")
            lines.append(f"{label.decode(errors='replace')} {_short(old)} → {_short(new)}")
    if before.tracked != after.tracked:
        lines.append("index")
    if before.stashes != after.stashes and before.refs.get(b"refs/stash") == after.refs.get(
        b"refs/stash"
    ):
        lines.append(f"{len(before.stashes)} → {len(after.stashes)} stashes")
    for path in sorted(before.files.keys() | after.files.keys()):
        sides = [side.files.get(path) for side in (before, after)]
        if _same_content(*sides):
            continue
        lines.append(path.decode(errors="replace"))
    return lines


def logged(store: Store, before: TreeHash, after: TreeHash, path: bytes) -> list[tuple[str, str]]:
    """Returns what git has noted of the HEAD of a repository from one tree to another: the short id
    of each commit and what was done, such as `commit: Fix the parser`."""
    sides = [tree.find(store, root, path + b"/" + HEAD_LOG) for root in (before, after)]
    old, new = (_read(store, side) if isinstance(side, File) else b"" for side in sides)
    # A log only grows; one that was cut, or made anew, says nothing of what came before.
    lines = new[len(old) :].splitlines() if new.startswith(old) else []
    entries = []
    for line in lines[-MAX_LOGGED:]:
        ids, _, message = line.decode(errors="replace").partition("\t")
        if len(ids.split(" ")) > 1:
            entries.append((ids.split(" ")[1][:SHORT_ID_CHARS], message))
    return entries


def _same_content(old: Entry | None, new: Entry | None) -> bool:
    if old is None or new is None:
        return old is new
    return _content(old) == _content(new)


def same_file(old: Entry | None, new: Entry | None) -> bool:
    """Compares two files of a repository's state."""
    return _same_content(old, new)


def _short(value: bytes | None) -> str:
    if value is None:
        return "none"
    if OBJECT_ID.match(value):
        return value[:SHORT_ID_CHARS].decode()
    return value.removeprefix(SYMBOLIC).removeprefix(BRANCHES).decode(errors="replace")
