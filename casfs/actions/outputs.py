"""The outputs of an action: taken from where they lie, and put back there.

Outputs are paths relative to the input directory. They are taken as one tree that holds
them at their paths. Put back, that tree is written beside its place first, complete and
verified; then each output changes places with what is there in one step, so nobody sees
half of it and nothing else is touched. Parents are entered one by one without following
symlinks: an output cannot lead out of the input directory.

What is beside the places lies in the input directory itself, since only there it is on their
file system. Its writer holds a lock on it: what is not locked was left by one that was
killed, and is deleted by the next.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from casfs.digest import Digest
from casfs.errors import Failed, NotFound, Refused
from casfs.store import Store
from casfs.system import rmtree
from casfs.system.locks import is_at, lock_file
from casfs.system.paths import DIR_FLAGS, open_directory, printable
from casfs.system.syscalls import exchange
from casfs.trees import tree
from casfs.trees.restore.write import WriteProgress, write_tree
from casfs.trees.snapshot import walker
from casfs.trees.snapshot.ignore import IgnoreRules
from casfs.write_batch import Batch

ASIDE = ".casfs.out."
PRIVATE = re.compile(rb"\.casfs\.(out\.)?[0-9a-f]{16}")  # directories on their way, also restore's


class Only(IgnoreRules):
    """Leaves out all but the given paths, what is below them, and the way to them."""

    def __init__(self, paths: Collection[str]) -> None:
        super().__init__()
        self._paths = frozenset(os.fsencode(path) for path in paths)
        self._above = frozenset(above for path in self._paths for above in _parents(path))

    def ignores(self, path: bytes, name: bytes, *, directory: bool) -> bool:
        if path in self._paths or (directory and path in self._above):
            return False
        return not any(above in self._paths for above in _parents(path))


def _parents(path: bytes) -> Iterator[bytes]:
    while (slash := path.rfind(b"/")) > 0:
        path = path[:slash]
        yield path


def parents(paths: Collection[str]) -> set[str]:
    """The directories on the way to the paths."""
    return {os.fsdecode(above) for path in paths for above in _parents(os.fsencode(path))}


def make_parents(root: Path, paths: Collection[str]) -> None:
    """Make the directories that the outputs will lie in. Raises Refused, Failed."""
    for path in paths:
        os.close(_open(root, path.rpartition("/")[0], make=True))


def take(batch: Batch, root: Path, paths: Collection[str]) -> Digest:
    """Store the outputs of the input directory `root` as one tree."""
    return walker.snapshot(batch, root, Only(paths))


def missing(store: Store, outputs: str, paths: Collection[str]) -> list[str]:
    """Which of the paths a tree does not hold."""
    return [path for path in paths if not _holds(store, outputs, os.fsencode(path))]


def _holds(store: Store, root: str, path: bytes) -> bool:
    try:
        tree.resolve(store, root, path)
    except NotFound:
        return False
    return True


class Placement:
    """Outputs that are ready to take their places."""

    def __init__(self, root: Path, aside: Path | None, paths: Collection[str]) -> None:
        self._root = root
        self._aside = aside
        self._paths = paths

    def place(self) -> None:
        """Let each take its place. Raises Refused (a symlink is in the way), Failed."""
        for path in self._paths if self._aside else ():
            assert self._aside is not None
            parent, _, name = path.rpartition("/")
            source = _open(self._aside, parent, make=False)
            try:
                target = _open(self._root, parent, make=True)
                try:
                    _swap(source, target, os.fsencode(name))
                except OSError as error:
                    where = self._root / path
                    raise Failed(f"cannot put back {where}: {error.strerror}") from None
                finally:
                    os.close(target)
            finally:
                os.close(source)


@contextmanager
def prepared(store: Store, outputs: str, root: Path, paths: Collection[str]) -> Iterator[Placement]:
    """Write the tree `outputs` beside its place. Raises Failed, NotFound, Corrupt."""
    if not paths:
        yield Placement(root, None, ())
        return
    _sweep(root)
    aside, fd = _aside(root)
    try:
        _write(store, outputs, aside, fd)
        yield Placement(root, aside, paths)
    finally:
        with suppress(Failed):  # what was replaced goes with it; what stays is no input
            rmtree.delete(aside)
        os.close(fd)


def _aside(root: Path) -> tuple[Path, int]:
    """(a new directory in `root`, the descriptor that says its writer lives)"""
    try:
        while True:
            path = root / f"{ASIDE}{secrets.token_hex(8)}"
            path.mkdir(0o700)
            fd = _claimed(path)
            if fd is not None:  # else somebody has swept it before it was locked
                return path, fd
    except OSError as error:
        raise Failed(f"cannot write to {root}: {error.strerror}") from None


def _sweep(root: Path) -> None:
    """Delete what writers that are dead have left; what cannot be deleted is no input."""
    with suppress(OSError):
        for name in os.listdir(root):
            path = root / name
            if name.startswith(ASIDE) and PRIVATE.fullmatch(os.fsencode(name)):
                fd = _claimed(path)
                if fd is not None:
                    with suppress(Failed):
                        rmtree.delete(path)
                    os.close(fd)


def _claimed(path: Path) -> int | None:
    """A descriptor that locks a directory; None where somebody else does, or it is gone."""
    try:
        fd = lock_file(path, DIR_FLAGS)
    except FileNotFoundError:
        return None
    if fd is None or is_at(fd, path):
        return fd
    os.close(fd)
    return None


def _write(store: Store, root: str, target: Path, fd: int) -> None:
    progress = WriteProgress()
    try:
        write_tree(store, root, fd, progress)
    except OSError as error:
        at = printable(b"/".join(progress.path))
        raise Failed(f"cannot write {target.parent / at}: {error.strerror}") from None


def _open(root: Path, parent: str, *, make: bool) -> int:
    """Opens the directory `parent` below `root`, made where it is missing."""
    top = os.open(root, DIR_FLAGS & ~os.O_NOFOLLOW)
    try:
        return open_directory(top, map(os.fsencode, parent.split("/") if parent else ()), make=make)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            part = os.fsdecode(error.filename)
            raise Refused(f"{root / parent}: {part} is not a directory") from None
        raise Failed(f"cannot enter {root / parent}: {error.strerror}") from None
    finally:
        os.close(top)


def _swap(source: int, target: int, name: bytes) -> None:
    """Let `name` in `source` and in `target` change places; in `target` it may be missing."""
    try:
        os.stat(name, dir_fd=target, follow_symlinks=False)
    except FileNotFoundError:
        os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)
        return
    if exchange(source, target, name):
        return
    old = b".casfs." + secrets.token_hex(8).encode()  # two steps where one is not to be had
    os.rename(name, old, src_dir_fd=target, dst_dir_fd=source)
    os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)
