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
to the file system's uuid (but where a file is a node, too: it stands in the image of a store
that has it as one). It is a file and not a head: a head would keep its tree from being
collected, and what can be made again in a second must not. gc calls `trim`, which removes the
images of trees that have gone, and those used longest ago where a limit says so. That an
image's objects are still there follows from its root being there (whoever mounts it has a
head that keeps it); `ensure` checks that. A mounted image may be removed, since the kernel
holds it; who finds it gone before it was mounted asks `ensure` again.

Unlike the mount, an image is made whole or not at all: a blob that is damaged or missing, or
that has another size than its tree says, is an error of `ensure`. What is in `objects/` is
not read; that nobody may write to it is seen to (`casfs.native.image_tree`, `casfs.native.verity`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from casfs.backend.protocols import Total
from casfs.digest import Hasher, is_hash
from casfs.errors import Failed, NotFound, Refused
from casfs.native.erofs.model import Directory
from casfs.native.erofs.writer import write
from casfs.native.image_tree import METACOPY, YEAR_2000, ImageTree
from casfs.store import Store
from casfs.system import locks
from casfs.system.files import replacing

FOLDER = "images"
SUFFIX = ".erofs"
VERSION = 1  # of what is made of a tree; another one never meets an old image


def ensure(store: Store, root: str, *, uid: int | None = None, gid: int | None = None) -> Path:
    """The image of a tree, made if it is not there yet. The owner of all that is in it is this
    process's, unless told.

    Raises NotFound (no such tree), Corrupt, Invalid (the tree has what no image can), Refused
    (a store in memory), Failed.
    """
    if store.root is None:
        raise Refused("a store in memory has no images; use one on disk")
    _check_stored(store, root)
    owner = (os.geteuid() if uid is None else uid, os.getegid() if gid is None else gid)
    path = store.root / FOLDER / f"{root}-{owner[0]}.{owner[1]}.v{VERSION}{SUFFIX}"
    if not _use(path):
        with locks.held(store.root, _lock(path.name), lambda: None):
            if not _use(path):  # nobody else has made it meanwhile
                _make(store, root, owner, path)
    return path


def write_changes(store: Store, old: str, new: str, path: Path) -> int:
    """Write to `path` an image of what the tree `new` has otherwise than `old`, to be put above
    the image of that; returns its size. It is the caller's, who can make it again: it is not
    synced. Raises as `ensure`.
    """
    _check_stored(store, old)
    _check_stored(store, new)
    try:
        with path.open("wb") as out:
            top = ImageTree(store, (os.geteuid(), os.getegid())).changes(old, new)
            _write(store, top, path.name, out)
            os.fchmod(out.fileno(), 0o444)
            return out.tell()
    except OSError as error:
        raise Failed(f"cannot write {path}: {error.strerror}") from None


def objects(image: Path) -> Path:
    """Where the large files of an image have their data: the layer below it."""
    return image.parent.with_name("objects")


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
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with replacing(path, durable=True, temp=path.with_name(f".{path.name}")) as out:
            _write(store, ImageTree(store, owner).root(root), path.name, out)
            os.fchmod(out.fileno(), 0o444)
    except OSError as error:
        raise Failed(f"cannot write {path}: {error.strerror}") from None


def _write(store: Store, top: Directory, name: str, out: BinaryIO) -> None:
    write(
        out,
        top,
        uuid=Hasher(name.encode()).digest(length=16),
        epoch=YEAR_2000,
        shared=[METACOPY],
        fetch=lambda keys: _contents(store, keys),
    )


def _check_stored(store: Store, root: str) -> None:
    if not is_hash(root) or not store.blobs.info([root]):
        raise NotFound(f"no tree {root} in this store")


def _contents(store: Store, hashes: list[str]) -> Iterator[bytes]:
    """Also of what is large: a node that came as a plain blob first is a file."""
    for hash, data in zip(hashes, store.blobs.get_many(hashes), strict=True):
        yield store.get(hash) if data is None else data
