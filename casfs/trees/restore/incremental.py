"""Restores incrementally: makes a directory that holds one tree hold another, and touches only
the differences, and the times of what is to be newer than they (`modification_order`).

Given are the trees that the directory may hold (`olds`: usually the one of what is there; more
after a restore that was interrupted) and the new one. Subtrees that are equal in all of them are
not looked at. An entry that is to be changed or deleted is compared first, by kind and by content:
one that is as in none of the given trees was changed meanwhile, or its record was purged. Nothing
could give it back, so it is moved aside, and left where nothing comes in its place.

Every path is reached through descriptors of directories that were opened without following
links, so a planted link is an entry to be replaced, never a way out. A file or link is made
under a temporary name in its directory and renamed over; a new directory is filled under
that name and renamed. Hence each path is at any time as in one of the trees, or absent where
its kind changes, and running again completes what was interrupted.

Entries in none of the trees are untracked: they are left alone, and so is every directory
that holds one.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from casfs.digest import TreeHash
from casfs.store.nodes.directory import Entry, File, Properties, Subdirectory, Symlink
from casfs.store.store import Store
from casfs.system.files import closing_fd
from casfs.system.paths import DIR_FLAGS, FILE_FLAGS, OpenDirectories
from casfs.trees import tree
from casfs.trees.dated import DatedTree
from casfs.trees.restore import host_entries, modification_order
from casfs.trees.restore.host_entries import Actual, is_same, is_same_content, read_entry
from casfs.trees.restore.modification_order import IsBuilt
from casfs.trees.restore.write import (
    Path,
    WriteProgress,
    file_mode,
    set_directory_attributes,
    utime_ns,
    write_file,
    write_link,
    write_tree,
)

ALL_BITS = 0o7777
Olds = list[TreeHash | None]  # roots of subtrees; None: nothing is there

HOLDS_OTHERS = "it holds files that came meanwhile"


@dataclass(slots=True)
class Outcome:
    """`deleted`: number of entries; `changed`: paths that were as in none of the trees; `aside`: to
    which paths what was there was moved; `kept`: what should be deleted but is in no tree, and
    directories that hold such entries; `blocked`: those of them in whose place the tree has another
    entry; `from_future`: files have times that the clock has not reached."""

    deleted: int = 0
    changed: list[Path] = field(default_factory=list)
    aside: dict[Path, Path] = field(default_factory=dict)
    kept: list[Path] = field(default_factory=list)
    blocked: list[Path] = field(default_factory=list)
    from_future: bool = False

    def not_written(self, changed: Iterable[Path]) -> dict[Path, str]:
        """Returns which of the paths that were to change are as they were, with the reason."""
        return dict.fromkeys({*self.kept, *self.blocked}.intersection(changed), HOLDS_OTHERS)


class IncrementalRestore:
    def __init__(
        self,
        store: Store,
        temp: bytes,
        progress: WriteProgress,
        *,
        top_mode: int = ALL_BITS,
        newest: int | None = None,
        mount_points: Collection[Path] = (),
    ) -> None:
        """`top_mode`: bits that the mode of the directory itself may have; `newest`: the last time
        of a file there, in ns; `mount_points`: in the directory, which are not entered."""
        self._store = store
        self._temp = temp
        self._progress = progress
        self._top_mode = top_mode
        self._start = modification_order.first_moment(newest)
        self._written: dict[Path, int | None] = {}  # as in `modification_order`
        self._mount_points = mount_points
        self.outcome = Outcome()

    def directory(self, fd: int, path: Path, olds: Olds, new: TreeHash | None) -> None:
        """Make the directory `fd` hold the tree `new`; None: nothing of the trees may remain.
        Raises OSError with `progress.path` at the entry that failed; NotFound, Corrupt."""
        host_entries.discard(fd, self._temp)
        before = [self._load(old) for old in olds]
        after = self._load(new)
        names = set(after).union(*before)
        # In a git repository what is named comes before what names it: killed in between, no ref
        # leads to an object that is not there.
        is_named = b"objects" if b"HEAD" in names else b""
        for name in sorted(names, key=lambda name: (name in after, name != is_named, name)):
            was = [entries.get(name) for entries in before]
            to = after.get(name)
            if any(entry != to for entry in was):
                self._restore_entry(fd, name, above=path, was=was, to=to)
        if new is not None:
            self._set_own_properties(fd, olds, new=new, bits=ALL_BITS if path else self._top_mode)

    def date(self, fd: int, source: DatedTree, is_built: IsBuilt | None = None) -> None:
        """Dates what was written, in the order in which `source` was recorded, and what may have
        been built from that (`modification_order`)."""
        when = None
        new_times = modification_order.new_times(
            self._store, source, self._written, self._start, is_built
        )
        with OpenDirectories(fd) as directories:
            for path, when in new_times:
                if self._is_mounted(path):
                    continue
                above, _, name = path.rpartition(b"/")
                self._progress.path = path.split(b"/")
                with suppress(FileNotFoundError, NotADirectoryError):  # deleted meanwhile
                    inner = directories.open(above)
                    try:
                        self._date(inner, name, path=path, source=source, when=when)
                    except PermissionError as error:
                        if not self._progress.leaves_out(error):
                            raise
        self._progress.path = []
        if when is not None:
            self.outcome.from_future = not modification_order.wait_until_past(when)

    def date_as_recorded(self, fd: int, source: DatedTree) -> None:
        """Dates all of a directory that was empty before."""
        for path, when in modification_order.recorded_times(self._store, source):
            with suppress(FileNotFoundError, NotADirectoryError):
                modification_order.set_time(fd, path, when)

    def _date(self, fd: int, name: bytes, path: Path, source: DatedTree, when: int) -> None:
        """A kept file with several links, perhaps outside of the directory, is replaced first."""
        if path not in self._written and not self._is_own(fd, name, path=path, source=source):
            return  # changed meanwhile
        os.utime(name, ns=(when, when), dir_fd=fd, follow_symlinks=False)

    def _is_own(self, fd: int, name: bytes, path: Path, source: DatedTree) -> bool:
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        entry = tree.find(self._store, source.tree, path)
        is_shared = status.st_nlink > 1 or status.st_uid != os.geteuid()
        if is_shared and entry is not None:
            if not is_same(read_entry(fd, name, status=status, wanted=[entry]), entry):
                return False
            self._place(fd, name, entry)
        return True

    def _is_mounted(self, path: Path) -> bool:
        return any((path + b"/").startswith(point + b"/") for point in self._mount_points)

    def _load(self, hash: TreeHash | None) -> tree.Entries:
        return {} if hash is None else tree.load(self._store, hash)

    def _restore_entry(
        self, fd: int, name: bytes, above: Path, was: list[Entry | None], to: Entry | None
    ) -> None:
        self._progress.path.append(name)
        depth = len(self._progress.path)
        path = above + name
        if path in self._mount_points:
            self._progress.path.pop()
            self.outcome.kept.append(path)
            return
        try:
            status = host_entries.lstat(fd, name)
            if status is not None and stat.S_ISDIR(status.st_mode):
                self._replace_directory(fd, name, path=path, was=was, to=to)
            elif isinstance(to, Subdirectory):
                self._create_directory(fd, name, path=path, was=was, to=to, status=status)
            else:
                self._restore_leaf(fd, name, path=path, was=was, to=to, status=status)
        except OSError as error:
            if not self._progress.leaves_out(error):
                raise
            del self._progress.path[depth:]
        self._progress.path.pop()

    # -- where a directory is --------------------------------------------------------------

    def _replace_directory(
        self, fd: int, name: bytes, path: Path, was: list[Entry | None], to: Entry | None
    ) -> None:
        if not any(isinstance(entry, Subdirectory) for entry in was):
            self.outcome.changed.append(path)
        olds: Olds = list(dict.fromkeys(tree.subtree(entry) for entry in was))
        mode = stat.S_IMODE(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode)
        with host_entries.entered(fd, name) as inner:
            self.directory(inner, path + b"/", olds=olds, new=tree.subtree(to))
            if to is None:  # it stays where it has other entries, and then as it was
                os.fchmod(inner, mode)
        if isinstance(to, Subdirectory):
            return
        try:
            os.rmdir(name, dir_fd=fd)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            self.outcome.kept.append(path)
            if to is not None:
                self.outcome.blocked.append(path)
            return
        self.outcome.deleted += 1
        if to is not None:
            self._place(fd, name, to)
            self._written[path] = None

    def _set_own_properties(self, fd: int, olds: Olds, new: TreeHash, bits: int) -> None:
        """Set the mode and time of the directory itself, where a tree has preserved any."""
        own = tree.directory_properties(self._store, new)
        trees = (
            tree.directory_properties(self._store, root)
            for root in [*olds, new]
            if root is not None
        )
        if any(properties is not None and properties.unix_mode is not None for properties in trees):
            set_directory_attributes(fd, own, bits)
        elif own is not None and own.mtime is not None:
            os.utime(fd, ns=utime_ns(own.mtime))

    # -- where none is -----------------------------------------------------------------------

    def _create_directory(
        self,
        fd: int,
        name: bytes,
        path: Path,
        was: list[Entry | None],
        to: Subdirectory,
        status: os.stat_result | None,
    ) -> None:
        actual = read_entry(fd, name, status=status, wanted=was)
        self._report_if_changed(path, actual, was)
        if _is_unknown(actual, was):
            self._move_aside(fd, name, path)
        elif actual is not None:
            os.unlink(name, dir_fd=fd)
            self.outcome.deleted += 1
        with self._renamed(fd, name):
            os.mkdir(self._temp, host_entries.OWNER_ACCESS, dir_fd=fd)
            inner = os.open(self._temp, DIR_FLAGS, dir_fd=fd)
            with closing_fd(inner):
                write_tree(
                    self._store, DatedTree(to.digest.hash), fd=inner, progress=self._progress
                )
        for below, entry in tree.walk(self._store, to.digest.hash, path + b"/"):
            if not isinstance(entry, Subdirectory):
                self._written[below] = None

    def _restore_leaf(
        self,
        fd: int,
        name: bytes,
        path: Path,
        was: list[Entry | None],
        to: File | Symlink | None,
        status: os.stat_result | None,
    ) -> None:
        actual = read_entry(fd, name, status=status, wanted=[*was, to])
        if is_same(actual, to):
            if to is not None and status is not None:
                self._set_properties(fd, name, was=was, to=to, status=status)
            return
        is_unknown = _is_unknown(actual, [*was, to])
        if to is None and is_unknown:
            self.outcome.kept.append(path)
            return
        self._report_if_changed(path, actual, was)
        if is_unknown:
            self._move_aside(fd, name, path)
        if to is None:
            os.unlink(name, dir_fd=fd)
            self.outcome.deleted += 1
            self._progress.deleted()
        elif isinstance(actual, File) and isinstance(to, File) and is_same_content(actual, to):
            assert status is not None
            self._set_mode(fd, name, to=to, status=status)
        else:
            self._place(fd, name, to)
            is_as_long = (
                status is not None
                and isinstance(to, File)
                and status.st_size == to.digest.size_bytes
            )
            self._written[path] = status.st_mtime_ns if status and is_as_long else None

    def _report_if_changed(self, path: Path, actual: Actual, was: list[Entry | None]) -> None:
        """A directory and a leaf cannot change places atomically: absent in between is expected."""
        is_between = actual is None and len({isinstance(entry, Subdirectory) for entry in was}) == 2
        if not is_between and not any(is_same(actual, entry) for entry in was):
            self.outcome.changed.append(path)

    def _move_aside(self, fd: int, name: bytes, path: Path) -> None:
        aside = host_entries.move_aside(fd, name)
        self.outcome.aside[path] = path[: -len(name)] + aside

    def _place(self, fd: int, name: bytes, to: Entry) -> None:
        """Create a file or a link in place of the entry that is there."""
        size = 0
        with self._renamed(fd, name):
            if isinstance(to, File):
                content = next(iter(self._store.blobs.get_many([to.digest.hash])))
                size = write_file(
                    self._store, fd, name=self._temp, entry=to, content=content, mode=self._mode(to)
                )
            elif isinstance(to, Symlink):
                write_link(fd, self._temp, to)
        self._progress.wrote(size)

    @contextmanager
    def _renamed(self, fd: int, name: bytes) -> Iterator[None]:
        """Renames the entry that the block makes under the temporary name to `name`."""
        try:
            yield
            os.rename(self._temp, name, src_dir_fd=fd, dst_dir_fd=fd)
        except BaseException:
            with suppress(OSError):
                host_entries.remove(fd, self._temp)
            raise

    # -- modes and times -----------------------------------------------------------------------

    def _set_properties(
        self, fd: int, name: bytes, was: list[Entry | None], to: Entry, status: os.stat_result
    ) -> None:
        """Set the properties that `--preserve` kept in `to` or in an old tree."""
        properties = _properties(to)
        mtime = None if properties is None else properties.mtime
        late = mtime is not None and utime_ns(mtime)[1] != status.st_mtime_ns
        if isinstance(to, Symlink):
            if late and mtime is not None:
                os.utime(name, ns=utime_ns(mtime), dir_fd=fd, follow_symlinks=False)
        elif isinstance(to, File):
            preserved = [kept for kept in map(_properties, [*was, to]) if kept is not None]
            has_mode = any(kept.unix_mode is not None for kept in preserved)
            if late or (has_mode and self._mode(to) != stat.S_IMODE(status.st_mode)):
                self._set_mode(fd, name, to=to, status=status)

    def _mode(self, to: File) -> int:
        return file_mode(to, self._progress.set_id)

    def _set_mode(self, fd: int, name: bytes, to: File, status: os.stat_result) -> None:
        """A file with several links, perhaps outside of the directory, is replaced instead."""
        try:
            file = os.open(name, FILE_FLAGS, dir_fd=fd) if status.st_nlink == 1 else -1
        except PermissionError:
            file = -1
        if file < 0:
            self._place(fd, name, to)
            return
        with closing_fd(file):
            os.fchmod(file, self._mode(to))
            if to.properties is not None and to.properties.mtime is not None:
                os.utime(file, ns=utime_ns(to.properties.mtime))
        self._progress.wrote(0)


def _is_unknown(actual: Actual, entries: Sequence[Entry | None]) -> bool:
    """Returns whether none of the entries could bring back what is there, but for its mode."""
    if isinstance(actual, File):
        files = [entry for entry in entries if isinstance(entry, File)]
        return not any(is_same_content(actual, file) for file in files)
    return actual is not None and not any(is_same(actual, entry) for entry in entries)


def _properties(entry: Entry | None) -> Properties | None:
    return entry.properties if isinstance(entry, File | Symlink) else None
