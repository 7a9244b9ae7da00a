"""Images of trees: what the kernel mounts instead of asking a process of ours.

    images/<root>-<owner>.erofs    0444; made under a hidden name, synced, renamed

An image shows a tree as the mount does: the same modes and times, each file and link its own
inode. It holds names, attributes, links, and the blobs that are rows (all up to SMALL bytes,
and nodes). Every other file is a size with two extended attributes that make overlayfs take
its data from `objects/` (`ab/cdef…`), where the image's mount is the lower layer and `objects/`
the data-only one below it:

    -o metacopy=on,redirect_dir=on,lowerdir=MOUNT::OBJECTS

So the image is small, and all images share the page cache of the objects. Mounted without
that overlay, such files read as zeros.

An image is made of its tree alone: one root and one owner give the same bytes everywhere, down
to the file system's uuid. It is a file and not a head: a head would keep its tree from being
collected, and what can be made again in a second must not. gc calls `trim`, which removes the
images of trees that have gone, and those used longest ago where a limit says so. That an
image's objects are still there follows from its root being there (whoever mounts it has a
head that keeps it); `ensure` checks that. A mounted image may be removed, since the kernel
holds it; who finds it gone before it was mounted asks `ensure` again.

Unlike the mount, an image is made whole or not at all: a blob that is damaged or missing, or
that has another size than its tree says, is an error of `ensure`. What is in `objects/` is
not read, and never verified by the kernel; that is what fsck is for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from . import locks
from .backend import SMALL, Total
from .digest import Hasher, is_hash
from .erofs import Attr, Directory, File, Node, Symlink
from .erofs.writer import write
from .errors import Corrupt, Failed, NotFound, Refused
from .nodes import directory
from .nodes.directory import Entry, Properties
from .store import Store
from .trees import tree

FOLDER = "images"
SUFFIX = ".erofs"
VERSION = 1  # of what is made of a tree; another one never meets an old image
YEAR_2000 = 946_684_800  # mtime of what was not preserved, as in the mount
METACOPY = (b"trusted.overlay.metacopy", b"")
REDIRECT = b"trusted.overlay.redirect"


def ensure(store: Store, root: str, *, uid: int | None = None, gid: int | None = None) -> Path:
    """The image of a tree, made if it is not there yet. The owner of all that is in it is this
    process's, unless told.

    Raises NotFound (no such tree), Corrupt, Invalid (the tree has what no image can), Refused
    (a store in memory), Failed.
    """
    if store.root is None:
        raise Refused("a store in memory has no images; use one on disk")
    if not is_hash(root) or not store.blobs.info([root]):
        raise NotFound(f"no tree {root} in this store")
    owner = (os.geteuid() if uid is None else uid, os.getegid() if gid is None else gid)
    path = store.root / FOLDER / f"{root}-{owner[0]}.{owner[1]}.v{VERSION}{SUFFIX}"
    if not _use(path):
        with locks.held(store.root, _lock(path.name), lambda: None):
            if not _use(path):  # nobody else has made it meanwhile
                _make(store, root, owner, path)
    return path


def trim(
    store: Store,
    exceeded: Callable[[Total], bool],
    kept: Total,
    gone: Collection[str] = (),
    *,
    dry_run: bool = False,
) -> list[str]:
    """Remove the images of trees that are not stored, or are in `gone`; then those used longest
    ago, as long as they and the content that is `kept` are too much together. Returns the
    names of what went.
    """
    total, full, removed = replace(kept), False, []
    found = _found(store)
    stored = store.blobs.info({_root(path) for path, _ in found}).keys() - set(gone)
    for path, size in found:
        if _root(path) in stored and not full:
            total.bytes += size
            total.files += 1
            full = exceeded(total)
        if full or _root(path) not in stored:
            removed.append(f"{FOLDER}/{path.name}")
            if not dry_run:
                with suppress(OSError):  # it was no content
                    path.unlink()
    return removed


def roots(store: Store) -> set[str]:
    """The trees that have an image."""
    return {_root(path) for path, _ in _found(store)}


def _found(store: Store) -> list[tuple[Path, int]]:
    """The images with their sizes, the last one used first. What a killed process has begun
    to write is removed."""
    if store.root is None:
        return []
    found = []
    with suppress(FileNotFoundError):
        for path in sorted((store.root / FOLDER).iterdir()):
            if path.name.startswith("."):
                with locks.held(store.root, _lock(path.name[1:]), lambda: None), suppress(OSError):
                    path.unlink()
            elif path.name.endswith(SUFFIX) and is_hash(_root(path)):
                with suppress(FileNotFoundError):  # somebody else trims
                    stat = path.stat()
                    found.append((stat.st_mtime_ns, path, stat.st_size))
    return [(path, size) for _, path, size in sorted(found, reverse=True)]


def _root(path: Path) -> str:
    return path.name[:64]


def _lock(name: str) -> str:
    return f"{FOLDER}-{name}"


def _use(path: Path) -> bool:
    """Is it there? Then it is used now: its mtime is when it was used last."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise Failed(f"cannot use {path}: {error.strerror}") from None
    return True


