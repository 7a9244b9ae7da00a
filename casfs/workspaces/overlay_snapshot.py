"""Snapshots an overlay: from a tree and the upper layer over it to the tree that the overlay shows.

Only the upper is read, and of the tree only the directory nodes on the paths that the upper
touches: the cost depends on the change, not on the tree. Entries that the upper does not have
are taken from the nodes, content unread.

Markers in an upper (Linux' Documentation/filesystems/overlayfs.rst):

    whiteout    the name is deleted: a character device 0/0; or an empty file with the attribute
                `whiteout` in a directory that has opaque=x
    opaque=y    of a directory: nothing below it comes from the tree
    redirect    of a directory: it was renamed, and its lower directory is at this path of the
                tree (from the root, or a name beside its old one)
    metacopy    of a file: mode and owner alone were changed; the content is the tree's, at
                `redirect` when it has one, else under the same name. Over an image `redirect`
                may be the path of the content in `objects/`, `/ab/cdef…`, unless the tree has
                that path, as the kernel sees it too

Which attributes are markers depends on the creator of the overlay (`MarkerFormat`): root's are
in `trusted.overlay.`, a user namespace's in `user.overlay.`, and in root's overlay an agent may
have set the latter as it likes. fuse-overlayfs lets anybody set all of these attributes, so there
only its files count, named as aufs did: `.wh.NAME`, empty or a device, is a whiteout, and a
directory with `.wh..wh..opq` is opaque. What else has such a name, a program has renamed to it. A
tree's own names of that form are hidden: such trees are refused (`check_names`).

Sockets, fifos and devices are left out with a warning, as in `casfs.trees.snapshot`.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from casfs.digest import BlobHash, Digest, TreeDigest, TreeHash
from casfs.errors import CasfsError, Corrupt, Failed, NotFound, Refused
from casfs.nodes import directory
from casfs.nodes.directory import Entry, File, Properties, Subdirectory, Symlink
from casfs.store import Store
from casfs.system import interruption
from casfs.system.paths import DIR_FLAGS, FILE_FLAGS, printable
from casfs.trees import tree
from casfs.trees.snapshot import encoder
from casfs.trees.snapshot.report import SnapshotReport
from casfs.trees.snapshot.walker import MAX_DEPTH
from casfs.trees.tree import Entries
from casfs.write_batch import Batch

WHITEOUT_PREFIX = b".wh."
OPAQUE_FILE = b".wh..wh..opq"
RESERVED_PREFIX = b".wh..wh."
OBJECT_PATH = re.compile(rb"/([0-9a-f]{2})/([0-9a-f]{62})\Z")


@dataclass(frozen=True, slots=True)
class MarkerFormat:
    """How an overlay writes markers: in attributes with one of these prefixes, and with `files`
    also as files whose names start with `.wh.`."""

    prefixes: tuple[str, ...]
    files: bool = False


TRUSTED = MarkerFormat(("trusted.overlay.",))
USER = MarkerFormat(("user.overlay.",))
FUSE = MarkerFormat((), files=True)


def check_names(store: Store, root: TreeHash, markers: MarkerFormat) -> None:
    """Raises Failed for a tree that an overlay with such markers would not show whole."""
    if markers.files:
        for path, entry in tree.walk(store, root):
            if entry.name.startswith(WHITEOUT_PREFIX):
                raise Failed(f"{printable(path)}: fuse-overlayfs hides names that begin with .wh.")


def snapshot(
    store: Store,
    batch: Batch,
    base: TreeHash,
    upper: Path,
    report: SnapshotReport | None = None,
    markers: MarkerFormat = TRUSTED,
    limit: int | None = None,
) -> TreeDigest:
    """Store the tree that an overlay of `upper` over the tree `base` shows; returns its root.

    Raises NotFound (no such tree or upper), Failed naming the file that could not be read,
    Corrupt where the upper redirects to a path that the tree does not have, Refused where the
    upper has more than `limit` bytes.
    """
    tree.load(store, base)
    try:
        fd = os.open(upper, DIR_FLAGS)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(f"no directory {upper}") from None
    except OSError as error:
        raise Failed(f"cannot read {upper}: {error.strerror}") from None
    merge = _Merge(store, batch, base, upper, report or SnapshotReport(), markers)
    merge.limit = limit
    return merge.directory(fd, b"", base)


@dataclass(frozen=True, slots=True)
class _Subdirectory:
    """A directory to descend into. `fd`: of the upper; `lower`: the tree's node, if any."""

    fd: int
    lower: TreeHash | None


