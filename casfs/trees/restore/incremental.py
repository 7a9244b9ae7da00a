"""A directory that holds one tree is made to hold another; only what differs is touched.

Given are the trees that the directory may hold (`olds`: usually one; more after a restore
that was interrupted) and the new one. Subtrees that are equal in all of them are not even
looked at, unless `verify` asks for every path. What is about to be changed or deleted is
compared first, by kind and by content: what is as in none of the given trees was changed
by somebody here; it is reported, and brought to the new state like the rest.

Every path is reached through descriptors of directories that were opened without following
links, so a link that somebody planted is an entry to be replaced, never a way out. A file
or link is made under a temporary name in its directory and renamed over; a new directory is
filled under that name and renamed. Hence each path is at any time as in one of the trees,
or absent where its kind changes, and running again completes what was interrupted.

What is in none of the trees is foreign: it is left alone, and so is every directory that
holds it, unless `delete_untracked` is asked for.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from casfs.digest import hash_stream
from casfs.nodes.directory import Entry, File, Properties, Subdirectory, Symlink
from casfs.store import Store
from casfs.system.paths import DIR_FLAGS, FILE_FLAGS
from casfs.trees import tree
from casfs.trees.restore.write import (
    Tally,
    file_mode,
    fill,
    finish,
    nanoseconds,
    write_file,
    write_link,
)

WHOLE = 0o700  # what an owner needs to work in a directory
Path = bytes  # relative to the directory
Olds = list[str | None]  # roots of subtrees; None: nothing is there


@dataclass(slots=True)
class Outcome:
    """What was done. `changed`: paths that were as in none of the trees; `kept`: directories
    that had to go and stayed for what is foreign in them; `blocked`: those of them in whose
    place something else should be."""

    deleted: int = 0
    changed: list[Path] = field(default_factory=list)
    kept: list[Path] = field(default_factory=list)
    blocked: list[Path] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Other:
    """A socket, a fifo, a device, or a file that cannot be read: nothing a tree holds."""


Actual = File | Symlink | Other | None


class Sync:
    def __init__(
        self,
        store: Store,
        temp: bytes,
        tally: Tally,
        *,
        verify: bool = False,
        delete_untracked: bool = False,
    ) -> None:
        self._store = store
        self._temp = temp
        self._tally = tally
        self._verify = verify
        self._delete_untracked = delete_untracked
        self.outcome = Outcome()

    def directory(self, fd: int, path: Path, olds: Olds, new: str | None) -> None:
        """Bring what is in `fd` to the tree `new`; None: nothing of the trees may remain.

        Raises OSError with the tally's path at the entry that failed; NotFound, Corrupt.
        """
        _discard(fd, self._temp)
        before = [self._load(old) for old in olds]
        after = self._load(new)
        names = set(after).union(*before)
        if self._delete_untracked:
            self._delete_others(fd, path, names)
        for name in sorted(names, key=lambda name: (name in after, name)):
            was, to = [entries.get(name) for entries in before], after.get(name)
            inside = self._delete_untracked and isinstance(to, Subdirectory)
            if self._verify or inside or any(one != to for one in was):
                self._at(fd, name, path, was, to)
        if new is not None:
            self._finish(fd, olds, new)

    def _load(self, hash: str | None) -> tree.Entries:
        return {} if hash is None else tree.load(self._store, hash)

    def _at(
        self, fd: int, name: bytes, above: Path, was: list[Entry | None], to: Entry | None
    ) -> None:
        self._tally.path.append(name)
        path = above + name
        found = _look(fd, name)
        if found is not None and stat.S_ISDIR(found.st_mode):
            self._over_directory(fd, name, path, was, to)
        elif isinstance(to, Subdirectory):
            self._new_directory(fd, name, path, was, to, found)
        else:
            self._leaf(fd, name, path, was, to, found)
        self._tally.path.pop()

    # -- where a directory is --------------------------------------------------------------

    def _over_directory(
        self, fd: int, name: bytes, path: Path, was: list[Entry | None], to: Entry | None
    ) -> None:
        if not any(isinstance(one, Subdirectory) for one in was):
            self.outcome.changed.append(path)
        olds: Olds = list(dict.fromkeys(_below(one) for one in was))
        with _entered(fd, name) as inner:
            self.directory(inner, path + b"/", olds, _below(to))
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

    def _delete_others(self, fd: int, path: Path, names: set[bytes]) -> None:
        for found in os.listdir(fd):
            name = os.fsencode(found)
            if name not in names:
                self._tally.path.append(name)
                self.outcome.deleted += remove(fd, name)
                self._tally.path.pop()

    def _finish(self, fd: int, olds: Olds, new: str) -> None:
        """Mode and time of the directory itself, where a tree says anything about them."""
        own = tree.preserved(self._store, new)
        trees = (tree.preserved(self._store, one) for one in [*olds, new] if one is not None)
        if any(one is not None and one.unix_mode is not None for one in trees):
            finish(fd, own, 0o755)
        elif own is not None and own.mtime is not None:
            os.utime(fd, ns=nanoseconds(own.mtime))

    # -- where none is -----------------------------------------------------------------------

    def _new_directory(
        self,
        fd: int,
        name: bytes,
        path: Path,
        was: list[Entry | None],
        to: Subdirectory,
        found: os.stat_result | None,
    ) -> None:
        actual = self._actual(fd, name, found, was)
        self._compare(path, actual, was)
        if actual is not None:
            os.unlink(name, dir_fd=fd)
            self.outcome.deleted += 1
        with self._renamed(fd, name):
            os.mkdir(self._temp, WHOLE, dir_fd=fd)
            inner = os.open(self._temp, DIR_FLAGS, dir_fd=fd)
            try:
                fill(self._store, to.digest.hash, inner, self._tally)
            finally:
                os.close(inner)

    def _leaf(
        self,
        fd: int,
        name: bytes,
        path: Path,
        was: list[Entry | None],
        to: File | Symlink | None,
        found: os.stat_result | None,
    ) -> None:
        actual = self._actual(fd, name, found, [*was, to])
        if _same(actual, to):
            if to is not None and found is not None:
                self._set_properties(fd, name, was, to, found)
            return
        self._compare(path, actual, was)
        if to is None:
            os.unlink(name, dir_fd=fd)
            self.outcome.deleted += 1
        elif isinstance(actual, File) and isinstance(to, File) and _equal(actual, to):
            assert found is not None
            self._set_mode(fd, name, to, found)
        else:
            self._place(fd, name, to)

    def _compare(self, path: Path, actual: Actual, was: list[Entry | None]) -> None:
        """A directory and anything else cannot change places at once: in between is nothing."""
        between = actual is None and len({isinstance(one, Subdirectory) for one in was}) == 2
        if not between and not any(_same(actual, one) for one in was):
            self.outcome.changed.append(path)

    def _place(self, fd: int, name: bytes, to: Entry) -> None:
        """Make a file or a link in place of what is there."""
        size = 0
        with self._renamed(fd, name):
            if isinstance(to, File):
                content = next(iter(self._store.blobs.get_many([to.digest.hash])))
                size = write_file(self._store, fd, self._temp, to, content)
            elif isinstance(to, Symlink):
                write_link(fd, self._temp, to)
        self._tally.wrote(size)

    @contextmanager
    def _renamed(self, fd: int, name: bytes) -> Iterator[None]:
        """What is made under the temporary name is renamed over what is there."""
        try:
            yield
            os.rename(self._temp, name, src_dir_fd=fd, dst_dir_fd=fd)
        except BaseException:
            with suppress(OSError):
                remove(fd, self._temp)
            raise

    # -- modes and times -----------------------------------------------------------------------

    def _set_properties(
        self,
        fd: int,
        name: bytes,
        was: list[Entry | None],
        to: Entry,
        found: os.stat_result,
    ) -> None:
        """The content is right: see to what `--preserve` kept, now or in an old tree."""
        properties = _properties(to)
        mtime = None if properties is None else properties.mtime
        late = mtime is not None and nanoseconds(mtime)[1] != found.st_mtime_ns
        if isinstance(to, Symlink):
            if late and mtime is not None:
                os.utime(name, ns=nanoseconds(mtime), dir_fd=fd, follow_symlinks=False)
        elif isinstance(to, File):
            given = [one for one in map(_properties, [*was, to]) if one is not None]
            asked = any(one.unix_mode is not None for one in given)
            if late or (asked and file_mode(to) != stat.S_IMODE(found.st_mode)):
                self._set_mode(fd, name, to, found)

    def _set_mode(self, fd: int, name: bytes, to: File, found: os.stat_result) -> None:
        """A file with other names, perhaps outside of the directory, is replaced instead."""
        try:
            file = os.open(name, FILE_FLAGS, dir_fd=fd) if found.st_nlink == 1 else -1
        except PermissionError:
            file = -1
        if file < 0:
            self._place(fd, name, to)
            return
        try:
            os.fchmod(file, file_mode(to))
            if to.properties is not None and to.properties.mtime is not None:
                os.utime(file, ns=nanoseconds(to.properties.mtime))
        finally:
            os.close(file)
        self._tally.wrote(0)

    # -- what is there ---------------------------------------------------------------------------

    def _actual(
        self, fd: int, name: bytes, found: os.stat_result | None, wanted: list[Entry | None]
    ) -> Actual:
        """The entry as a tree would have it. A file that has the size of none that is wanted
        is not read: it is none of them."""
        if found is None:
            return None
        if stat.S_ISLNK(found.st_mode):
            return Symlink(name, os.readlink(name, dir_fd=fd))
        if not stat.S_ISREG(found.st_mode):
            return Other()
        sizes = {one.digest.size_bytes for one in wanted if isinstance(one, File)}
        if found.st_size not in sizes:
            return Other()
        try:
            file = os.open(name, FILE_FLAGS, dir_fd=fd)
        except PermissionError:
            return Other()
        with open(file, "rb", buffering=0) as source:
            digest = hash_stream(source)
        return File(name, digest, bool(found.st_mode & stat.S_IXUSR))


def remove(fd: int, name: bytes) -> int:
    """Delete an entry of `fd` with all that is in it; returns how many entries went."""
    try:
        os.unlink(name, dir_fd=fd)
        return 1
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.EPERM):
            raise
    with _entered(fd, name) as inner:
        count = sum(remove(inner, os.fsencode(below)) for below in os.listdir(inner))
    os.rmdir(name, dir_fd=fd)
    return count + 1


@contextmanager
def _entered(fd: int, name: bytes) -> Iterator[int]:
    """Open a directory, for its owner to work in even where its mode forbids that."""
    try:
        inner = os.open(name, DIR_FLAGS, dir_fd=fd)
    except PermissionError:
        _unlock(fd, name)
        inner = os.open(name, DIR_FLAGS, dir_fd=fd)
    try:
        mode = stat.S_IMODE(os.fstat(inner).st_mode)
        if mode & WHOLE != WHOLE:
            os.fchmod(inner, mode | WHOLE)
        yield inner
    finally:
        os.close(inner)


def _unlock(fd: int, name: bytes) -> None:
    """chmod of a directory that cannot be opened, and of nothing that a link leads to."""
    handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
    try:
        os.chmod(f"/proc/self/fd/{handle}", WHOLE)
    finally:
        os.close(handle)


def _discard(fd: int, temp: bytes) -> None:
    """What a killed run left here under the temporary name."""
    with suppress(FileNotFoundError):
        remove(fd, temp)


def _look(fd: int, name: bytes) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _below(entry: Entry | None) -> str | None:
    return entry.digest.hash if isinstance(entry, Subdirectory) else None


def _properties(entry: Entry | None) -> Properties | None:
    return entry.properties if isinstance(entry, File | Symlink) else None


def _same(actual: Actual, entry: Entry | None) -> bool:
    """Kind and content; modes and times beyond the x bit are not compared."""
    if isinstance(actual, File) and isinstance(entry, File):
        return _equal(actual, entry) and actual.executable == entry.executable
    if isinstance(actual, Symlink) and isinstance(entry, Symlink):
        return actual.target == entry.target
    return actual is None and entry is None


def _equal(actual: File, entry: File) -> bool:
    """The size is left to the hash: only that is what a tree refers to."""
    same: bool = actual.digest.hash == entry.digest.hash
    return same
