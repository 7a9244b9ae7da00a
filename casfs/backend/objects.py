"""Large blobs as plain files: `objects/ab/cdef…`, mode 0444, uncompressed.

Plain, so that the kernel can serve them: mmap, reflink, overlay lowers, one page cache
for every tree that holds the file. A file gets here in three steps: written and hashed
under a private name in `tmp/` (`casfs.backend.staging`), made durable, renamed into place.
Renames and removals happen only under the store's write lock (`casfs.backend.disk`); hence a
half-written object is never visible, and gc cannot delete one that a writer has just found.

Sync is batched: a handful of files is fsynced one by one, more than that by one syncfs.
"""

from __future__ import annotations

import errno
import io
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from casfs.backend.protocols import INLINE_MAX_BYTES, Staged
from casfs.backend.staging import StagingDirectory
from casfs.digest import CHUNK, BlobHash, Digest, Hasher, hash_bytes, hash_stream, is_hash
from casfs.errors import CorruptBlob, Failed, NotFound
from casfs.system import files, interruption
from casfs.system.files import (
    NEW_FILE,
    closing_fd,
    copy_extents,
    fsync,
    os_errors,
    read_up_to,
    syncfs,
    write_all,
)
from casfs.system.paths import FILE_FLAGS

OBJECT_MODE = 0o444
FSYNC_MAX_FILES = 8  # up to this many fsyncs are cheaper than one syncfs
VERIFIED_MAX_FILES = 1 << 17  # whose verification a process caches
ZEROS = bytes(CHUNK)
KERNEL_COPY_MIN_BYTES = 64 << 20
UNSUPPORTED_COPY = (
    errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF, errno.EPERM,
)  # fmt: skip
FIRST_READ_BYTES = 1 << 16  # a larger buffer is mapped and unmapped each time
NOT_A_FILE = (errno.ELOOP, errno.ENXIO, errno.ENODEV)  # a link, a socket, a device
SHARD = re.compile("[0-9a-f]{2}")
Stamp = tuple[int, int, int, int]  # inode, size, mtime, ctime


