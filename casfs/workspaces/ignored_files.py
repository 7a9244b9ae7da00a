"""Copies of ignored files for the workspaces of threads.

What `.casfsignore` or --exclude names is recorded nowhere, but an agent may need it to run. A copy
is taken when the thread is started, to

    ignored/<token>/files/     the files, with their modes; never written again
    ignored/<token>/paths      the topmost ignored paths, joined by NUL
    ignored/<token>/patterns   the patterns by which they are ignored
    ignored/<token>/sources    the directory that they are copied from, and of each file there what
                               every change of it changes

in the store, whose owner alone can read it; `ignored` in the thread's record, and in that of its
forks and children, is the token. It is deleted with the last of these threads. On another machine
of a shared store the files are absent.

The files are the lowest layer of a workspace that is an overlay, so its agents can write to them
and change no copy; a workspace that is a copy gets copies. What has not changed since the last copy
of the same directory was taken is a hard link to the file of that.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from casfs.errors import Failed
from casfs.store.nodes.directory import File
from casfs.store.store import Store
from casfs.system import rmtree
from casfs.threads import threads
from casfs.threads.threads import Thread
from casfs.trees import tree
from casfs.trees.snapshot import stat_cache
from casfs.trees.snapshot.ignore import IGNORE_NAME, MAX_IGNORE_BYTES

FIELD = "ignored"  # of a thread's record
FOLDER = "ignored"  # of the store
FILES = "files"
PATHS = "paths"
PATTERNS = "patterns"
SOURCES = "sources"
TOKEN = re.compile(r"[0-9a-f]{32}")
UNUSED_S = 3600.0  # from its making, a copy may wait so long for the thread that it is for


@dataclass(frozen=True, slots=True)
class IgnoredFiles:
    """`paths`: the topmost ones, relative to the workspace; `patterns`: as the lines of a
    `.casfsignore`."""

    folder: Path | None = None
    paths: tuple[bytes, ...] = ()
    patterns: bytes = b""

    @property
    def layer(self) -> Path | None:
        """The directory with the files, as a layer of an overlay; None where there are none."""
        if self.folder is None or not (self.folder / FILES).is_dir():
            return None
        return self.folder / FILES

    def copy_to(self, directory: Path) -> None:
        """Copies the files into a workspace, over nothing that is there. Raises Failed."""
        if self.folder is None:
            return
        for path in self.paths:
            relative = os.fsdecode(path)
            failed = _copy(self.folder / FILES / relative, directory / relative)
            for source, reason in failed:
                raise Failed(f"cannot copy {source} to {directory / relative}: {reason}")


class _Copier:
    """Copies files of a directory, or links to the last copies of those that are as they were."""

    def __init__(self, directory: Path, earlier: Iterable[Path]) -> None:
        """`earlier`: the copies that there are, newest first."""
        self._top = directory
        self._directory = str(directory.resolve())
        self._racy_after = time.time_ns() - stat_cache.RACY_WINDOW_NS
        self._stats: dict[str, str] = {}
        self._files = ""  # the directory of the last copies, and their stats
        self._last_stats: dict[str, str] = {}
        for folder in earlier:
            with suppress(OSError, ValueError):
                sources = json.loads((folder / SOURCES).read_bytes())
                if sources["directory"] == self._directory:
                    self._files = str(folder / FILES)
                    self._last_stats = sources["stats"]
                    break

    def copy(self, source: str | Path, target: str | Path, *, follow_symlinks: bool = True) -> None:
        """As `shutil.copy2`."""
        path = os.path.relpath(source, self._top)
        file_stat = os.lstat(source)
        fingerprint = stat_cache.fingerprint(file_stat, self._racy_after)
        is_known = stat.S_ISREG(file_stat.st_mode) and fingerprint != stat_cache.RACY
        is_linked = is_known and self._last_stats.get(path) == fingerprint.hex()
        if not (is_linked and self._link(path, target)):
            try:
                shutil.copy2(source, target, follow_symlinks=follow_symlinks)
            except BaseException:
                # A part of it, on a full disk, must not pass for the file.
                with suppress(OSError):
                    os.unlink(target)
                raise
        if is_known:
            self._stats[path] = fingerprint.hex()

    def _link(self, path: str, target: str | Path) -> bool:
        """Returns False where another process has deleted the last copy, or it has all the links
        that it can have."""
        try:
            os.link(os.path.join(self._files, path), target, follow_symlinks=False)
        except OSError:
            return False
        return True

    def write_sources(self, folder: Path) -> None:
        sources = {"directory": self._directory, "stats": self._stats}
        (folder / SOURCES).write_text(json.dumps(sources), encoding="ascii")


NOTHING_IGNORED = IgnoredFiles()


def keep(
    store: Store,
    directory: Path,
    paths: Collection[bytes],
    patterns: bytes,
    on_unreadable: Callable[[str], None],
) -> str | None:
    """Copies the ignored paths of a directory into the store; returns the token, None where there
    is nothing to keep. `on_unreadable`: called with what cannot be read, and why: the rest is
    copied. Raises Failed."""
    if not paths and not patterns:
        return None
    token = secrets.token_hex(16)
    folder = store.root / FOLDER / token
    copier = _Copier(directory, _newest_first(folder.parent))
    try:
        folder.mkdir(mode=0o700, parents=True)
        (folder / PATTERNS).write_bytes(patterns)
        (folder / PATHS).write_bytes(b"\0".join(paths))
        for path in paths:
            relative = os.fsdecode(path)
            target = folder / FILES / relative
            for source, reason in _copy(directory / relative, target, copier.copy):
                on_unreadable(f"{source}: {reason}")
        copier.write_sources(folder)
    except OSError as error:
        rmtree.delete(folder)
        raise Failed(f"cannot copy ignored files of {directory}: {error.strerror}") from None
    except BaseException:
        rmtree.delete(folder)
        raise
    return token


def _newest_first(folder: Path) -> list[Path]:
    """Returns the copies in `ignored/`, which other processes may delete meanwhile."""
    modified: list[tuple[float, Path]] = []
    with suppress(FileNotFoundError):
        for copy in folder.iterdir():
            with suppress(OSError):
                modified.append((copy.stat().st_mtime, copy))
    return [copy for _, copy in sorted(modified, reverse=True)]


def load(store: Store, token: str | None) -> IgnoredFiles:
    """Returns the copy with this token; an empty one where it is not on this machine."""
    if token is None or not TOKEN.fullmatch(token):
        return NOTHING_IGNORED
    folder = store.root / FOLDER / token
    try:
        patterns = (folder / PATTERNS).read_bytes()
        paths = (folder / PATHS).read_bytes()
    except OSError:
        return NOTHING_IGNORED
    return IgnoredFiles(folder, tuple(filter(None, paths.split(b"\0"))), patterns)


def of_thread(store: Store, thread: Thread) -> IgnoredFiles:
    """Returns the copy of a thread; of one that began with a tree, the patterns in that."""
    copy = load(store, thread.record.get("ignored"))
    root = threads.start(store, thread).payload["workspace"]
    if copy is not NOTHING_IGNORED or root is None:
        return copy
    entry = tree.find(store, root, IGNORE_NAME)
    if not isinstance(entry, File) or entry.digest.size_bytes > MAX_IGNORE_BYTES:
        return copy
    return IgnoredFiles(patterns=store.get(entry.digest.hash))


def release(store: Store, token: str | None) -> None:
    """Deletes a copy that no unfinished thread uses. Raises Failed."""
    if token is not None and token not in _used(store):
        rmtree.delete(store.root / FOLDER / token)


def sweep(store: Store) -> None:
    """Deletes all copies that no unfinished thread uses. Raises Failed."""
    folder = store.root / FOLDER
    if not folder.is_dir():
        return
    used = _used(store)
    for path in folder.iterdir():
        if path.name not in used and path.stat().st_mtime < time.time() - UNUSED_S:
            rmtree.delete(path)


def _used(store: Store) -> set[str]:
    unfinished = threads.with_field(store, "status", [threads.RUNNING, threads.SUSPENDED])
    return {thread.fields.get(FIELD, "") for thread in unfinished}


def _special_files(directory: str, names: list[str]) -> list[str]:
    """Returns the names of sockets and the like, for `shutil.copytree`."""
    copied = (stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK)
    modes = {name: os.lstat(os.path.join(directory, name)).st_mode for name in names}
    return [name for name, mode in modes.items() if not any(is_kind(mode) for is_kind in copied)]


def _without_path(reason: str) -> str:
    """Returns "Permission denied" of the text of an OSError, as `shutil` has it."""
    return reason.partition("] ")[2].partition(": ")[0] or reason


def _copy(
    source: Path, target: Path, copy_file: Callable[..., object] = shutil.copy2
) -> list[tuple[str, str]]:
    """Copies a file, a link or a directory with its mode, over nothing that is there. Sockets and
    the like are left out. `copy_file`: as `shutil.copy2`. Returns what could not be copied, and
    why. Raises Failed."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(target):
            return []
        if source.is_dir() and not source.is_symlink():
            shutil.copytree(
                source, target, symlinks=True, ignore=_special_files, copy_function=copy_file
            )
        elif source.is_file() or source.is_symlink():
            copy_file(source, target, follow_symlinks=False)
    except shutil.Error as error:  # at its end, with all that failed
        return [(str(path), _without_path(str(reason))) for path, _, reason in error.args[0]]
    except PermissionError as error:
        return [(str(error.filename or source), error.strerror or str(error))]
    except OSError as error:
        raise Failed(f"cannot copy {source} to {target}: {error}") from None
    return []
