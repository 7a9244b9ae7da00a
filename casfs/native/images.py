"""EROFS images of trees, which the kernel mounts without a process of ours.

    images/<root>[@<times>]-<owner>.erofs    0444; made under a hidden name, synced, renamed

An image shows a tree as the mount does: the same modes and times, each file and link its own
inode. It holds names, attributes, links, and the blobs that are rows (all up to INLINE_MAX_BYTES,
and nodes). A file in a hot pack is an extent of that, which is mounted with it as a device; what is
in a cold one is made hot first. A mapped file has its blocks in such packs or in objects. Every
other file is a size with two extended attributes that make overlayfs take its data from `objects/`
(`ab/cdef…`), where the image's mount is the lower layer and `objects/` the data-only one below it:

    -o metacopy=on,redirect_dir=on,lowerdir=MOUNT::OBJECTS

A file in a remote only has them as well; its data is in another data-only layer, the mount's
`.casfs/objects`. The label of an image says that it needs that (`needs_remote`), and such an image
is made anew by each `ensure` with `recheck`, since what was read is local by now. On a machine of a
shared store, where `objects/` is a cache, every image with such files says so and is never stale.

So the image is small, and all images share the page cache of objects and packs. Mounted without
that overlay, such files read as zeros.

An image is a function of its tree and times, its owner, and where its files are in which packs:
those give the same bytes everywhere, down to the file system's uuid (but a file that is a node,
too, is inline in the image of a store that has it as one). The packs are named in its table of
devices, and `ensure` makes it anew where one is gone. So gc may remove or rewrite a pack at any
time: mounts keep those that they have open. But it frees ranges of a pack only of blobs that have
no row at all, not of those that have moved, and only after `evict`: whatever an image shows that
can be asked for has a row. It is a file and not a head: a head would keep its tree from being
collected, and a cache of seconds of work must not. gc calls `evict`, which removes the images of
trees that are gone, and the least recently used ones where a limit says so. An image's objects
exist as long as its root does (which the head of its user keeps); `ensure` checks that, and on
request looks at size and kind of each object again. A mounted image may be removed, since the
kernel keeps it; a caller that finds it gone before mounting calls `ensure` again.

Unlike the mount, an image is made whole or not at all: a blob that is damaged or missing, or
that has another size than its tree says, is an error of `ensure`. The content of `objects/` is
not read (`check` can do that), but protected from writes (`casfs.native.object_protection`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

from casfs.backend.capabilities import Following, Packed, StagingChanges, Tiered
from casfs.backend.protocols import Total
from casfs.digest import Hasher, TreeHash, is_hash
from casfs.errors import Corrupt, Failed, NotFound
from casfs.native.erofs import devices
from casfs.native.erofs.model import Directory
from casfs.native.erofs.writer import write
from casfs.native.image_tree import METACOPY, YEAR_2000, Cold, ImageTree
from casfs.native.object_protection import device_path
from casfs.store.nodes.directory import File
from casfs.store.store import Store
from casfs.system import locks
from casfs.system.files import os_errors, replacing
from casfs.trees import tree
from casfs.trees.dated import DatedTree

Made = TypeVar("Made")
FOLDER = "images"
SUFFIX = ".erofs"
VERSION = 1  # of the encoding; part of the name, so an old image is not used
REMOTE_LABEL = b"remote"


def ensure(
    store: Store,
    root: DatedTree,
    *,
    uid: int | None = None,
    gid: int | None = None,
    recheck: bool = False,
) -> Path:
    """Returns the image of a tree, made if it is missing. `uid`, `gid`: the owner of every file in
    it, by default this process's; `recheck`: looks at the objects of an image that is there (those
    of a new one are always looked at). Raises NotFound (no such tree), Corrupt, Invalid (the tree
    cannot be an image), Failed."""
    _check_stored(store, root)
    owner = (os.geteuid() if uid is None else uid, os.getegid() if gid is None else gid)
    path = _path(store, root, owner)
    if recheck and not isinstance(store.backend, Following) and _is_usable(path):
        try:
            is_stale = check(store, root) or needs_remote(path)
        except Cold:
            is_stale = True
        if is_stale:
            path.unlink(missing_ok=True)
    if not _is_usable(path):
        with locks.held(store.root, _lock(path.name), lambda: None):
            while not _is_usable(path):  # still, now under the lock
                purged = store.purged.replaced()
                _hot(store, root, lambda: _make(store, root, owner=owner, path=path))
                # A purge that came meanwhile has looked for images before this was one.
                store.purged.recheck()
                if store.purged.replaced() is not purged:
                    path.unlink(missing_ok=True)
    return path


def of_tree(store: Store, root: DatedTree) -> Path | None:
    """Returns the image of a tree, with this process's owner; None where there is none."""
    path = _path(store, root, (os.geteuid(), os.getegid()))
    return path if path.exists() else None


