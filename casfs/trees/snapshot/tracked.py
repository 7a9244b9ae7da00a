"""Snapshots of what given trees have: their paths as they are in a directory, and nothing else.

Whatever none of the trees has is neither recorded nor looked into. With a stat cache only files
that were changed since the last snapshot or restore are read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path

from casfs.digest import Digest, TreeDigest, TreeHash
from casfs.store.nodes.directory import File, Subdirectory
from casfs.store.nodes.times import TimesRef
from casfs.store.store import Store
from casfs.system.files import closing_fd
from casfs.system.paths import DIR_FLAGS, open_directory
from casfs.trees import dated, recorded_state, tree
from casfs.trees.dated import DatedTree
from casfs.trees.recorded_state import RecordedState
from casfs.trees.snapshot import exclusions, policy, stat_cache, working_tree
from casfs.trees.snapshot.derived import Surroundings
from casfs.trees.snapshot.ignore import IgnoreRules, Verdict
from casfs.trees.snapshot.report import Excluded, Hit, Hits, SnapshotOptions, SnapshotReport

RECORDED_AS_PRIVATE = (Hit("a secret", 1),)  # it was found before, and is not looked for again
CLOCK_TICK_S = 0.011  # the coarsest of Linux, 10 ms, and more
UNNAMED_FILE = os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Unseen:
    """What the look that made the tree `root` did not look at: the paths that it lacks and that
    one of `rules` leaves out. Whether the directory had them then is not known."""

    root: TreeHash
    rules: Sequence[IgnoreRules]


class TrackedPaths(IgnoreRules):
    """Ignores whatever is in none of the trees `roots`, and what is `unseen`. `left_out`: the
    topmost paths of the latter that were met, with the reason."""

    def __init__(
        self,
        store: Store,
        roots: Collection[TreeHash],
        unseen: Unseen | None = None,
        whole: Collection[bytes] = (),
    ) -> None:
        """`whole`: directories of which everything counts."""
        super().__init__()
        self._store = store
        self._directories = {b"": self._load(roots)}
        self._unseen = unseen
        self._whole = tuple(path + b"/" for path in whole)
        self._seen = None if unseen is None else TrackedPaths(store, [unseen.root])
        self.left_out: dict[bytes, str] = {}

    def verdict(
        self, path: bytes, name: bytes, *, directory: bool, surroundings: Surroundings | None = None
    ) -> Verdict | None:
        if path in self.excluded or not self._has(path, name):
            return Verdict("untracked")
        return self._unseen_verdict(path, name, directory=directory, surroundings=surroundings)

    def _unseen_verdict(
        self, path: bytes, name: bytes, *, directory: bool, surroundings: Surroundings | None
    ) -> Verdict | None:
        if self._unseen is None or self._seen is None or self._seen._has(path, name):
            return None
        if directory and surroundings is not None:
            # By what lay beside it when the tree was made: `package.json` may be gone by now.
            above = self._seen._entries(path[: -len(name) - 1])
            names = {*surroundings.names}.union(*above)
            surroundings = surroundings._replace(names=names)
        for rules in self._unseen.rules:
            verdict = rules.verdict(path, name, directory=directory, surroundings=surroundings)
            if verdict is not None and not verdict.is_local:
                self.left_out[path] = verdict.reason
                return verdict
        return None

    def _has(self, path: bytes, name: bytes) -> bool:
        if self._whole and path.startswith(self._whole):
            return True
        above = path[: -len(name) - 1] if len(path) > len(name) else b""
        return any(name in entries for entries in self._entries(above))

    def _entries(self, path: bytes) -> list[tree.Entries]:
        """Returns what the trees have in the directory `path`."""
        tree_entries = self._directories.get(path)
        if tree_entries is None:
            above, _, name = path.rpartition(b"/")
            below = {tree.subtree(entries.get(name)) for entries in self._entries(above)}
            tree_entries = self._directories[path] = self._load(filter(None, below))
        return tree_entries

    def _load(self, hashes: Collection[TreeHash] | Iterator[TreeHash]) -> list[tree.Entries]:
        return [tree.load(self._store, hash) for hash in hashes]


def snapshot_tracked(
    store: Store,
    directory: Path,
    roots: Collection[TreeHash],
    options: SnapshotOptions | None = None,
    *,
    report: SnapshotReport | None = None,
    unseen: Unseen | None = None,
    whole: Collection[bytes] = (),
) -> DatedTree:
    """Store the paths of the trees `roots` as they are in `directory`, with all that is in the
    directories `whole`, without what is `unseen`, which is among the `excluded` of the report;
    returns the tree, which no head keeps. Raises as `casfs.trees.snapshot.working_tree.record`."""
    rules = TrackedPaths(store, roots, unseen, whole)
    exclusions.exclude_stores(store, directory, rules=rules, report=SnapshotReport())
    # Scanned like any snapshot, so that the stat cache's rows serve both.
    options = options or SnapshotOptions()
    options.scanner = policy.load(store).scanner()
    root = working_tree.snapshot_paths(
        store, directory, rules=rules, options=options, report=report
    )
    if report is not None:
        # Of all that is in no tree, too, the walk has reported that it is left out.
        report.excluded = list(starmap(Excluded, rules.left_out.items()))
    return root


def untracked(store: Store, fd: int, roots: Collection[TreeHash]) -> Iterator[bytes]:
    """Yields the paths in the directory `fd` that none of the trees has, each without what is
    below."""
    rules = TrackedPaths(store, roots)
    for folder, directories, files, _ in os.fwalk(b".", dir_fd=fd):
        above = folder[len(b"./") :]
        for name in sorted([*directories, *files]):
            path = above + b"/" + name if above else name
            if rules.verdict(path, name, directory=name in directories):
                directories[:] = [directory for directory in directories if directory != name]
                yield path


def has_untracked(store: Store, fd: int, path: bytes, root: TreeHash) -> bool:
    """Whether the directory at a path below the directory `fd` has what a tree does not have; not
    where it cannot be read: what enters it later says so."""
    try:
        inner = open_directory(fd, path.split(b"/"))
    except OSError:
        return False
    with closing_fd(inner):
        return any(untracked(store, inner, [root]))


def remember(
    store: Store, fd: int, directory: Path, state: RecordedState, preserve: Sequence[str]
) -> None:
    """Fill the stat cache of `directory` from the directory `fd`, into which `state` was just
    written and which no other process knows yet. Its private files count as scanned."""
    options = SnapshotOptions(preserve, scanner=policy.load(store).scanner())
    cache = stat_cache.load(store, directory, rules=IgnoreRules(), variant=options.variant)
    private = {path for path, _ in recorded_state.local_paths(store, state.tree, state.full)}
    size = store.blobs.info([state.full])[state.full].size
    _Memory(store, cache, private=private, clock=_clock_ns(fd)).directory(
        fd, b"", state.whole, size
    )
    cache.save()


class _Memory:
    """Writes rows of the stat cache. `private`: files that the scanner found something in, or that
    have private names; which of both it was is decided again from the name."""

    def __init__(
        self, store: Store, cache: stat_cache.StatCache, private: set[bytes], clock: int
    ) -> None:
        self._store = store
        self._cache = cache
        self._private = private
        self._clock = clock

    def directory(self, fd: int, path: bytes, root: DatedTree, size: int) -> TimesRef:
        """`size`: of the directory node. Returns its times."""
        names = []
        stats = []
        digests = []
        below = []
        hits: dict[bytes, Hits] = {}
        directory = dated.load(self._store, root)
        for name, entry in directory.entries.items():
            digest: Digest = stat_cache.NO_BLOB
            seen = os.stat(name, dir_fd=fd, follow_symlinks=False)
            printed = stat_cache.fingerprint(seen, self._clock)
            if isinstance(entry, Subdirectory):
                digest = entry.digest
                printed = stat_cache.DIRECTORY
                inner = os.open(name, DIR_FLAGS, dir_fd=fd)
                with closing_fd(inner):
                    size_below = entry.digest.size_bytes
                    inner_path = path + b"/" + name
                    times = self.directory(
                        inner, inner_path, root=directory.subtree(entry), size=size_below
                    )
                    below.append(times)
            elif isinstance(entry, File):
                digest = Digest(entry.digest.hash, seen.st_size)
                if (path + b"/" + name)[1:] in self._private:
                    hits[name] = RECORDED_AS_PRIVATE
            names.append(name)
            stats.append(printed)
            digests.append(digest)
        own = directory.own
        if own is not None and own.unix_mode is not None:
            stats.append(stat_cache.pack_mode(own.unix_mode))
        times = TimesRef(root.times, dated.load_times(self._store, root).newest)
        row = stat_cache.pack(names, stats, digests=digests, hits=hits, below=below)
        self._cache.put(path, row.with_nodes(TreeDigest(root.tree, size), times))
        return times


def _clock_ns(fd: int) -> int:
    """Returns the file system's time, at least a tick after the last change: whatever changes later
    has this time or a later one."""
    time.sleep(CLOCK_TICK_S)
    try:
        probe = os.open(".", UNNAMED_FILE, 0o600, dir_fd=fd)
    except OSError:  # not on every file system
        return time.time_ns() - stat_cache.RACY_WINDOW_NS
    with closing_fd(probe):
        return os.fstat(probe).st_ctime_ns
