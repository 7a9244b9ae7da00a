"""Snapshots an overlay: from a tree and the upper layer over it to the tree that the overlay shows.

Only the upper is read, and of the tree only the directory nodes on the paths that the upper
touches: the cost depends on the change, not on the tree. Entries that the upper does not have
are taken from the nodes, content unread.

How an upper says what is gone: `casfs.workspaces.overlay_markers`. Sockets, fifos and devices are
left out with a warning, as in `casfs.trees.snapshot`.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from io import FileIO
from pathlib import Path

from casfs.backend.derived import change_stager
from casfs.digest import BlobHash, Digest, TreeDigest, TreeHash
from casfs.errors import CasfsError, Corrupt, Failed, NotFound, Refused
from casfs.scanner import Scanner
from casfs.scanner.private_names import private_names
from casfs.store.nodes import directory
from casfs.store.nodes.directory import Entry, File, Subdirectory, Symlink
from casfs.store.nodes.times import UNKNOWN, Times, TimesRef, newest_of
from casfs.store.store import Store
from casfs.store.write_batch import Batch
from casfs.system import interruption
from casfs.system.files import closing_fd
from casfs.system.paths import DIR_FLAGS, FILE_FLAGS, open_directory, open_top, printable
from casfs.trees import dated, tree
from casfs.trees.dated import DatedTree
from casfs.trees.snapshot import stat_cache
from casfs.trees.snapshot.derived import Surroundings
from casfs.trees.snapshot.file_reader import hits_at, staged_stream
from casfs.trees.snapshot.ignore import IGNORE_FILE, IGNORE_NAME, IgnoreRules, check_size
from casfs.trees.snapshot.listing import BY_NAME, keeps
from casfs.trees.snapshot.properties import preserved_names, properties
from casfs.trees.snapshot.report import ReadContent, SnapshotReport
from casfs.trees.snapshot.walker import MAX_DEPTH
from casfs.trees.tree import Entries
from casfs.workspaces import overlay_markers
from casfs.workspaces.overlay_markers import WHITEOUT_PREFIX

OBJECT_PATH = re.compile(rb"/([0-9a-f]{2})/([0-9a-f]{62})\Z")


def snapshot(
    store: Store,
    batch: Batch,
    base: DatedTree,
    upper: Path,
    report: SnapshotReport | None = None,
    marks_by_files: bool = False,
    limit: int | None = None,
    rules: Callable[[bytes], IgnoreRules] | None = None,
    scanner: Scanner | None = None,
    view: Path | None = None,
    unrecorded: Path | None = None,
) -> DatedTree:
    """Stores the tree that an overlay of `upper` over the tree `base` shows, and its times; as a
    snapshot, what is new of it is local until the batch settles what is work.
    `rules`: makes of the overlay's `.casfsignore` what decides about the entries of the upper;
    `scanner`: looks for secrets in its files; `view`: where the overlay is mounted, in which the
    evidence of derived directories is looked for, and which is read where the overlay has moved
    what is `unrecorded`, the layer below the tree.

    Raises NotFound (no such tree or upper), Failed naming the file that could not be read,
    Corrupt where the upper redirects to a path that the tree does not have, Refused where the
    upper has more than `limit` bytes.
    """
    tree.load(store, base.tree)
    batch.begin_local()
    fd = open_top(upper)
    merge = _Merge(store, batch, base=base, upper=upper, report=report or SnapshotReport())
    merge.marks_by_files = marks_by_files
    merge.limit = limit
    merge.scanner = scanner
    with ExitStack() as stack:
        try:
            if view is not None:
                merge.view = open_top(view)
                stack.callback(os.close, merge.view)
            if unrecorded is not None:
                merge.unrecorded = open_top(unrecorded)
                stack.callback(os.close, merge.unrecorded)
            if rules is not None:
                merge.rules = rules(merge.ignore_file(fd))
        except BaseException:
            os.close(fd)
            raise
        node, times = merge.directory(fd, b"", base)
        return DatedTree(node.hash, times.hash)


@dataclass(frozen=True, slots=True)
class _Subdirectory:
    """A directory to descend into. `fd`: of the upper; `lower`: the tree's node, if any."""

    fd: int
    lower: TreeHash | None
    redirect: bytes | None  # the lower directory's name or path, where it is another


