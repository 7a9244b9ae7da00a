"""Directories that have the project's path inside: virtual environments, whose programs begin with
it, and build directories of CMake. Their copy in a worktree leads back to the project.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.parse import quote

from casfs.digest import TreeHash
from casfs.store.nodes.directory import File, Subdirectory
from casfs.store.store import Store
from casfs.system.files import NEW_FILE, closing_fd, os_errors, write_all
from casfs.system.paths import DIR_FLAGS, FILE_FLAGS, open_directory
from casfs.trees import recorded_state, tree
from casfs.trees.recorded_state import RecordedState

# By which file a directory is known, and the files that have its path inside.
VENV_MARK, CMAKE_MARK = b"pyvenv.cfg", b"CMakeCache.txt"
MARKS = {VENV_MARK: (b"bin/activate", VENV_MARK), CMAKE_MARK: (CMAKE_MARK,)}
# Of a virtual environment, which has many files without it: the directories, and the files there.
VENV_DIRECTORIES = re.compile(
    rb"bin|lib|lib/python[^/]*|lib/python[^/]*/site-packages(/[^/]*\.dist-info)?"
)
VENV_FILES = re.compile(
    rb"pyvenv\.cfg|bin/[^/]*|lib/[^/]*/site-packages/([^/]*\.pth|__editable__[^/]*\.py"
    rb"|[^/]*/direct_url\.json)"
)
EDITABLE = re.compile(rb".*\.pth|__editable__.*\.py")  # in the directory of packages
COMPILED = (b".o", b".a", b".so", b".gcno", b".pch", b".gch")
MAX_BYTES = 4 << 20
TEMPORARY = b".casfs-relocated"
# What stands before and after a path that ends there: no other character of a name. An option of a
# compiler may stand before it (-I/path), or the scheme of an address.
BEFORE = rb"(\A|[^\w./\x80-\xff-]|(?<![\w-])-[A-Za-z]+|://)"
AFTER = rb"(?=\Z|[/\"'`\s:;,)\]}<>\\|&$])"


def directories(store: Store, state: RecordedState, project: Path) -> Iterator[bytes]:
    """Yields the directories of a state that have the path of the project inside: of those at its
    top, and of the derived ones further down."""
    pattern = _pattern(os.fsencode(project))
    for path, top in sorted(_candidates(store, state).items()):
        for mark, names in MARKS.items():
            if tree.find(store, top.digest.hash, mark) is not None:
                entries = (tree.find(store, top.digest.hash, name) for name in names)
                if any(_has(store, entry, pattern) for entry in entries):
                    yield path
                    break


def is_editable(store: Store, state: RecordedState, directory: bytes, project: Path) -> bool:
    """Returns whether a virtual environment has something of the project installed so that its own
    files are imported: in a worktree these would be the project's."""
    pattern = _pattern(os.fsencode(project))
    packages = (
        tree.load(store, site.digest.hash)
        for path in _children(store, state.full, directory + b"/lib")
        if isinstance(site := tree.find(store, state.full, path + b"/site-packages"), Subdirectory)
    )
    return any(
        EDITABLE.fullmatch(name) and _has(store, entry, pattern)
        for entries in packages
        for name, entry in entries.items()
    )


def _children(store: Store, root: TreeHash, path: bytes) -> list[bytes]:
    top = tree.find(store, root, path)
    if not isinstance(top, Subdirectory):
        return []
    return [path + b"/" + name for name in tree.load(store, top.digest.hash)]


def _candidates(store: Store, state: RecordedState) -> dict[bytes, Subdirectory]:
    local = recorded_state.local_paths(store, state.tree, state.full)
    at_top = ((entry.name, entry) for entry in tree.load(store, state.full).values())
    return {path: entry for path, entry in (*local, *at_top) if isinstance(entry, Subdirectory)}


def _has(store: Store, entry: object, pattern: re.Pattern[bytes]) -> bool:
    if not isinstance(entry, File) or entry.digest.size_bytes > MAX_BYTES:
        return False
    return pattern.search(store.get(entry.digest.hash)) is not None


def relocate(worktree: Path, directory: bytes, project: Path) -> None:
    """Replaces the path of the project by that of the worktree in the texts of such a directory,
    with their times: nothing is built again for it. No link is followed. Raises Failed."""
    new, old = os.fsencode(worktree), os.fsencode(project)
    with os_errors(f"cannot relocate {worktree / os.fsdecode(directory)}"):
        root = os.open(worktree, DIR_FLAGS)
        with closing_fd(root):
            top = open_directory(root, directory.split(b"/"))
        with closing_fd(top):
            for fd, name in _texts(top):
                _replace(fd, name, old, new)


def _texts(top: int) -> Iterator[tuple[int, bytes]]:
    """Yields the open directory and the name of each file that may have the path inside."""
    is_venv = VENV_MARK in map(os.fsencode, os.listdir(top))
    for folder, below, files, fd in os.fwalk(b".", dir_fd=top):
        prefix = folder[2:] + b"/" if folder != b"." else b""
        if is_venv:
            below[:] = [name for name in below if VENV_DIRECTORIES.fullmatch(prefix + name)]
            files = [name for name in files if VENV_FILES.fullmatch(prefix + name)]
        for name in files:
            if not name.endswith(COMPILED):
                yield fd, name


def _replace(fd: int, name: bytes, old: bytes, new: bytes) -> None:
    status = os.stat(name, dir_fd=fd, follow_symlinks=False)
    if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
        return
    source = os.open(name, FILE_FLAGS, dir_fd=fd)
    with closing_fd(source):
        before = os.read(source, MAX_BYTES)
    if b"\0" in before:
        return
    data = _pattern(old).sub(partial(_moved, old, new), before)
    if data == before:
        return
    try:
        copy = os.open(TEMPORARY, NEW_FILE, 0o600, dir_fd=fd)
        with closing_fd(copy):
            write_all(copy, data)
            os.fchmod(copy, stat.S_IMODE(status.st_mode))
            os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
        os.rename(TEMPORARY, name, src_dir_fd=fd, dst_dir_fd=fd)
    except BaseException:
        with suppress(OSError):
            os.unlink(TEMPORARY, dir_fd=fd)
        raise


def _moved(old: bytes, new: bytes, match: re.Match[bytes]) -> bytes:
    is_in_address = match[1] == b"://" or match[2] != old
    return match[1] + (quote(new).encode() if is_in_address else new)


def _pattern(path: bytes) -> re.Pattern[bytes]:
    """Matches a path as it is, or as it is in an address, with what stands before it."""
    forms = b"|".join({re.escape(path): None, re.escape(quote(path).encode()): None})
    return re.compile(BEFORE + b"(" + forms + b")" + AFTER)
