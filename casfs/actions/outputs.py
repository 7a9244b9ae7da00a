"""The outputs of an action: recorded as a tree, and restored to their paths.

Outputs are paths relative to the input directory, recorded as one tree that holds them at
their paths. To restore them, that tree is first written to a staging directory, complete and
verified; then each output is exchanged atomically with the existing file or directory, so no
reader sees half of it. Parents are entered one by one without following symlinks: an output
cannot lead out of the input directory.

The staging directory is inside the input directory, since only that is sure to be on the
same file system. Its writer holds a lock on it; an unlocked one was left by a killed writer
and is deleted by the next.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from casfs.digest import TreeHash
from casfs.errors import Failed, Refused
from casfs.store.nodes import directory
from casfs.store.nodes.directory import Subdirectory
from casfs.store.store import Store
from casfs.store.write_batch import Batch
from casfs.system import rmtree
from casfs.system.files import closing_fd, os_errors
from casfs.system.locks import is_at, lock_file
from casfs.system.paths import DIR_FLAGS, open_directory, printable
from casfs.system.syscalls import exchange
from casfs.trees import tree
from casfs.trees.dated import DatedTree
from casfs.trees.restore import modification_order
from casfs.trees.restore.write import WriteProgress, write_tree
from casfs.trees.snapshot import walker
from casfs.trees.snapshot.derived import Surroundings
from casfs.trees.snapshot.ignore import IgnoreRules, Verdict
from casfs.trees.snapshot.report import SnapshotOptions, SnapshotReport

if TYPE_CHECKING:
    from casfs.trees.recorded_state import RecordedState

STAGING_PREFIX = ".casfs.out."
STAGING_NAME = re.compile(rb"\.casfs\.(out\.)?[0-9a-f]{16}")  # also the restore's


class OnlyPaths(IgnoreRules):
    """Excludes all but the given paths, their content and their parent directories."""

    git_is_local = True

    def __init__(self, paths: Collection[str]) -> None:
        super().__init__()
        self._paths = frozenset(os.fsencode(path) for path in paths)
        self._above = frozenset(above for path in self._paths for above in _parents(path))

    def verdict(
        self, path: bytes, name: bytes, *, directory: bool, surroundings: Surroundings | None = None
    ) -> Verdict | None:
        is_output = path in self._paths or any(above in self._paths for above in _parents(path))
        if not is_output and not (directory and path in self._above):
            return Verdict("not an output")
        return super().verdict(path, name, directory=directory, surroundings=surroundings)


def _parents(path: bytes) -> Iterator[bytes]:
    while (slash := path.rfind(b"/")) > 0:
        path = path[:slash]
        yield path


def parent_directories(paths: Collection[str]) -> set[str]:
    return {os.fsdecode(above) for path in paths for above in _parents(os.fsencode(path))}


def make_parents(root: Path, paths: Collection[str]) -> None:
    """Makes the parent directories of the outputs. Raises Refused, Failed."""
    for path in paths:
        os.close(_open(root, path.rpartition("/")[0], make=True))


def record(store: Store, batch: Batch, root: Path, paths: Collection[str]) -> RecordedState:
    """Stores the outputs below the input directory `root`; the batch is committed."""
    # What restores outputs records nothing.
    from casfs.trees.git.recorded_index import RecordedTrackedFiles
    from casfs.trees.recorded_state import RecordedState
    from casfs.trees.snapshot import policy, working_tree

    report = SnapshotReport()
    options = SnapshotOptions(scanner=policy.load(store).scanner(), must_be_whole=True)
    full = walker.snapshot(batch, root, rules=OnlyPaths(paths), report=report, options=options)
    # All of it is new, and what a program has git track is no more work for that.
    nothing = RecordedState(batch.put_directory(directory.encode([])).hash)
    return working_tree.divide(
        store,
        batch,
        full=full.dated,
        directory=root,
        report=report,
        earlier=working_tree.Earlier(
            base=nothing, tracked_at_start=RecordedTrackedFiles(store, nothing)
        ),
    )


def missing(store: Store, outputs: TreeHash, paths: Collection[str]) -> list[str]:
    """Returns the paths that a tree lacks."""
    return [path for path in paths if tree.find(store, outputs, os.fsencode(path)) is None]


class StagedOutputs:
    """Outputs in a staging directory, ready to be moved to their paths."""

    def __init__(self, root: Path, staging: Path | None, paths: Collection[str]) -> None:
        self._root = root
        self._staging = staging
        self._paths = paths

    def move(self) -> None:
        """Moves each to its path. Raises Refused (a symlink is in the way), Failed."""
        for path in self._paths if self._staging else ():
            assert self._staging is not None
            parent, _, name = path.rpartition("/")
            source = _open(self._staging, parent, make=False)
            with closing_fd(source):
                target = _open(self._root, parent, make=True)
                try:
                    _swap(source, target, os.fsencode(name))
                except OSError as error:
                    where = self._root / path
                    raise Failed(f"cannot restore {where}: {error.strerror}") from None
                finally:
                    os.close(target)


@contextmanager
def staged(
    store: Store, outputs: DatedTree, root: Path, paths: Collection[str]
) -> Iterator[StagedOutputs]:
    """Writes the tree `outputs` to a staging directory. Raises Failed, NotFound, Corrupt."""
    if not paths:
        yield StagedOutputs(root, staging=None, paths=())
        return
    _delete_abandoned(root)
    staging, fd = _make_staging(root)
    try:
        _write(store, outputs, target=staging, fd=fd)
        yield StagedOutputs(root, staging, paths)
    finally:
        with suppress(Failed):  # what remains is excluded from inputs
            rmtree.delete(staging)
        os.close(fd)


def _make_staging(root: Path) -> tuple[Path, int]:
    """Returns (a new directory in `root`, the descriptor that holds its lock)."""
    with os_errors(f"cannot write to {root}"):
        while True:
            path = root / f"{STAGING_PREFIX}{secrets.token_hex(8)}"
            path.mkdir(0o700)
            fd = _lock(path)
            if fd is not None:  # else another process deleted it before it was locked
                return path, fd


def _delete_abandoned(root: Path) -> None:
    """Deletes staging directories of dead writers, as far as possible."""
    with suppress(OSError):
        for name in os.listdir(root):
            path = root / name
            if name.startswith(STAGING_PREFIX) and STAGING_NAME.fullmatch(os.fsencode(name)):
                fd = _lock(path)
                if fd is not None:
                    with suppress(Failed):
                        rmtree.delete(path)
                    os.close(fd)


def _lock(path: Path) -> int | None:
    """Returns a descriptor that locks a directory; None if it is locked or deleted."""
    try:
        fd = lock_file(path, DIR_FLAGS)
    except FileNotFoundError:
        return None
    if fd is None or is_at(fd, path):
        return fd
    os.close(fd)
    return None


def _write(store: Store, root: DatedTree, target: Path, fd: int) -> None:
    progress = WriteProgress()
    try:
        write_tree(store, root, fd=fd, progress=progress)
        # They come into a directory that has their sources, perhaps written just before.
        entries = tree.walk(store, root.tree)
        written = {path: None for path, entry in entries if not isinstance(entry, Subdirectory)}
        last = start = modification_order.first_moment(None)
        for path, last in modification_order.new_times(store, root, written=written, start=start):
            modification_order.set_time(fd, path, last)
        modification_order.wait_until_past(last)
    except OSError as error:
        failed_path = printable(b"/".join(progress.path))
        raise Failed(f"cannot write {target.parent / failed_path}: {error.strerror}") from None


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
    """Exchanges `name` in `source` and in `target`; moves it if `target` has none."""
    try:
        os.stat(name, dir_fd=target, follow_symlinks=False)
    except FileNotFoundError:
        os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)
        return
    if exchange(source, target, name):
        return
    old = (
        b".casfs." + secrets.token_hex(8).encode()
    )  # two steps where no atomic exchange is available
    os.rename(name, old, src_dir_fd=target, dst_dir_fd=source)
    os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)
