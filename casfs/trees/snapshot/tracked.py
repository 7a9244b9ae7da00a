"""Snapshots of what given trees have: their paths as they are in a directory, and nothing else.

Whatever none of the trees has is neither recorded nor looked into. With a stat cache only files
that were changed since the last snapshot or restore are read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from casfs.digest import Digest, TreeDigest, TreeHash
from casfs.nodes.directory import File, Subdirectory
from casfs.store import Store
from casfs.system.paths import DIR_FLAGS
from casfs.trees import tree
from casfs.trees.snapshot import exclusions, stat_cache, working_tree
from casfs.trees.snapshot.derived import Surroundings
from casfs.trees.snapshot.ignore import IgnoreRules
from casfs.trees.snapshot.report import SnapshotOptions, SnapshotReport

CLOCK_TICK_S = 0.011  # the coarsest of Linux, 10 ms, and more
UNNAMED_FILE = os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC


class TrackedPaths(IgnoreRules):
    """Ignores whatever is in none of the trees `roots`."""

    def __init__(self, store: Store, roots: Collection[TreeHash]) -> None:
        super().__init__()
        self._store = store
        self._directories = {b"": self._load(roots)}

    def reason(
        self, path: bytes, name: bytes, *, directory: bool, at: Surroundings | None = None
    ) -> str | None:
        above = path[: -len(name) - 1] if len(path) > len(name) else b""
        if path in self.excluded or not any(name in one for one in self._entries(above)):
            return "untracked"
        return None

    def _entries(self, path: bytes) -> list[tree.Entries]:
        """Returns what the trees have in the directory `path`."""
        found = self._directories.get(path)
        if found is None:
            above, _, name = path.rpartition(b"/")
            below = {tree.subtree(entries.get(name)) for entries in self._entries(above)}
            found = self._directories[path] = self._load(filter(None, below))
        return found

    def _load(self, hashes: Collection[TreeHash] | Iterator[TreeHash]) -> list[tree.Entries]:
        return [tree.load(self._store, hash) for hash in hashes]


def snapshot_tracked(
    store: Store,
    directory: Path,
    roots: Collection[TreeHash],
    preserve: Sequence[str] = (),
    *,
    verify: bool = False,
) -> TreeHash:
    """Store the paths of the trees `roots` as they are in `directory`; returns the tree, which no
    head keeps. `verify`: read every file. Raises as `casfs.trees.snapshot.working_tree.record`."""
    report, rules = SnapshotReport(), TrackedPaths(store, roots)
    exclusions.exclude_stores(store, directory, rules, report)
    options = SnapshotOptions(preserve)
    return working_tree.snapshot(store, directory, rules, report, options, verify=verify)


def untracked(store: Store, directory: Path, roots: Collection[TreeHash]) -> Iterator[bytes]:
    """Yields the paths in `directory` that none of the trees has, each without what is below."""
    rules, top = TrackedPaths(store, roots), os.fsencode(directory)
    for place, directories, files in os.walk(top):
        above = place[len(top) + 1 :]
        for name in sorted([*directories, *files]):
            path = above + b"/" + name if above else name
            if rules.reason(path, name, directory=name in directories):
                directories[:] = [one for one in directories if one != name]
                yield path


def remember(
    store: Store, fd: int, directory: Path, root: TreeHash, preserve: Sequence[str]
) -> None:
    """Fill the stat cache of `directory` from the directory `fd`, into which the tree `root` was
    just written and which nobody else has seen."""
    rules = IgnoreRules()
    cache = stat_cache.load(store, directory, rules, ",".join(sorted(preserve)))
    if cache is None:
        return
    node = TreeDigest(root, store.blobs.info([root])[root].size)
    _remember(store, cache, fd, b"", node, _clock_ns(fd))
    cache.save()


def _remember(
    store: Store, cache: stat_cache.StatCache, fd: int, path: bytes, node: TreeDigest, clock: int
) -> None:
    names, stats, digests = [], [], []
    for name, entry in tree.load(store, node.hash).items():
        digest: Digest = stat_cache.NO_BLOB
        seen = os.stat(name, dir_fd=fd, follow_symlinks=False)
        printed = stat_cache.fingerprint(seen, clock)
        if isinstance(entry, Subdirectory):
            digest, printed = entry.digest, stat_cache.DIRECTORY
            inner = os.open(name, DIR_FLAGS, dir_fd=fd)
            try:
                _remember(store, cache, inner, path + b"/" + name, entry.digest, clock)
            finally:
                os.close(inner)
        elif isinstance(entry, File):
            digest = Digest(entry.digest.hash, seen.st_size)
        names.append(name)
        stats.append(printed)
        digests.append(digest)
    own = tree.directory_properties(store, node.hash)
    if own is not None and own.unix_mode is not None:
        stats.append(stat_cache.pack_mode(own.unix_mode))
    cache.put(path, stat_cache.pack(names, stats, digests).with_node(node))


def _clock_ns(fd: int) -> int:
    """Returns the file system's time, at least a tick after the last change: whatever changes later
    has this time or a later one."""
    time.sleep(CLOCK_TICK_S)
    try:
        probe = os.open(".", UNNAMED_FILE, 0o600, dir_fd=fd)
    except OSError:  # not on every file system
        return time.time_ns() - stat_cache.RACY_WINDOW_NS
    try:
        return os.fstat(probe).st_ctime_ns
    finally:
        os.close(probe)