def _make(store: Store, root: str, owner: tuple[int, int], path: Path) -> None:
    """Caller holds the lock of that name."""
    temp = path.with_name(f".{path.name}")
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        try:
            with temp.open("wb") as out:
                write(
                    out,
                    _Tree(store, owner).directory(root),
                    uuid=Hasher(path.name.encode()).digest(length=16),
                    epoch=YEAR_2000,
                    shared=[METACOPY],
                    fetch=lambda keys: _contents(store, keys),
                )
                out.flush()
                os.fchmod(out.fileno(), 0o444)
                os.fsync(out.fileno())
            temp.rename(path)
        except BaseException:
            temp.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise Failed(f"cannot write {path}: {error.strerror}") from None


def _contents(store: Store, hashes: list[str]) -> Iterator[bytes]:
    """Also of what is large: a node that came as a plain blob first is a file."""
    for hash, data in zip(hashes, store.blobs.contents(hashes), strict=True):
        yield store.get(hash) if data is None else data


class _Tree:
    """A tree of the store as the writer wants it; a directory is read when it gets its place."""

    def __init__(self, store: Store, owner: tuple[int, int]) -> None:
        self._store = store
        self._owner = owner
        self._plain = Attr(0o644, *owner, YEAR_2000)
        self._executable = Attr(0o755, *owner, YEAR_2000)
        self._link = Attr(0o777, *owner, YEAR_2000)

    def directory(self, hash: str) -> Directory:
        own = tree.preserved(self._store, hash)
        return Directory(self._kept(self._executable, own), self._entries(hash))

    def _entries(self, hash: str) -> Iterable[tuple[bytes, Node]]:
        entries = tree.load(self._store, hash)
        large = self._large(entries.values())
        for name, entry in entries.items():
            if isinstance(entry, directory.File):
                attr = self._executable if entry.executable else self._plain
                file, size = entry.digest.hash, entry.digest.size_bytes
                attr = self._kept(attr, entry.properties)
                if file in large:
                    target = f"/{file[:2]}/{file[2:]}".encode()
                    yield name, File(attr, size, None, (METACOPY, (REDIRECT, target)))
                else:
                    yield name, File(attr, size, file)
            elif isinstance(entry, directory.Symlink):
                kept = entry.properties and replace(entry.properties, unix_mode=None)
                yield name, Symlink(self._kept(self._link, kept), entry.target)
            else:
                yield name, self.directory(entry.digest.hash)

    def _large(self, entries: Iterable[Entry]) -> set[str]:
        """The hashes of what has a file in `objects/`. Raises NotFound, Corrupt."""
        asked = {
            entry.digest.hash: entry.digest.size_bytes
            for entry in entries
            if isinstance(entry, directory.File) and entry.digest.size_bytes > SMALL
        }
        found = self._store.blobs.info(asked) if asked else {}
        for hash, size in asked.items():
            if hash not in found:
                raise NotFound(f"no blob {hash} in this store, and a tree has it; run `casfs fsck`")
            if found[hash].size != size:
                raise Corrupt(f"blob {hash} has {found[hash].size} bytes, its tree says {size}")
        return {hash for hash, info in found.items() if info.type is None}

    def _kept(self, attr: Attr, own: Properties | None) -> Attr:
        """The attributes with what was preserved in place of the usual."""
        if own is None:
            return attr
        mode = attr.mode if own.unix_mode is None else own.unix_mode & 0o7777
        seconds, nanos = own.mtime or (YEAR_2000, 0)
        return Attr(mode, *self._owner, seconds, nanos)