class _Merge:
    limit: int | None = None

    def __init__(
        self,
        store: Store,
        batch: Batch,
        base: TreeHash,
        upper: Path,
        report: SnapshotReport,
        markers: MarkerFormat,
    ) -> None:
        self._store = store
        self._batch = batch
        self._base = base
        self._upper = os.fsencode(upper)
        self._report = report
        self._markers = markers
        self._preserve = encoder.preserved_names(tree.directory_properties(store, base))

    def directory(self, fd: int, path: bytes, lower: TreeHash | None) -> TreeDigest:
        """Store the directory at `path` of the overlay. `fd`: of the upper, taken over here;
        `lower`: the tree's node, if there is one."""
        try:
            with self._errors_named(path):
                names = sorted(map(os.fsencode, os.listdir(fd)))
                own = self._properties(os.fstat(fd))
                opaque = self._marker(fd, "opaque")
            if opaque == b"y" or (self._markers.files and OPAQUE_FILE in names):
                lower = None
            below = tree.load(self._store, lower) if lower else {}
            entries = dict(below)
            names.sort(key=lambda name: not name.startswith(WHITEOUT_PREFIX))
            for name in names:
                where = path + b"/" + name
                found = self._apply(fd, where, name, below, entries, opaque == b"x")
                if found is not None:
                    entries[name] = Subdirectory(name, self.directory(found.fd, where, found.lower))
        finally:
            os.close(fd)
        return self._batch.put_directory(directory.encode(entries.values(), own))

    def _apply(
        self,
        fd: int,
        path: bytes,
        name: bytes,
        below: Entries,
        entries: Entries,
        has_whiteouts: bool,
    ) -> _Subdirectory | None:
        """Apply the upper's entry `name` to `entries`; a directory is returned for the caller to
        descend into. `has_whiteouts`: an empty file may be a whiteout here."""
        if self._markers.files and name.startswith(RESERVED_PREFIX):
            return None
        if self._markers.files and name.startswith(WHITEOUT_PREFIX) and _is_whiteout(fd, name):
            entries.pop(name[len(WHITEOUT_PREFIX) :], None)
            return None
        entries.pop(name, None)
        try:
            with self._errors_named(path):
                found = self._entry(fd, path, name, below, has_whiteouts)
        except FileNotFoundError:
            self._warn(path, "vanished while it was read")
            return None
        if isinstance(found, _Subdirectory):
            return found
        if found is not None:
            entries[name] = found
        return None

    def _entry(
        self, fd: int, path: bytes, name: bytes, below: Entries, has_whiteouts: bool
    ) -> Entry | _Subdirectory | None:
        """Returns None for a whiteout, and for kinds that a tree cannot hold."""
        found = os.stat(name, dir_fd=fd, follow_symlinks=False)
        if stat.S_ISDIR(found.st_mode):
            return self._open_subdirectory(os.open(name, DIR_FLAGS, dir_fd=fd), path, name, below)
        if stat.S_ISREG(found.st_mode):
            return self._file(fd, path, name, below, has_whiteouts)
        if stat.S_ISLNK(found.st_mode):
            target = os.readlink(name, dir_fd=fd)
            return Symlink(name, target, self._properties(found))
        if not stat.S_ISCHR(found.st_mode) or found.st_rdev != 0:
            self._warn(path, "left out, it is a socket, a fifo or a device")
        return None

    def _open_subdirectory(
        self, fd: int, path: bytes, name: bytes, below: Entries
    ) -> _Subdirectory:
        """Takes over `fd`."""
        try:
            if path.count(b"/") > MAX_DEPTH:
                raise Failed(f"{self._show(path)}: more than {MAX_DEPTH} directories deep")
            lower = self._lower(below, name, self._marker(fd, "redirect"))
        except BaseException:
            os.close(fd)
            raise
        return _Subdirectory(fd, lower.digest.hash if isinstance(lower, Subdirectory) else None)

    def _file(
        self, fd: int, path: bytes, name: bytes, below: Entries, has_whiteouts: bool
    ) -> File | None:
        with open(os.open(name, FILE_FLAGS, dir_fd=fd), "rb", buffering=0) as source:
            opened = source.fileno()
            found = os.fstat(opened)
            if (
                has_whiteouts
                and found.st_size == 0
                and self._marker(opened, "whiteout") is not None
            ):
                return None
            if self._marker(opened, "metacopy") is None:
                if self.limit is not None and self._report.bytes + found.st_size > self.limit:
                    raise Refused(f"{self._show(path)}: more than {self.limit} bytes were written")
                interruption.check()
                digest = self._batch.put_stream(source)
                self._report.read += 1
                self._report.read_bytes += digest.size_bytes
            else:
                redirect = self._marker(opened, "redirect")
                digest = self._content(below, path, name, redirect, found.st_size)
            found = os.fstat(opened)
        self._report.files += 1
        self._report.bytes += digest.size_bytes
        return File(name, digest, bool(found.st_mode & stat.S_IXUSR), self._properties(found))

    def _content(
        self, below: Entries, path: bytes, name: bytes, redirect: bytes | None, size: int
    ) -> Digest:
        lower = self._lower(below, name, redirect)
        if isinstance(lower, File):
            return lower.digest
        object = OBJECT_PATH.match(redirect or b"")
        if lower is None and object is not None:
            hash = BlobHash((object[1] + object[2]).decode())
            info = self._store.blobs.info([hash]).get(hash)
            if info is not None and info.size == size:
                return Digest(hash, size)
        raise Corrupt(f"{self._show(path)}: its content is not in tree {self._base}")

    def _lower(self, below: Entries, name: bytes, redirect: bytes | None) -> Entry | None:
        """Returns the tree's entry below the upper's `name`. `below`: of the lower directory."""
        if redirect is None or not redirect.startswith(b"/"):
            return below.get(name if redirect is None else redirect)
        with suppress(NotFound):
            return tree.resolve(self._store, self._base, redirect)
        return None

    def _marker(self, fd: int, name: str) -> bytes | None:
        for prefix in self._markers.prefixes:
            try:
                return os.getxattr(fd, prefix + name)
            except OSError as error:
                if error.errno not in (errno.ENODATA, errno.EOPNOTSUPP, errno.EPERM):
                    raise
        return None

    def _properties(self, found: os.stat_result) -> Properties | None:
        """Preserves what the base tree preserves."""
        return encoder.properties(found, self._preserve)

    def _warn(self, path: bytes, warning: str) -> None:
        self._report.warnings.append(f"{self._show(path)}: {warning}")

    @contextmanager
    def _errors_named(self, path: bytes) -> Iterator[None]:
        """Turns an OSError into Failed with one line that names the file."""
        try:
            yield
        except (FileNotFoundError, CasfsError):
            raise
        except OSError as error:
            raise Failed(f"cannot read {self._show(path)}: {error.strerror}") from None

    def _show(self, path: bytes) -> str:
        return printable(self._upper + path)


def _is_whiteout(fd: int, name: bytes) -> bool:
    """Returns False for what a program renamed to or made by such a name."""
    found = os.stat(name, dir_fd=fd, follow_symlinks=False)
    return stat.S_ISCHR(found.st_mode) or (stat.S_ISREG(found.st_mode) and found.st_size == 0)