def _path(store: Store, root: DatedTree, owner: tuple[int, int]) -> Path:
    return store.root / FOLDER / f"{root.name}-{owner[0]}.{owner[1]}.v{VERSION}{SUFFIX}"


def check(store: Store, root: DatedTree, *, content: bool = False) -> bool:
    """Looks at the objects of a tree: each is a regular file of the right size and owner. With
    `content` each is read and hashed as well. Returns whether some are in a remote only, which are
    verified when they are read. Raises as `ensure`."""
    image_tree = ImageTree(store, (0, 0), content=content)
    _exhaust(image_tree.root(root))
    return image_tree.remote


def needs_remote(image: Path) -> bool:
    """Whether files of an image are in a remote only. Raises NotFound, Corrupt."""
    try:
        with image.open("rb") as source:
            return devices.read_label(source) == REMOTE_LABEL
    except OSError as error:
        raise NotFound(f"cannot read the image {image}: {error.strerror}") from None


def _exhaust(directory: Directory) -> None:
    for _, node in directory.entries:
        if isinstance(node, Directory):
            _exhaust(node)


def write_layer(store: Store, old: DatedTree, new: DatedTree, path: Path) -> int:
    """Write to `path` an image of the differences of the tree `new` from `old`, a layer above the
    image of `old`; returns its size. The caller owns it and can make it again: it is not synced.
    Raises as `ensure`."""
    _check_stored(store, old)
    _check_stored(store, new)
    return _hot(store, new, lambda: _make_layer(store, old, new=new, path=path))


def _make_layer(store: Store, old: DatedTree, new: DatedTree, path: Path) -> int:
    with os_errors(f"cannot write {path}"), path.open("wb") as out:
        image_tree = ImageTree(store, (os.geteuid(), os.getegid()))
        _write(store, image_tree, top=image_tree.changes(old, new), name=path.name, out=out)
        os.fchmod(out.fileno(), 0o444)
        return out.tell()


def objects(image: Path) -> Path:
    """Returns the data-only layer below an image: the directory of the large files."""
    return image.parent.with_name("objects")


def evict(
    store: Store,
    exceeded: Callable[[Total], bool],
    kept: Total,
    gone: Collection[str] = (),
    *,
    dry_run: bool = False,
) -> list[str]:
    """Remove the images of trees that are not stored, or are in `gone`; then the least recently
    used ones, as long as they and the `kept` content together exceed the limit. Returns the names
    of the removed files."""
    total = replace(kept)
    full = False
    removed = []
    images = _list(store)
    stored = store.blobs.info({root_of(path) for path, _, _ in images}).keys() - set(gone)
    for path, _, size in images:
        if root_of(path) in stored and not full:
            total.bytes += size
            total.files += 1
            full = exceeded(total)
        if full or root_of(path) not in stored:
            removed.append(f"{FOLDER}/{path.name}")
            if not dry_run:
                with suppress(OSError):  # an image is a cache
                    path.unlink()
    return removed


