"""Images mounted by the kernel, alone and under an overlay, and what can be seen in a mount."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest

from casfs.digest import TreeHash
from casfs.native import images
from casfs.native.erofs.model import Attr, Directory
from casfs.native.erofs.writer import write
from casfs.store.store import Store
from casfs.system import mounts
from casfs.trees.dated import DatedTree
from tests.support.programs import present

DEADLINE = 60.0  # seconds


class Seen(NamedTuple):
    """`content`: of a file, the target of a link, the names in a directory. `nlink` is None where
    it is not compared."""

    mode: int
    uid: int
    gid: int
    mtime_ns: int
    nlink: int | None
    content: bytes | frozenset[bytes] | int
    xattrs: dict[str, bytes]


@contextmanager
def mounted(image: Path, point: Path, devices: Sequence[Path] = ()) -> Iterator[Path]:
    point.mkdir(exist_ok=True)
    options = ",".join(f"device={device}" for device in devices).encode()
    mounts.mount(str(image), point, "erofs", mounts.MS_RDONLY | mounts.MS_NODEV, options)
    try:
        yield point
    finally:
        mounts.unmount(point)


@contextmanager
def overlaid(lower: Path, objects: Path, point: Path) -> Iterator[Path]:
    """The mount of an image over the objects that its files get their data from."""
    point.mkdir(exist_ok=True)
    layers = os.fsencode(lower) + b"::" + os.fsencode(objects)
    options = b"metacopy=on,redirect_dir=on,lowerdir=" + layers
    mounts.mount("casfs", point, "overlay", mounts.MS_RDONLY, options)
    try:
        yield point
    finally:
        mounts.unmount(point)


@cache
def not_mountable() -> str | None:
    """Why this machine or this user cannot mount an image from a file; None if it can."""
    if os.geteuid() != 0:
        return "only root may mount"
    out = BytesIO()
    write(out, Directory(Attr(0o755, 0, 0, 0), []))
    with TemporaryDirectory() as folder:
        image = Path(folder, "image")
        image.write_bytes(out.getvalue())
        try:
            with mounted(image, Path(folder, "point")):
                return None
        except OSError as error:
            return f"this kernel mounts no EROFS from a file: {error.strerror}"


needs_native = pytest.mark.skipif(not_mountable() is not None, reason=str(not_mountable()))


def fsck(image: Path, devices: Sequence[Path] = ()) -> None:
    """No complaint by fsck.erofs, where there is one."""
    if present("fsck.erofs"):
        given = [f"--device={device}" for device in devices]
        done = subprocess.run(["fsck.erofs", *given, str(image)], capture_output=True, text=True)
        assert (done.returncode, done.stdout + done.stderr) == (0, "")


def look(top: Path, *, nlink: bool = True, holes: bool = False) -> dict[bytes, Seen]:
    """All that can be seen below `top`, by path; the root is `.`. With `holes` the size of
    a file stands for its content where it has a redirect."""
    found = {}
    paths = [os.fsencode(top)]
    while paths:
        path = paths.pop()
        found[os.path.relpath(path, os.fsencode(top))] = seen = _look(path, nlink, holes)
        if isinstance(seen.content, frozenset):
            paths += [os.path.join(path, name) for name in seen.content]
    return found


def _look(path: bytes, nlink: bool, holes: bool) -> Seen:
    info = os.lstat(path)
    try:
        attributes = os.listxattr(path, follow_symlinks=False)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:  # as through FUSE
            raise
        attributes = []
    xattrs = {name: os.getxattr(path, name, follow_symlinks=False) for name in attributes}
    content: bytes | frozenset[bytes] | int
    if stat.S_ISDIR(info.st_mode):
        content = frozenset(_names(path))
    elif stat.S_ISLNK(info.st_mode):
        content = os.readlink(path)
        assert info.st_size == len(content)
    elif holes and "trusted.overlay.redirect" in xattrs:
        content = info.st_size
    else:
        content = Path(os.fsdecode(path)).read_bytes()
        assert info.st_size == len(content)
    return Seen(
        *(info.st_mode, info.st_uid, info.st_gid, info.st_mtime_ns),
        *(info.st_nlink if nlink else None, content, xattrs),
    )


def _names(path: bytes) -> list[bytes]:
    """What a listing says: each once, and of the kind that it is."""
    with os.scandir(path) as entries:
        listed = list(entries)
    for entry in listed:
        mode = os.lstat(entry.path).st_mode
        assert entry.is_dir(follow_symlinks=False) == stat.S_ISDIR(mode)
        assert entry.is_symlink() == stat.S_ISLNK(mode)
        assert entry.inode() == os.lstat(entry.path).st_ino
    names = [entry.name for entry in listed]
    assert len(names) == len(set(names))
    return names


def shown_natively(top: Path) -> None:
    """Walks a tree of a mount until the kernel shows it alone."""
    deadline = time.monotonic() + DEADLINE
    while all(mount.point != top for mount in mounts.mounts()):
        assert time.monotonic() < deadline, f"{top} is not mounted natively"
        for path in (top, *top.iterdir()):
            if path.is_dir() and not path.is_symlink():
                os.listdir(path)
        time.sleep(0.1)


def ensure_image(store: Store, root: TreeHash, **options: Any) -> Path:
    """Returns the image of a tree without times."""
    return images.ensure(store, DatedTree(root), **options)


def write_layer(store: Store, old: TreeHash, new: TreeHash, path: Path) -> int:
    """Writes the layer of the differences of two trees without times."""
    return images.write_layer(store, DatedTree(old), DatedTree(new), path)