class _Merge:
    marks_by_files = False
    limit: int | None = None
    rules: IgnoreRules | None = None
    scanner: Scanner | None = None
    view: int | None = None  # a descriptor, as is `unrecorded`
    unrecorded: int | None = None

    def __init__(
        self,
        store: Store,
        batch: Batch,
        base: DatedTree,
        upper: Path,
        report: SnapshotReport,
    ) -> None:
        self._store = store
        self._batch = batch
        self._base = base
        self._upper = os.fsencode(upper)
        self._report = report
        self._preserve = preserved_names(store, base.tree)
        self._user = os.geteuid()
        self._modified: dict[bytes, int] = {}  # time of each file and link of the upper, by path

    def directory(
        self, fd: int, path: bytes, lower: DatedTree | None
    ) -> tuple[TreeDigest, TimesRef]:
        """Store the directory at `path` of the overlay. `fd`: of the upper, taken over here;
        `lower`: the tree's node, if there is one."""
        with closing_fd(fd):
            names, below, has_whiteouts = self._layers(fd, path, lower and lower.tree)
            with self._errors_named(path):
                seen = os.fstat(fd)
            recorded = UNKNOWN if lower is None else dated.load_times(self._store, lower)
            entries = dict(below)
            inner = dict(recorded.below)
            modified = dict(recorded.entries)
            newest = [recorded.newest]
            for name in names:
                where = path + b"/" + name
                subdirectory = self._apply(
                    fd, where, name=name, below=below, entries=entries, has_whiteouts=has_whiteouts
                )
                inner.pop(name, None)
                modified.pop(name, None)
                if subdirectory is not None:
                    node, its = self.directory(
                        subdirectory.fd, where, self._dated(subdirectory, name, recorded)
                    )
                    entries[name] = Subdirectory(name, node)
                    newest.append(its.newest)
                    if its.hash is not None:
                        inner[name] = its.hash
                elif where in self._modified:
                    modified[name] = self._modified.pop(where)
                    newest.append(modified[name])
        own = properties(seen, self._preserve)
        node = self._batch.put_directory(directory.encode(entries.values(), own))
        times = Times(seen.st_mtime_ns, newest_of(newest), entries=modified, below=inner)
        return node, dated.put(self._batch, entries.values(), times)

    def _dated(self, subdirectory: _Subdirectory, name: bytes, above: Times) -> DatedTree | None:
        """Returns what is below a directory of the upper; `above`: the times of the lower directory
        that has `name`."""
        if subdirectory.lower is None:
            return None
        if subdirectory.redirect is not None and subdirectory.redirect.startswith(b"/"):
            return dated.subtree(self._store, self._base, subdirectory.redirect)
        return DatedTree(subdirectory.lower, above.below.get(subdirectory.redirect or name))

    def ignore_file(self, fd: int) -> bytes:
        """Returns the content of the overlay's `.casfsignore`, if any; `fd`: of the upper."""
        names, below, has_whiteouts = self._layers(fd, b"", self._base.tree)
        entries = dict(below)
        report = self._report
        self._report = SnapshotReport()
        for name in (WHITEOUT_PREFIX + IGNORE_NAME, IGNORE_NAME):
            if name in names:
                subdirectory = self._apply(
                    fd,
                    b"/" + name,
                    name=name,
                    below=below,
                    entries=entries,
                    has_whiteouts=has_whiteouts,
                )
                if subdirectory is not None:
                    os.close(subdirectory.fd)
        self._report = report
        file = entries.get(IGNORE_NAME)
        if not isinstance(file, File):
            return b""
        check_size(IGNORE_FILE, file.digest.size_bytes)
        with suppress(NotFound):  # not stored before
            return self._store.get(file.digest.hash)
        with open(os.open(IGNORE_NAME, FILE_FLAGS, dir_fd=fd), "rb") as source:
            return source.read(file.digest.size_bytes)

    def _layers(
        self, fd: int, path: bytes, lower: TreeHash | None
    ) -> tuple[list[bytes], Entries, bool]:
        """Returns the names of a directory of the upper, whiteouts first; the tree's entries below
        it; and whether an empty file may be a whiteout in it."""
        with self._errors_named(path):
            names = sorted(map(os.fsencode, os.listdir(fd)))
            opaque = self._marker(fd, "opaque")
        if opaque == b"y" or (self.marks_by_files and overlay_markers.OPAQUE_FILE in names):
            lower = None
        names.sort(key=lambda name: not name.startswith(WHITEOUT_PREFIX))
        return names, tree.load(self._store, lower) if lower else {}, opaque == b"x"

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
        if self.marks_by_files and name.startswith(overlay_markers.RESERVED_PREFIX):
            return None
        if self.marks_by_files and overlay_markers.is_whiteout(fd, name):
            entries.pop(name[len(WHITEOUT_PREFIX) :], None)
            return None
        entries.pop(name, None)
        try:
            with self._errors_named(path):
                entry = self._entry(fd, path, name=name, below=below, has_whiteouts=has_whiteouts)
        except FileNotFoundError:
            self._warn(path, "vanished while it was read")
            return None
        if isinstance(entry, _Subdirectory):
            return entry
        if entry is not None:
            entries[name] = entry
        return None

    def _entry(
        self, fd: int, path: bytes, name: bytes, below: Entries, has_whiteouts: bool
    ) -> Entry | _Subdirectory | None:
        """Returns None for a whiteout, for what the rules leave out, and for kinds that a tree
        cannot hold."""
        file_stat = os.stat(name, dir_fd=fd, follow_symlinks=False)
        if self._is_left_out(file_stat.st_mode, path[1:], name=name, fd=fd, below=below):
            return None
        self._report.count_not_kept(file_stat, self._user, self._preserve)
        if stat.S_ISDIR(file_stat.st_mode):
            return self._open_subdirectory(
                os.open(name, DIR_FLAGS, dir_fd=fd), path, name=name, below=below
            )
        if stat.S_ISREG(file_stat.st_mode):
            return self._file(fd, path, name=name, below=below, has_whiteouts=has_whiteouts)
        if stat.S_ISLNK(file_stat.st_mode):
            target = os.readlink(name, dir_fd=fd)
            self._modified[path] = file_stat.st_mtime_ns
            return Symlink(name, target, properties(file_stat, self._preserve))
        if not stat.S_ISCHR(file_stat.st_mode) or file_stat.st_rdev != 0:
            self._warn(path, "left out, it is a socket, a fifo or a device")
        return None

    def _is_left_out(self, mode: int, path: bytes, name: bytes, fd: int, below: Entries) -> bool:
        """Also reports an entry that the work tree excludes."""
        if stat.S_ISCHR(mode):
            return False
        is_directory = stat.S_ISDIR(mode)
        verdict = None
        if self.rules is not None and is_directory:
            with self._surroundings(path, fd, below) as surroundings:
                verdict = self.rules.verdict(path, name, directory=True, surroundings=surroundings)
        elif self.rules is not None:
            verdict = self.rules.verdict(path, name, directory=False)
        if verdict is not None:
            return not keeps(self._report, path, verdict)
        is_named_work = self.rules is not None and self.rules.is_work(path, name)
        if not is_directory and not is_named_work and private_names([name]):
            self._report.private[path] = BY_NAME
        return False

    @contextmanager
    def _surroundings(self, path: bytes, fd: int, below: Entries) -> Iterator[Surroundings]:
        """Yields where an entry of the upper's directory `fd` is: in the overlay, where that is
        mounted, since the evidence may be in the lower layer."""
        names = {*below, *map(os.fsencode, os.listdir(fd))}
        if self.view is None:
            yield Surroundings(fd, fd, names)
            return
        above = filter(None, path.split(b"/")[:-1])
        merged = open_directory(self.view, above)
        with closing_fd(merged):
            yield Surroundings(self.view, merged, names)

    def _open_subdirectory(
        self, fd: int, path: bytes, name: bytes, below: Entries
    ) -> _Subdirectory:
        """Takes over `fd`."""
        try:
            if path.count(b"/") > MAX_DEPTH:
                raise Failed(f"{self._show(path)}: more than {MAX_DEPTH} directories deep")
            redirect = self._marker(fd, "redirect")
            if redirect is not None and self._is_unrecorded(path, redirect):
                # The nodes do not have what was moved with it: all of it is read as new.
                moved = self._open_in_view(path)
                os.close(fd)
                return _Subdirectory(moved, None, None)
            lower = self._lower(below, name, redirect)
        except BaseException:
            os.close(fd)
            raise
        return _Subdirectory(fd, tree.subtree(lower), redirect)

    def _is_unrecorded(self, path: bytes, redirect: bytes) -> bool:
        """Returns whether the layer below the tree has a directory where one of the upper was moved
        from; one with the same name as that, too, as reading more is only slower."""
        if self.unrecorded is None or self.view is None:
            return False
        origin = (
            redirect if redirect.startswith(b"/") else path.rpartition(b"/")[0] + b"/" + redirect
        )
        try:
            os.close(open_directory(self.unrecorded, filter(None, origin.split(b"/"))))
        except OSError:
            return False
        return True

    def _open_in_view(self, path: bytes) -> int:
        assert self.view is not None
        return open_directory(self.view, filter(None, path.split(b"/")))

    def _file(
        self, fd: int, path: bytes, name: bytes, below: Entries, has_whiteouts: bool
    ) -> File | None:
        with open(os.open(name, FILE_FLAGS, dir_fd=fd), "rb", buffering=0) as source:
            opened = source.fileno()
            file_stat = os.fstat(opened)
            if (
                has_whiteouts
                and file_stat.st_size == 0
                and self._marker(opened, "whiteout") is not None
            ):
                return None
            digest = None
            is_metacopy = self._marker(opened, "metacopy") is not None
            if is_metacopy:
                redirect = self._marker(opened, "redirect")
                digest = self._recorded_content(
                    below, path, name=name, redirect=redirect, size=file_stat.st_size
                )
            if digest is None:
                if self.limit is not None and self._report.bytes + file_stat.st_size > self.limit:
                    raise Refused(f"{self._show(path)}: more than {self.limit} bytes were written")
                interruption.check()
                lower = self._lower(below, name, self._marker(opened, "redirect"))
                base = lower.digest.hash if isinstance(lower, File) else None
                read = partial(self._read, source, base)
                if is_metacopy:
                    read = partial(self._read_in_view, path)
                content = stat_cache.read_once(self._report, file_stat, read)
                digest = content.digest
                if self._is_purged(digest):
                    self._report.purged[path[1:]] = digest.hash
                    return None
                if hits := hits_at(path[1:], content.hits):
                    self._report.findings[path[1:]] = hits
            file_stat = os.fstat(opened)
        self._modified[path] = file_stat.st_mtime_ns
        self._report.files += 1
        self._report.bytes += digest.size_bytes
        return File(
            name,
            digest,
            executable=bool(file_stat.st_mode & stat.S_IXUSR),
            properties=properties(file_stat, self._preserve),
        )

    def _read(self, source: FileIO, base: str | None = None) -> ReadContent:
        """`base`: what the tree has there."""
        blobs = self._batch.blobs
        hits, staged = staged_stream(
            source, self.scanner, stage=blobs.stage, stage_change=change_stager(blobs), base=base
        )
        return ReadContent(self._batch.put_staged(staged), hits)

    def _read_in_view(self, path: bytes) -> ReadContent:
        """Reads a file of the layer below the tree, of which the upper has the attributes alone."""
        above, _, name = path.rpartition(b"/")
        parent = self._open_in_view(above)
        with closing_fd(parent):
            opened = os.open(name, FILE_FLAGS, dir_fd=parent)
        with open(opened, "rb", buffering=0) as source:
            return self._read(source)

    def _is_purged(self, digest: Digest) -> bool:
        info = self._store.blobs.info([digest.hash]).get(digest.hash)
        return info is not None and info.purged

    def _recorded_content(
        self, below: Entries, path: bytes, name: bytes, redirect: bytes | None, size: int
    ) -> Digest | None:
        """Returns the content of a file of which the upper has the attributes alone; None where it
        is in the layer below the tree. Raises Corrupt."""
        lower = self._lower(below, name, redirect)
        if isinstance(lower, File):
            return lower.digest
        object = OBJECT_PATH.match(redirect or b"")
        if lower is None and object is not None:
            hash = BlobHash((object[1] + object[2]).decode())
            info = self._store.blobs.info([hash]).get(hash)
            if info is not None and info.size == size:
                return Digest(hash, size)
        if self.unrecorded is not None and self.view is not None:
            return None
        raise Corrupt(f"{self._show(path)}: its content is not in tree {self._base.tree}")

    def _lower(self, below: Entries, name: bytes, redirect: bytes | None) -> Entry | None:
        """Returns the tree's entry below the upper's `name`. `below`: of the lower directory."""
        if redirect is None or not redirect.startswith(b"/"):
            return below.get(name if redirect is None else redirect)
        return tree.find(self._store, self._base.tree, redirect)

    def _marker(self, fd: int, name: str) -> bytes | None:
        if self.marks_by_files:
            return None
        try:
            return os.getxattr(fd, overlay_markers.PREFIX + name)
        except OSError as error:
            if error.errno not in (errno.ENODATA, errno.EOPNOTSUPP, errno.EPERM):
                raise
        return None

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