def roots(store: Store, used_since: int = 0) -> set[TreeHash]:
    """Returns the trees that have an image that was used since then (UTC seconds)."""
    return {root_of(path) for path, used_at, _ in _list(store) if used_at >= used_since}


def _list(store: Store) -> list[tuple[Path, float, int]]:
    """Returns the images with their time of last use (UTC seconds) and size, the most recently
    used first. Removes the temporary files of killed processes."""
    images = []
    with suppress(FileNotFoundError):
        for path in sorted((store.root / FOLDER).iterdir()):
            if path.name.startswith("."):
                with locks.held(store.root, _lock(path.name[1:]), lambda: None), suppress(OSError):
                    path.unlink()
            elif path.name.endswith(SUFFIX) and is_hash(root_of(path)):
                with suppress(FileNotFoundError):  # removed by a concurrent gc
                    stat = path.stat()
                    images.append((path, stat.st_mtime, stat.st_size))
    return sorted(images, key=lambda image: -image[1])


def root_of(path: Path) -> TreeHash:
    """Returns the tree of an image."""
    return cast(TreeHash, path.name[:64])


def _lock(name: str) -> str:
    return f"{FOLDER}-{name}"


def _is_usable(path: Path) -> bool:
    """Sets the time of last use, the mtime. Returns False where it, or one of
    its devices, is missing."""
    try:
        os.utime(path)
        with path.open("rb") as image:
            for device in devices.read(image):
                device_path(path.parent.parent, device.name).stat()
    except (FileNotFoundError, Corrupt):
        return False
    except OSError as error:
        raise Failed(f"cannot use {path}: {error.strerror}") from None
    return True


def _hot(store: Store, root: DatedTree, action: Callable[[], Made]) -> Made:
    """Makes an image, after cold files of the tree are made hot."""
    try:
        return action()
    except Cold:
        if isinstance(store.backend, Tiered):
            files = [entry for _, entry in tree.walk(store, root.tree) if isinstance(entry, File)]
            hashes: set[str] = {file.digest.hash for file in files}
            blobs = store.whole.blobs  # patches are hidden
            assert isinstance(blobs, Packed)
            if isinstance(blobs, StagingChanges):
                for block_map in blobs.block_maps(hashes).values():
                    hashes.update(block_map.sources)
            places = blobs.places(hashes)
            cold = {hash for hash, location in places.items() if location.offset is None}
            store.backend.tiers.warm(cold)
    return action()


def _make(store: Store, root: DatedTree, owner: tuple[int, int], path: Path) -> None:
    """Caller holds the lock of that name."""
    with os_errors(f"cannot write {path}"):
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with replacing(path, durable=True, temp=path.with_name(f".{path.name}")) as out:
            image_tree = ImageTree(store, owner)
            _write(store, image_tree, top=image_tree.root(root), name=path.name, out=out)
            os.fchmod(out.fileno(), 0o444)


def _write(store: Store, image_tree: ImageTree, top: Directory, name: str, out: BinaryIO) -> None:
    write(
        out,
        top,
        uuid=Hasher(name.encode()).digest(length=16),
        epoch=YEAR_2000,
        shared=[METACOPY],
        fetch=lambda keys: _contents(store, keys),
        label=lambda: REMOTE_LABEL if image_tree.remote else b"",
    )


def _check_stored(store: Store, root: DatedTree) -> None:
    if not is_hash(root.tree) or not store.blobs.info([root.tree]):
        raise NotFound(f"no tree {root.tree} in this store")


def _contents(store: Store, hashes: list[str]) -> Iterator[bytes]:
    """Yields contents, large ones too: a node that was stored as a plain blob first is a file."""
    for hash, data in zip(hashes, store.blobs.get_many(hashes), strict=True):
        yield store.get(hash) if data is None else data
