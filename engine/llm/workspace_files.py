"""File access confined to one directory: the file tools of a model.

A path is walked one component at a time, each opened relative to the descriptor of the one
before without following links, so a concurrent swap cannot lead out. A link inside is resolved
by walking its target the same way; `..` in a target goes back along the opened descriptors, and no
further than the first. Refused are an absolute path, `..` in a path, an absolute link, a link that
leads out.

A file is written to a temporary name and renamed: it is there whole or not at all, and neither a
hard link nor a device is ever written through. The mode is kept.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from casfs.errors import Failed, Invalid, NotFound, Refused
from casfs.system.files import closing_fd
from casfs.system.paths import DIR_FLAGS, FILE_FLAGS

CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
MAX_LINKS = 40  # followed for one path
MAX_DEPTH = 200


@dataclass(frozen=True)
class Entry:
    """A directory entry. `kind`: file, directory, link or other; `size`: bytes."""

    name: str
    kind: str
    size: int


def relative_path(workspace: Path, path: str) -> str | None:
    """Returns an absolute path relative to the workspace, by its own or its real path; None for one
    that is not below it."""
    for root in (workspace, os.path.realpath(workspace)):
        if PurePosixPath(path).is_relative_to(root):
            return str(PurePosixPath(path).relative_to(root))
    return None


class WorkspaceFiles:
    def __init__(self, root: Path) -> None:
        self._root = root

    def read(self, path: str, limit: int) -> bytes:
        """Reads at most `limit` bytes. Raises NotFound, Refused, Failed."""
        with self._place(path) as (folder, name):
            return _read(folder, name, path=path, limit=limit)

    def write(self, path: str, data: bytes) -> None:
        """Creates or replaces a file, and missing parent directories."""
        with self._place(path, make=True) as (folder, name):
            if name == ".":
                raise Refused(f"{path!r} is a directory")
            mode = _mode(folder, name, path)
            temp = f".casfs-{secrets.token_hex(8)}"
            try:
                fd = os.open(temp, CREATE, 0o600, dir_fd=folder)
                with open(fd, "wb") as file:
                    file.write(data)
                    os.fchmod(file.fileno(), mode)
                os.rename(temp, name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError as error:
                with suppress(OSError):
                    os.unlink(temp, dir_fd=folder)
                raise Failed(f"cannot write {path!r}: {error.strerror}") from None

    def entries(self, path: str) -> list[Entry]:
        """Lists a directory, sorted by name."""
        with self._place(path) as (folder, name):
            fd = _open(name, DIR_FLAGS, folder=folder, path=path)
            with closing_fd(fd), os.scandir(fd) as dir_entries:
                return sorted(map(_entry, dir_entries), key=lambda entry: entry.name)

    def walk(self, path: str, limit: int) -> Iterator[tuple[str, bytes]]:
        """Yields (path, content) of every regular file of at most `limit` bytes below a directory,
        or of the file `path`. Links are not followed; `.git` is skipped."""
        with self._place(path) as (folder, name):
            above = "/".join(_parts(path))
            if name != "." and not stat.S_ISDIR(_stat(folder, name, path).st_mode):
                yield above, _read(folder, name, path=path, limit=limit)
                return
            fd = _open(name, DIR_FLAGS, folder=folder, path=path)
            with closing_fd(fd):
                yield from _walk(fd, above, limit=limit, depth=0)

    @contextmanager
    def _place(self, path: str, make: bool = False) -> Iterator[tuple[int, str]]:
        """Yields (descriptor of the parent directory, last component); `.` for the root, or where
        a link's target ends with `..`. `make`: create missing directories."""
        open_: list[int] = []
        try:
            open_.append(os.open(self._root, DIR_FLAGS))
            yield self._walked(open_, deque(_parts(path)), path=path, make=make)
        except OSError as error:
            raise _fault(error, path) from None
        finally:
            for fd in open_:
                os.close(fd)

    def _walked(self, open_: list[int], todo: deque[str], path: str, make: bool) -> tuple[int, str]:
        links = 0
        while todo:
            name = todo.popleft()
            if name == "..":
                if len(open_) == 1:
                    raise Refused(f"{path!r} leads out of the workspace")
                os.close(open_.pop())
                continue
            target = _target(open_[-1], name)
            if target is not None:
                links += 1
                if target.startswith("/") or links > MAX_LINKS:
                    raise Refused(f"{path!r} leads through a link out of the workspace")
                parts = [part for part in target.split("/") if part not in ("", ".")]
                todo.extendleft(reversed(parts))
                continue
            if not todo:
                return open_[-1], name
            if make:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o777, dir_fd=open_[-1])
            open_.append(os.open(name, DIR_FLAGS, dir_fd=open_[-1]))
        return open_[-1], "."


def _parts(path: str) -> list[str]:
    if "\0" in path:
        raise Invalid("a path cannot hold NUL")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/") or ".." in parts:
        raise Refused(f"{path!r}: only paths below the workspace, without `..`")
    return parts


def _target(folder: int, name: str) -> str | None:
    """Returns the target of a link; None where it is missing or not a link."""
    try:
        return os.readlink(name, dir_fd=folder)
    except OSError:
        return None


def _open(name: str, flags: int, folder: int, path: str) -> int:
    try:
        return os.open(name, flags, dir_fd=folder)
    except OSError as error:
        raise _fault(error, path) from None


def _stat(folder: int, name: str, path: str) -> os.stat_result:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        raise _fault(error, path) from None


def _mode(folder: int, name: str, path: str) -> int:
    """Returns the mode of an existing file, else 0644. Raises Refused where it is not a file."""
    try:
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return 0o644
    if not stat.S_ISREG(mode):
        raise Refused(f"{path!r} is not a regular file")
    return stat.S_IMODE(mode)


def _read(folder: int, name: str, path: str, limit: int) -> bytes:
    fd = _open(name, FILE_FLAGS, folder=folder, path=path)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise Refused(f"{path!r} is not a regular file")
    with open(fd, "rb") as file:
        return file.read(limit)


def _entry(dir_entry: os.DirEntry[str]) -> Entry:
    try:
        about = dir_entry.stat(follow_symlinks=False)
    except OSError:  # gone by now
        return Entry(dir_entry.name, "other", 0)
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}
    return Entry(dir_entry.name, kinds.get(stat.S_IFMT(about.st_mode), "other"), about.st_size)


def _walk(fd: int, above: str, limit: int, depth: int) -> Iterator[tuple[str, bytes]]:
    with os.scandir(fd) as dir_entries:
        entries = sorted(map(_entry, dir_entries), key=lambda scanned: scanned.name)
    for entry in entries:
        path = f"{above}/{entry.name}" if above else entry.name
        if entry.kind == "file" and entry.size <= limit:
            with suppress(Failed, NotFound, Refused):
                yield path, _read(fd, entry.name, path=path, limit=limit)
        elif entry.kind == "directory" and entry.name != ".git" and depth < MAX_DEPTH:
            try:
                below = os.open(entry.name, DIR_FLAGS, dir_fd=fd)
            except OSError:
                continue
            with closing_fd(below):
                yield from _walk(below, path, limit=limit, depth=depth + 1)


def _fault(error: OSError, path: str) -> Failed | NotFound:
    if isinstance(error, FileNotFoundError):
        return NotFound(f"no {path!r} in the workspace")
    return Failed(f"{path!r}: {error.strerror}")
