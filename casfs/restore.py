"""Tree → host directory. Complete or not there: the tree is built beside its target and
renamed into place, so an interrupted restore leaves no half directory under the name that
was asked for.

Everything is created relative to directory descriptors that this module opened itself,
and with O_EXCL, so nothing that lies in the target can lead a write out of it.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from pathlib import Path
from typing import BinaryIO

from . import tree
from .directory import File, Symlink
from .errors import Failed, Refused
from .objects import write_all
from .store import Store

DIR_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def restore(store: Store, root: str, target: Path) -> None:
    """Write the tree `root` to `target`, which must not exist or be an empty directory.

    Raises Refused where something is there, NotFound, Corrupt, Failed.
    """
    tree.load(store, root)
    try:
        if target.is_symlink() or (target.exists() and not target.is_dir()):
            raise Refused(f"{target} is there and no directory")
        if target.is_dir() and any(target.iterdir()):
            raise Refused(f"{target} is not empty; restore into a new or empty directory")
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = target.parent / f".casfs.{secrets.token_hex(8)}"
        aside.mkdir()
    except OSError as error:
        raise Failed(f"cannot restore to {target}: {error.strerror}") from None
    try:
        _fill(store, root, os.open(aside, DIR_FLAGS))
        aside.rename(target)  # takes the place of an empty directory
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise Failed(f"cannot restore to {target}: {error.strerror}") from error
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def _fill(store: Store, root: str, fd: int) -> None:
    """Write the entries of a directory node into the empty directory `fd`; closes it."""
    try:
        for name, entry in tree.load(store, root).items():
            if isinstance(entry, File):
                _file(store, entry, fd)
            elif isinstance(entry, Symlink):
                os.symlink(entry.target, name, dir_fd=fd)
            else:
                os.mkdir(name, 0o755, dir_fd=fd)
                _fill(store, entry.digest.hash, os.open(name, DIR_FLAGS, dir_fd=fd))
        os.fchmod(fd, 0o755)
    finally:
        os.close(fd)


def _file(store: Store, entry: File, fd: int) -> None:
    with (
        store.blobs.open(entry.digest.hash) as source,
        open(os.open(entry.name, NEW_FILE, 0o600, dir_fd=fd), "wb", buffering=0) as out,
    ):
        _copy(source, out.fileno())
        os.fchmod(out.fileno(), 0o755 if entry.executable else 0o644)


def _copy(source: BinaryIO, out: int) -> None:
    """Copy in the kernel where the blob is a file, holes kept."""
    try:
        fd = source.fileno()
    except OSError:  # a small blob, in memory
        write_all(out, source.read())
        return
    size = os.fstat(fd).st_size
    at = 0
    while at < size:
        try:
            at = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break  # a hole up to the end
        end = os.lseek(fd, at, os.SEEK_HOLE)
        while at < end:
            at += _copy_range(fd, out, at, end - at)
    os.ftruncate(out, size)


def _copy_range(source: int, out: int, at: int, count: int) -> int:
    """Bytes copied. copy_file_range shares extents where it can, but refuses to cross some
    file systems; sendfile crosses all."""
    count = min(count, 1 << 30)
    try:
        return os.copy_file_range(source, out, count, at, at)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP):
            raise
    os.lseek(out, at, os.SEEK_SET)
    return os.sendfile(out, source, at, count)
