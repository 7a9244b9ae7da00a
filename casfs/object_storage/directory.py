"""A directory as object storage: of another disk, or of a file server."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path

from casfs.errors import AccessDenied, CasfsError, Failed, NotFound, Unreachable
from casfs.object_storage.interface import KEY, MAX_OBJECT_BYTES, Found, ObjectStorage
from casfs.system import locks
from casfs.system.files import NEW_FILE, closing_fd, fsync

TEMP = ".tmp"  # files that are being written; no key begins with a dot
LEFT_AFTER = timedelta(days=1)  # for a writer of another machine, whose lock may not show here
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
COPY_BYTES = 1 << 20
GONE = (errno.EIO, errno.ESTALE, errno.ENODEV, errno.ENOTCONN, errno.ETIMEDOUT)
KINDS: dict[int, type[CasfsError]] = {
    errno.EACCES: AccessDenied,
    **dict.fromkeys(GONE, Unreachable),
}


class DirectoryStorage(ObjectStorage):
    """Objects as files, each written whole and synced before its key exists."""

    def __init__(self, url: str, root: Path) -> None:
        super().__init__(url)
        self._root = root

    def get(self, key: str, max_size: int = MAX_OBJECT_BYTES) -> bytes:
        with self._open(key) as (fd, metadata):
            self.bounded(key, metadata.size, max_size)
            return os.pread(fd, metadata.size, 0)

    def get_range(self, key: str, offset: int, size: int) -> bytes:
        with self._open(key) as (fd, _):
            return self.exactly(key, os.pread(fd, size, offset), size)

    def get_tail(self, key: str, size: int) -> tuple[bytes, int]:
        with self._open(key) as (fd, (total, _)):
            size = min(size, total)
            return self.exactly(key, os.pread(fd, size, total - size), size), total

    def put(self, key: str, data: bytes | Path) -> None:
        with self._failing(self.place(key)), self._written(data) as temp:
            target = self._made(key)
            temp.replace(target)
            fsync(target.parent)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        with self._failing(self.place(key)), self._written(data) as temp:
            target = self._made(key)
            try:
                os.link(temp, target)
            except FileExistsError:
                return self.get(key) == data
            finally:
                fsync(target.parent)
            return True

    def head(self, key: str) -> Found | None:
        with suppress(NotFound), self._open(key) as (_, metadata):
            return metadata
        return None

    def delete(self, key: str) -> None:
        with self._failing(self.place(key)), suppress(FileNotFoundError):
            (self._root / key).unlink()

    def list(self, prefix: str) -> Iterator[tuple[str, Found]]:
        for folder, _, names in os.walk(self._root / prefix):
            for name in names:
                key = Path(folder, name).relative_to(self._root).as_posix()
                with suppress(Failed):  # not a regular file
                    if KEY.fullmatch(key) and (metadata := self.head(key)):
                        yield key, metadata

    def now(self) -> datetime:
        with self._failing(self.url), self._written(b"") as temp:
            return datetime.fromtimestamp(temp.stat().st_mtime, UTC)

    def server(self) -> str:
        return f"the file system of {self._root}"

    @contextmanager
    def _open(self, key: str) -> Iterator[tuple[int, Found]]:
        """The descriptor of an object's file, and its metadata."""
        location = self.place(key)
        with self._failing(location), open(os.open(self._root / key, READ), "rb", 0) as file:
            file_stat = os.fstat(file.fileno())
            if not stat.S_ISREG(file_stat.st_mode):
                raise Failed(f"{location}: not a regular file")
            modified = datetime.fromtimestamp(file_stat.st_mtime, UTC)
            yield file.fileno(), Found(file_stat.st_size, modified)

    @contextmanager
    def _written(self, data: bytes | Path) -> Iterator[Path]:
        """A synced private file of these bytes, removed at the end."""
        with BytesIO(data) if isinstance(data, bytes) else data.open("rb") as source:
            temp, fd = self._new_temp()
            try:
                with open(fd, "wb") as file:
                    shutil.copyfileobj(source, file, COPY_BYTES)
                    file.flush()
                    os.fsync(file.fileno())
                    yield temp  # locked until it has its place
            finally:
                temp.unlink(missing_ok=True)

    def _new_temp(self) -> tuple[Path, int]:
        """Makes a file that is locked for as long as its writer lives."""
        while True:
            temp = self._made(f"{TEMP}/{_machine()}-{secrets.token_hex(8)}")
            fd = os.open(temp, NEW_FILE, 0o600)
            try:
                if locks.try_lock(fd) and locks.is_at(fd, temp):
                    return temp, fd
            except OSError:  # a file server without locks
                return temp, fd
            os.close(fd)  # `unfinished` was faster

    def unfinished(self, *, delete: bool) -> dict[str, int]:
        sizes: dict[str, int] = {}
        before = self.now() - LEFT_AFTER
        with self._failing(self.url):
            for path in sorted((self._root / TEMP).glob("*")):
                with suppress(FileNotFoundError):
                    size = _size_of_left(path, before, delete=delete)
                    if size is not None:
                        sizes[f"{TEMP}/{path.name}"] = size
        return sizes

    def _made(self, key: str) -> Path:
        """The path of a key, in a directory that exists and is durable."""
        path = self._root / key
        for parent in reversed([ancestor for ancestor in path.parents if not ancestor.exists()]):
            parent.mkdir(0o700, exist_ok=True)
            fsync(parent.parent)
        return path

    @contextmanager
    def _failing(self, location: str) -> Iterator[None]:
        """Turns an OSError into one of our errors."""
        try:
            yield
        except FileNotFoundError:
            raise NotFound(f"{location}: no such object") from None
        except OSError as error:
            kind = KINDS.get(error.errno or 0, Failed)
            raise kind(f"{location}: {error.strerror}") from error


def _machine() -> str:
    """Returns a name of this machine since it was started."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().replace("-", "")[:16]


def _size_of_left(path: Path, before: datetime, *, delete: bool) -> int | None:
    """Returns the size of a file whose writer has died; None where he may be alive. Raises
    OSError."""
    fd = locks.lock_file(path, READ)
    if fd is None:
        return None
    with closing_fd(fd):
        file_stat = os.fstat(fd)
        is_old = datetime.fromtimestamp(file_stat.st_mtime, UTC) < before
        if not is_old and not path.name.startswith(_machine()):
            return None
        if delete:
            path.unlink()
        return file_stat.st_size
