"""Recognises directories whose content is derived from the rest, by evidence beside or inside them.

A name alone decides only where nothing but a tool makes such a directory; `build`, `venv` or
`target` may be anybody's. What is recognised a tool makes again, or git has already.

`dist` and `build` also need the project's own word that they are derived: its `.gitignore` files,
from the recorded directory (or the innermost repository) down to them, read as git reads them. A
`.git` *file*, of a submodule or a linked worktree, is a line of text, and is recorded.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Container
from typing import NamedTuple

from casfs.system.files import closing_fd
from casfs.system.paths import FILE_FLAGS, open_directory
from casfs.trees.snapshot.gitignore import Patterns

NAMES = frozenset(b"__pycache__ .mypy_cache .pytest_cache .ruff_cache .next .nuxt".split())
MADE_FROM = {b"node_modules": (b"package.json",), b"target": (b"Cargo.toml", b"pom.xml")}
BUILT = frozenset((b"dist", b"build"))
BUILD_FILES = (
    b"package.json", b"pyproject.toml", b"setup.py", b"CMakeLists.txt", b"build.gradle",
    b"Makefile",
)  # fmt: skip
VIRTUAL_ENVIRONMENTS = frozenset((b".venv", b"venv"))
CACHE_TAG = b"CACHEDIR.TAG"
CACHE_SIGNATURE = b"Signature: 8a477f597d28d172789f06886806bc55"
MAX_GITIGNORE_BYTES = 1 << 20
GIT = "a git repository"
VENV = "a virtual environment"
EVIDENCE_INSIDE = (VENV, CACHE_TAG.decode())  # reasons that what is inside gives


class Surroundings(NamedTuple):
    """Where an entry is. `root`, `fd`: descriptors of the recorded directory and of the one that
    holds the entry, which has `names`; `inside`: they are of the entry itself, where it has a
    CACHEDIR.TAG, which is seen when it is listed: an attempt to open one in each directory would
    cost a twentieth of an unchanged snapshot."""

    root: int
    fd: int
    names: Collection[bytes]
    inside: bool = False


class DerivedDirectories:
    """Caches the `.gitignore` files of one snapshot."""

    def __init__(self) -> None:
        self._gitignores: dict[bytes, tuple[Patterns | None, bool]] = {}

    def reason(self, path: bytes, name: bytes, surroundings: Surroundings) -> str | None:
        """Returns why the directory `path` is derived, None where nothing says so."""
        if surroundings.inside:
            return CACHE_TAG.decode() if _is_tagged(surroundings.fd) else None
        if name in NAMES:
            return "derived files"
        if name in VIRTUAL_ENVIRONMENTS and _exists(surroundings.fd, name, b"pyvenv.cfg"):
            return VENV
        made_from = _first(MADE_FROM.get(name, ()), surroundings.names)
        if made_from is not None:
            return f"derived from {made_from}"
        if name in BUILT:
            made_from = _first(BUILD_FILES, surroundings.names)
            if made_from is not None and self._is_gitignored(path, surroundings.root):
                return f"derived from {made_from}, and in .gitignore"
        return None

    def _is_gitignored(self, path: bytes, root: int) -> bool:
        """As git decides for a directory: what is below an ignored one is ignored."""
        parts = path.split(b"/")
        return any(self._decision(parts[:end], root) for end in range(1, len(parts) + 1))

    def _decision(self, parts: list[bytes], root: int) -> bool:
        for start in range(len(parts) - 1, -1, -1):  # the innermost file that decides prevails
            patterns, is_top = self._patterns(b"/".join(parts[:start]), root)
            below = b"/".join(parts[start:])
            decided = patterns and patterns.decision(below, parts[-1], directory=True)
            if decided is not None or is_top:
                return bool(decided)
        return False

    def _patterns(self, directory: bytes, root: int) -> tuple[Patterns | None, bool]:
        """Returns a directory's `.gitignore`, and whether the directory is a repository's top."""
        gitignore = self._gitignores.get(directory)
        if gitignore is None:
            gitignore = self._gitignores[directory] = _read_gitignore(directory, root)
        return gitignore


def _read_gitignore(directory: bytes, root: int) -> tuple[Patterns | None, bool]:
    try:
        fd = open_directory(root, filter(None, directory.split(b"/")))
    except OSError:
        return None, False
    with closing_fd(fd):
        text = _read_start(fd, b".gitignore", MAX_GITIGNORE_BYTES)
        return Patterns(text, strict=False) if text else None, _exists(fd, b".git")


def _first(wanted: tuple[bytes, ...], names: Container[bytes]) -> str | None:
    return next((name.decode() for name in wanted if name in names), None)


def _exists(fd: int, *parts: bytes) -> bool:
    try:
        os.stat(b"/".join(parts), dir_fd=fd, follow_symlinks=False)
    except OSError:
        return False
    return True


def _is_tagged(fd: int) -> bool:
    return _read_start(fd, CACHE_TAG, len(CACHE_SIGNATURE)) == CACHE_SIGNATURE


def _read_start(fd: int, path: bytes, size: int) -> bytes | None:
    """Returns the first bytes of a regular file; None where there is none."""
    try:
        file = os.open(path, FILE_FLAGS, dir_fd=fd)
    except OSError:
        return None
    try:
        return os.read(file, size) if stat.S_ISREG(os.fstat(file).st_mode) else None
    except OSError:
        return None
    finally:
        os.close(file)
