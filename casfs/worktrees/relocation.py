"""Derived directories that have the project's path inside: virtual environments, whose programs
begin with it, and build directories of CMake. Their copy in a worktree leads back to the project.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from casfs.store.nodes.directory import File, Subdirectory
from casfs.store.store import Store
from casfs.system.files import os_errors
from casfs.trees import recorded_state, tree
from casfs.trees.recorded_state import RecordedState

# By which file a directory is known, and the file that has its path inside.
MARKS = {b"pyvenv.cfg": (b"bin/activate", b"pyvenv.cfg"), b"CMakeCache.txt": (b"CMakeCache.txt",)}
# Of a virtual environment, which has many files without it.
VENV = (
    "pyvenv.cfg",
    "bin/*",
    "lib/python*/site-packages/*.pth",
    "lib/python*/site-packages/__editable__*.py",
    "lib/python*/site-packages/*.dist-info/direct_url.json",
)
COMPILED = (".o", ".a", ".so", ".gcno", ".pch", ".gch")
MAX_BYTES = 4 << 20
BEFORE = rb"(?<![\w.-])"
BEHIND = rb"(?![\w.-])"


def directories(store: Store, state: RecordedState, project: Path) -> Iterator[bytes]:
    """Yields the derived directories of a state that have the path of the project inside."""
    for path, entry in recorded_state.local_paths(store, state.tree, state.full):
        if isinstance(entry, Subdirectory):
            top = entry.digest.hash
            for mark, names in MARKS.items():
                if tree.find(store, top, mark) is not None and any(
                    _has(store, tree.find(store, top, name), project) for name in names
                ):
                    yield path


def _has(store: Store, entry: object, project: Path) -> bool:
    if not isinstance(entry, File) or entry.digest.size_bytes > MAX_BYTES:
        return False
    return _pattern(project).search(store.get(entry.digest.hash)) is not None


def relocate(directory: Path, project: Path, worktree: Path) -> None:
    """Replaces the path of the project by that of the worktree in the texts of such a directory,
    with their times: nothing is built again for it. Raises Failed."""
    pattern = _pattern(project)
    # A path may have what stands for groups.
    replacement = os.fsencode(worktree)
    for path in _texts(directory):
        with os_errors(f"cannot relocate {path}"):
            status = path.lstat()
            data = path.read_bytes()
            if b"\0" in data or pattern.search(data) is None:
                continue
            path.write_bytes(pattern.sub(lambda _: replacement, data))
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _pattern(project: Path) -> re.Pattern[bytes]:
    return re.compile(BEFORE + re.escape(os.fsencode(project)) + BEHIND)


def _texts(directory: Path) -> Iterator[Path]:
    is_venv = (directory / "pyvenv.cfg").exists()
    names = VENV if is_venv else ("**/*",)
    for name in names:
        for path in directory.glob(name):
            if path.is_symlink() or not path.is_file() or path.name.endswith(COMPILED):
                continue
            if path.lstat().st_size <= MAX_BYTES:
                yield path
