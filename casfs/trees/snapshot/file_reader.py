"""Reads the files of a snapshot: read, hash, and stage the content that the store lacks.

Files are opened relative to their directory's descriptor and never through a link. The
store is asked once for a batch of files, and only content that it does not have is staged.
Runs in the process that makes the snapshot, or in a worker (`casfs.trees.snapshot.reader_pool`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from io import FileIO
from typing import BinaryIO, TypeVar, cast

from casfs.backend import block_maps, protocols
from casfs.backend.derived import StageChange, change_stager, stager
from casfs.backend.hot_packs import HotPacks
from casfs.backend.protocols import FILE_MIN_BYTES, INLINE_MAX_BYTES, BlobInfo, Blobs, Staged
from casfs.digest import Digest
from casfs.scanner import Finding, Scanner, ScanningReader
from casfs.scanner.findings import BINARY_PROBE_BYTES, is_binary
from casfs.system.paths import FILE_FLAGS
from casfs.trees.git import object_files
from casfs.trees.snapshot.file_stat import Stat
from casfs.trees.snapshot.report import Hit, Hits

NO_ATTRIBUTES: tuple[list[str], ...] = ([], ["security.selinux"])
STREAM_MIN_BYTES = 1 << 20  # a larger file is read in pieces
STAGE_BATCH_BYTES = 4 << 20  # content held until the store is asked for it
FIRST_BYTES_OF_GIT = (b"P", b"#", b"x")
PROBE_BYTES = 128  # of a file of git
NO_DIGEST = Digest.of(b"")  # of what was not read
NO_BASES: Mapping[bytes, str] = {}
T = TypeVar("T")


class SourceUnreadable(Exception):
    """A file cannot be read, for the `reason`."""

    def __init__(self, reason: OSError) -> None:
        self.reason = reason


def hits(findings: Iterable[Finding]) -> Hits:
    """Returns what is remembered of findings: never the secret, nor where in its line it is."""
    return tuple(dict.fromkeys(Hit(finding.kind, finding.line) for finding in findings))


@dataclass(slots=True)
class ReadFile:
    """A file that was read. `has_xattrs`: it has extended attributes. `staged` is None where the
    store has the content already, as `info` says, where it was staged with an earlier file, or is
    in a pack (`hot`: the number of the group, and its own in that). `is_purged`: its content was
    purged, and is not stored again. `error`: why it could not be read; it has no digest then."""

    name: bytes
    digest: Digest
    stat: Stat
    has_xattrs: bool = False
    staged: Staged | None = None
    info: BlobInfo | None = None
    hot: tuple[int, int] | None = None
    hits: Hits = ()
    is_purged: bool = False
    error: str = ""

    @classmethod
    def unreadable(cls, name: bytes, error: OSError) -> ReadFile:
        return cls(
            name,
            NO_DIGEST,
            Stat(0, 0, st_mtime_ns=0, st_ctime_ns=0, st_ino=0),
            error=error.strerror or repr(error),
        )


class FileReader:
    """`is_known`: returns whether a hash is known to be stored, or staged already. `packs`: where
    new content goes that is neither short nor long. `scanner`: looks for secrets."""

    def __init__(
        self,
        blobs: Blobs,
        is_known: Callable[[str], bool],
        packs: HotPacks | None = None,
        scanner: Scanner | None = None,
        *,
        stored: Set[str] | None = None,
    ) -> None:
        """`stored`: the blobs of the store as of now, None: these are many. Any other is taken for
        absent without a query; one that another process stores meanwhile is stored once."""
        self._stored = stored
        self._blobs = blobs
        self._scanner = scanner
        self._packs = packs
        self._stage_bytes = stager(blobs)
        self._stage_change = change_stager(blobs)
        self._is_known = is_known

    def read(
        self, fd: int, names: Iterable[bytes], bases: Mapping[bytes, str] = NO_BASES
    ) -> list[ReadFile]:
        """Reads files of the directory `fd`; omits those that have vanished. `bases`: what some had
        before. Raises OSError where the store cannot be written."""
        done: list[ReadFile] = []
        held: list[tuple[ReadFile, bytes]] = []
        size = 0
        try:
            for name in names:
                try:
                    read_file, data = self._file(fd, name, bases.get(name))
                except FileNotFoundError:
                    continue
                except SourceUnreadable as error:
                    done.append(ReadFile.unreadable(name, error.reason))
                    continue
                done.append(read_file)
                if data is not None:
                    held.append((read_file, data))
                    size += len(data)
                    if size > STAGE_BATCH_BYTES:
                        self._stage(held)
                        held = []
                        size = 0
            self._stage(held)
        except BaseException:
            discard(done)
            raise
        return done

    def _file(self, fd: int, name: bytes, base: str | None) -> tuple[ReadFile, bytes | None]:
        """Returns the file and its content, or None for a large file, which is staged here."""
        try:
            file = os.open(name, FILE_FLAGS, dir_fd=fd)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise SourceUnreadable(error) from None
        # Not `closing_fd`, which is three calls more for each file.
        try:
            size = os.fstat(file).st_size
            marked = has_xattrs(file)
            if size > STREAM_MIN_BYTES:
                return self._stream(file, name, marked, base=base), None
            data = _read_whole(file, size)
            read = ReadFile(name, Digest.of(data), stat=Stat.of(os.fstat(file)), has_xattrs=marked)
            if self._scanner is not None:
                read.hits = hits(self._scanner.scan(data))
                if not read.hits and data[:1] in FIRST_BYTES_OF_GIT:
                    read.hits = git_hits(data[:PROBE_BYTES])
            return read, data
        finally:
            os.close(file)

    def _stream(self, file: int, name: bytes, marked: bool, *, base: str | None) -> ReadFile:
        """Stages a large file, which is scanned as it is read."""
        with open(file, "rb", buffering=0, closefd=False) as source:
            try:
                file_hits, staged = staged_stream(
                    source,
                    self._scanner,
                    stage=self._blobs.stage,
                    stage_change=self._stage_change,
                    base=base,
                )
            except OSError:  # of the source or of the store: the kernel copies, and does not say
                _check_readable(source)
                raise
        read = ReadFile(
            name,
            staged.digest,
            stat=Stat.of(os.fstat(file)),
            has_xattrs=marked,
            staged=staged,
            hits=file_hits,
        )
        info = self._blobs.info([staged.digest.hash]).get(staged.digest.hash)
        if info is not None and info.purged:
            protocols.discard([staged])
            read.staged = None
            read.is_purged = True
        return read

    def _stage(self, held: list[tuple[ReadFile, bytes]]) -> None:
        """Asks the store once for all; stages only content that it does not have."""
        unknown = {
            held_file.digest.hash
            for held_file, _ in held
            if not self._is_known(held_file.digest.hash)
        }
        candidates = unknown if self._stored is None else unknown & self._stored
        stored = self._blobs.info(candidates) if candidates else {}
        for read_file, data in held:
            hash = read_file.digest.hash
            info = stored.get(hash)
            read_file.info = None if info is None or not info.is_here else info
            if info is not None and info.purged:
                read_file.is_purged = True
                continue
            if hash in unknown:
                unknown.discard(hash)
                if read_file.info is not None:
                    continue
                if self._packs is not None and INLINE_MAX_BYTES < len(data) < FILE_MIN_BYTES:
                    read_file.hot = self._packs.add(read_file.digest, data)
                else:
                    read_file.staged = self._stage_bytes(read_file.digest, data)


def staged_stream(
    source: FileIO,
    scanner: Scanner | None,
    *,
    stage: Callable[[BinaryIO], Staged],
    stage_change: StageChange | None,
    base: str | None,
) -> tuple[Hits, Staged]:
    """Stages a file, which is scanned meanwhile, as its differences from `base` where these are
    few."""
    size = os.fstat(source.fileno()).st_size
    if base is not None and stage_change is not None and size >= block_maps.MIN_BYTES:
        hits_of_change, change = scanned_stream(
            source, scanner, lambda stream: stage_change(stream, size, base)
        )
        if change is not None:
            return hits_of_change, change
        source.seek(0)
    return scanned_stream(source, scanner, stage)


def scanned_stream(
    source: FileIO, scanner: Scanner | None, read: Callable[[BinaryIO], T]
) -> tuple[Hits, T]:
    """Has `read` read a file to its end, and scans it meanwhile; returns what was found, and what
    `read` returned. A binary file goes to `read` as it is, which may have the kernel copy it."""
    head = b"" if scanner is None else os.pread(source.fileno(), BINARY_PROBE_BYTES, 0)
    if inside := git_hits(head[:PROBE_BYTES]):
        return inside, read(cast(BinaryIO, source))
    if scanner is None or is_binary(head):
        return (), read(cast(BinaryIO, source))
    reader = ScanningReader(cast(BinaryIO, source), scanner)
    result = read(cast(BinaryIO, reader))
    return hits(reader.findings), result


def git_hits(head: bytes) -> Hits:
    """Returns a hit for a file of git that has other files inside, compressed: what they hold, no
    scanner sees. `head`: its first bytes."""
    kind = object_files.kind_of(head)
    return (Hit(kind, 1),) if kind else ()


def hits_at(path: bytes, file_hits: Hits) -> Hits:
    """Returns the hits in a file at a path: none in a repository, which is never work."""
    return () if b"/.git/" in b"/" + path else file_hits


def has_xattrs(file: int | str) -> bool:
    """Whether a file has extended attributes but the label that SELinux gives to every file."""
    try:
        return os.listxattr(file) not in NO_ATTRIBUTES
    except OSError:  # not on every file system
        return False


def _check_readable(source: FileIO) -> None:
    """Reads a file to its end. Raises SourceUnreadable."""
    try:
        source.seek(0)
        while source.read(STREAM_MIN_BYTES):
            pass
    except OSError as error:
        raise SourceUnreadable(error) from None


def discard(done: Iterable[ReadFile]) -> None:
    protocols.discard(read_file.staged for read_file in done if read_file.staged is not None)


def _read_whole(fd: int, size: int) -> bytes:
    """Reads a whole file of `size` bytes; more or less where it has changed since. Raises
    SourceUnreadable."""
    try:
        data = os.read(fd, size + 1)
        while data and len(data) != size:
            chunk = os.read(fd, STREAM_MIN_BYTES)
            if not chunk:
                break
            data += chunk
    except OSError as error:
        raise SourceUnreadable(error) from None
    return data