class Objects:
    def __init__(self, root: Path, staging: Path | None = None) -> None:
        """`staging`: the staging directory of the parent, where this is a worker process."""
        self.root = root
        self._prefix = f"{root}/"
        self.staging = StagingDirectory(root.parent / "tmp", staging)
        self._verified: dict[str, Stamp] = {}

    @classmethod
    def create(cls, root: Path) -> None:
        """Makes the directory, without shards: most stores never need all 256."""
        root.mkdir(parents=True, exist_ok=True)
        (root.parent / "tmp").mkdir(exist_ok=True)

    def path(self, hash: str) -> Path:
        return self.root / hash[:2] / hash[2:]

    # -- staging -----------------------------------------------------------------------

    def stage(self, source: BinaryIO, held_bytes: int = INLINE_MAX_BYTES) -> Staged:
        """Hashes `source` into memory up to `held_bytes`, else into a private file."""
        first = read_up_to(source, held_bytes + 1)
        if len(first) <= held_bytes:
            return Staged(Digest.of(first), first)
        temp = self.staging.new_name()
        try:
            bulk = self._copy(source, temp, len(first))
            return Staged(bulk or self._spool(first, source, temp), data=None, temp=temp)
        except BaseException:
            with suppress(OSError):
                os.unlink(temp)
            raise

    def stage_bytes(self, digest: Digest, data: bytes) -> Staged:
        """As `stage`, for bytes in memory."""
        if len(data) <= INLINE_MAX_BYTES:
            return Staged(digest, data)
        temp = self.staging.new_name()
        try:
            fd = os.open(temp, NEW_FILE, OBJECT_MODE)
            with closing_fd(fd):
                write_all(fd, data)
                os.fchmod(fd, OBJECT_MODE)  # whatever the umask is
        except BaseException as error:
            with suppress(OSError):
                os.unlink(temp)
            if isinstance(error, OSError):
                raise Failed(f"cannot write {temp}: {error.strerror}") from error
            raise
        return Staged(digest, data=None, temp=temp)

    def _copy(self, source: BinaryIO, temp: str, begun: int) -> Digest | None:
        """Copies a very large file inside the kernel and hashes the copy, which cannot change in
        between. Returns None where the kernel cannot copy it."""
        if not isinstance(getattr(source, "raw", source), io.FileIO):
            return None  # the descriptor of a decompressor or archive member is another file
        try:
            origin = source.fileno()
            start = source.tell() - begun
            offset = os.lseek(origin, 0, os.SEEK_CUR)  # a buffered reader is ahead of `tell`
            size = os.fstat(origin).st_size - start
        except OSError:  # a pipe has no offset
            return None
        if size < KERNEL_COPY_MIN_BYTES:
            return None
        with os_errors(f"cannot write {temp}"):
            fd = os.open(temp, NEW_FILE, 0o600)
        try:
            with os_errors(f"cannot write {temp}"):
                whole = copy_extents(origin, fd, start=start, size=size)
                os.fchmod(fd, OBJECT_MODE)
        except Failed as error:
            cause = error.__cause__
            if not isinstance(cause, OSError) or cause.errno not in UNSUPPORTED_COPY:
                raise
            whole = False
        finally:
            os.close(fd)
        if not whole:
            os.lseek(origin, offset, os.SEEK_SET)
            os.unlink(temp)
            return None
        with open(temp, "rb", buffering=0) as copy:  # mapped it would count as our memory
            return hash_stream(copy, interruption.check)

    def _spool(self, first: bytes, source: BinaryIO, temp: str) -> Digest:
        """Hashes a stream into `temp`. Errors of `source` pass through: only the caller can name
        the file."""
        hasher = Hasher()
        size = 0
        with os_errors(f"cannot write {temp}"):
            fd = os.open(temp, NEW_FILE, 0o600)
        with open(fd, "wb", buffering=0) as out:
            piece = first + source.read(CHUNK - len(first))
            while piece:
                interruption.check()
                hasher.update(piece)
                size += len(piece)
                with os_errors(f"cannot write {temp}"):
                    if piece == ZEROS:  # a hole stays a hole
                        out.seek(len(piece), os.SEEK_CUR)
                    else:
                        write_all(fd, piece)
                piece = source.read(CHUNK)
            with os_errors(f"cannot write {temp}"):
                out.truncate(size)
                os.fchmod(fd, OBJECT_MODE)
        return Digest(BlobHash(hasher.hexdigest()), size)

    def sync(self, staged: Iterable[Staged]) -> None:
        """Makes the content of staged files and packs durable; they are still private."""
        self._sync([*{blob.temp for blob in staged if blob.temp is not None}])

    def place(self, staged: Iterable[Staged]) -> None:
        """Renames synced files into place, durably. Caller holds the write lock."""
        shards = set()
        target = ""
        try:
            for blob in staged:
                if blob.temp is not None and blob.member is None:
                    hash = blob.digest.hash
                    target = f"{self._prefix}{hash[:2]}/{hash[2:]}"
                    self._rename(blob.temp, target)  # over a leftover of a crash
                    shards.add(hash[:2])  # a crash may have come between a rename and its sync
        except OSError as error:
            raise Failed(f"cannot write {target}: {error.strerror}") from error
        self._sync([self._prefix + shard for shard in sorted(shards)])

    def _rename(self, temp: str, target: str) -> None:
        try:
            os.rename(temp, target)
        except FileNotFoundError as error:
            try:
                os.mkdir(os.path.dirname(target))
            except FileExistsError:
                raise error from None  # what is missing is `temp`
            fsync(self.root)  # before anything is in the shard that could be lost with it
            os.rename(temp, target)

    def _sync(self, paths: list[str]) -> None:
        # A step has no file of its own, but comes here twice.
        if not paths:
            return
        with os_errors(f"cannot sync {self.root}"):
            if len(paths) > FSYNC_MAX_FILES:
                syncfs(self.root)
            else:
                for path in paths:
                    fsync(path)

    # -- reading -----------------------------------------------------------------------

    def open(self, hash: str) -> BinaryIO:
        """Opens the file of a blob; verified the first time, and again when it has changed."""
        source = os.fdopen(self._open(hash), "rb", buffering=0)
        try:
            self._verify(hash, source)
        except OSError as error:
            source.close()
            raise Failed(f"blob {hash}: {error.strerror}") from error
        except BaseException:
            source.close()
            raise
        return source

    def open_unverified(self, hash: str) -> BinaryIO:
        """Opens the file of a blob as it is. Raises NotFound, CorruptBlob (no file), Failed."""
        return os.fdopen(self._open(hash), "rb", buffering=0)

    def content(self, hash: str, size: int = FIRST_READ_BYTES - 1) -> bytes | None:
        """Returns the verified bytes of a blob's file; None when it is large. `size` is a hint."""
        fd = self._open(hash)
        with os_errors(f"blob {hash}"), closing_fd(fd):
            data = os.read(fd, min(size + 1, CHUNK))
            if len(data) > size:
                data += os.read(fd, CHUNK - len(data))
        if len(data) == CHUNK:
            return None
        if hash_bytes(data) != hash:
            raise CorruptBlob(f"blob {hash}: its file does not hash to its name")
        return data

    def _open(self, hash: str) -> int:
        """Opens a blob's file, without waiting for whatever stands in its place."""
        try:
            fd = os.open(f"{self._prefix}{hash[:2]}/{hash[2:]}", FILE_FLAGS)
        except FileNotFoundError:
            raise NotFound(f"blob {hash}: its file is missing from {self.root}") from None
        except OSError as error:
            if error.errno not in NOT_A_FILE:
                raise Failed(f"blob {hash}: {error.strerror}") from error
        else:
            mode = os.fstat(fd).st_mode
            if stat.S_ISREG(mode):
                return fd
            os.close(fd)
            if stat.S_ISDIR(mode):
                raise Failed(f"blob {hash}: {os.strerror(errno.EISDIR)}")
        raise CorruptBlob(f"blob {hash}: its file is not a regular file")

    def _verify(self, hash: str, source: BinaryIO) -> None:
        file_stat = os.fstat(source.fileno())
        stamp = (file_stat.st_ino, file_stat.st_size, file_stat.st_mtime_ns, file_stat.st_ctime_ns)
        if self._verified.get(hash) == stamp:
            return
        if hash_stream(source, interruption.check).hash != hash:
            raise CorruptBlob(f"blob {hash}: its file does not hash to its name")
        source.seek(0)
        if len(self._verified) >= VERIFIED_MAX_FILES:
            self._verified.clear()
        self._verified[hash] = stamp

    def verify(self, hash: str, size: int) -> None:
        """Reads a file again in any case. Raises NotFound, CorruptBlob, Failed."""
        self._verified.pop(hash, None)
        with self.open(hash) as source:
            if os.fstat(source.fileno()).st_size != size:
                raise CorruptBlob(f"blob {hash}: its file is not {size} bytes long")

    # -- files ------------------------------------------------------------------

    def remove(self, hash: str, *, quarantined: bool = False) -> None:
        """Deletes a blob's file if there is one, and a quarantined copy where that is asked for.
        Caller holds the write lock."""
        self._verified.pop(hash, None)
        with os_errors(f"cannot remove {self.path(hash)}"):
            with suppress(FileNotFoundError):
                os.unlink(f"{self._prefix}{hash[:2]}/{hash[2:]}")
            if quarantined:
                (self.root.parent / "quarantine" / hash).unlink(missing_ok=True)

    def has_file(self, hash: str) -> bool:
        """Whether a blob's file is there, or a quarantined copy."""
        return self.path(hash).exists() or (self.root.parent / "quarantine" / hash).exists()

    def quarantine(self, hash: str, data: bytes | None) -> None:
        """Moves the damaged bytes of a blob to `quarantine/`. Caller holds the write lock."""
        folder = self.root.parent / "quarantine"
        with os_errors(f"cannot move blob {hash} to {folder}"):
            folder.mkdir(mode=0o700, exist_ok=True)
            if data is not None:
                (folder / hash).write_bytes(data)
            elif os.path.lexists(self.path(hash)):
                self.path(hash).rename(folder / hash)
        self._verified.pop(hash, None)

    def faults(self) -> Iterator[str]:
        """Yields a line for each file below `objects/` whose name, kind, mode or owner is wrong.
        A file that gc removes meanwhile has no fault."""
        for entry in sorted(self.root.rglob("*")):
            name = entry.relative_to(self.root).as_posix()
            is_directory = entry.is_dir() and not entry.is_symlink()
            shard = is_directory and len(name) == 2 and is_hash(name.ljust(64, "0"))
            if not shard and not (len(name) == 65 and is_hash(name.replace("/", "", 1))):
                yield f"{name}: not the name of a blob; a foreign file, or damage"
            elif fault := files.file_fault(entry, OBJECT_MODE, self.root, is_folder=shard):
                yield f"{name}: {fault}"

    def shards(self) -> Iterator[list[tuple[str, float]]]:
        """Yields (hash, ctime) of every file, shard by shard; files of other names are left out."""
        for name in sorted(os.listdir(self.root)):
            if not SHARD.fullmatch(name):
                continue
            files = [(name + entry.name, entry) for entry in os.scandir(self.root / name)]
            yield [(hash, entry.stat().st_ctime) for hash, entry in files if is_hash(hash)]
