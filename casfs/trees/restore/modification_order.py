"""Dates what an incremental restore has written, so that make, cargo and Python see what changed.

In a directory that has files, what was built there is as old as it is: a source with its recorded
time would be older than the program that was built from another version of it. So written files get
times from now on, in the order in which they were recorded. Files that stay as they are and were
recorded as newer than a written one are touched after it, where they may have been built from it: a
program is not built again then. What git tracks is a source, and installed packages were not built
here: a new mtime would only trigger file watchers.

Some tools compare milliseconds (tsc), so times are that far apart. Of many files only where the
recorded ones are furthest apart, as those of a source and of what was built from it are: else the
last of them would be in the future.
"""

from __future__ import annotations

import heapq
import os
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise

from casfs.errors import Invalid, NotFound
from casfs.store.nodes.directory import Entry, Subdirectory
from casfs.store.store import Store
from casfs.system.files import closing_fd
from casfs.system.paths import open_directory
from casfs.trees import dated, tree
from casfs.trees.dated import DatedTree
from casfs.trees.git.index import TrackedFiles
from casfs.trees.restore.write import utime_ns

STEP_NS = 1000
WIDE_STEP_NS = 1_000_000
MAX_WIDE_STEPS = 500
SECOND_NS = 1_000_000_000
CLOCK_STEP_S = 0.004
CLOCK_REALTIME_COARSE = 5  # of <linux/time.h>; the module time has no name for it
NOT_BUILT = frozenset((b".git", b"node_modules", b".venv", b"site-packages"))  # what is below
Path = bytes  # relative to the directory
IsBuilt = Callable[[Path], bool]
# What was written; of a file of which one of the same size was there before, the time of that one.
Written = Mapping[Path, int | None]


def first_moment(newest: int | None) -> int:
    """Returns a time in ns after that of every file there; `newest`: the last of those that are
    known, which is in the future where the clock went back."""
    return max(_file_clock(), newest or 0) + WIDE_STEP_NS


def wait_until_past(moment: int) -> bool:
    """Waits until what is written gets a later time than `moment` in ns: what is built of files
    from the future is older than they are, and is built again and again, or not at all. Returns
    False, at once, where that takes longer than the next second."""
    while (left := moment + WIDE_STEP_NS - _file_clock()) >= 0:
        if left > 2 * SECOND_NS:
            return False
        time.sleep(left / SECOND_NS + CLOCK_STEP_S)
    return True


def _file_clock() -> int:
    """The kernel dates files by this clock, which is up to CLOCK_STEP_S behind the other."""
    return time.clock_gettime_ns(CLOCK_REALTIME_COARSE)


def built_in(directory: pathlib.Path) -> IsBuilt:
    """Returns what tells of a file in a directory whether it may have been built from others
    there."""
    tracked = TrackedFiles(directory, above=True)

    def is_built(path: Path) -> bool:
        if not NOT_BUILT.isdisjoint(path.split(b"/")):
            return False
        try:
            return tracked.has(path) is not True
        except Invalid:  # git's index is damaged, and says nothing
            return True

    return is_built


def new_times(
    store: Store,
    source: DatedTree,
    written: Written,
    start: int,
    is_built: IsBuilt | None = None,
) -> Iterator[tuple[Path, int]]:
    """Yields the times in ns, from `start` on, that the written files and links get, in the order
    in which `source` was recorded, and those kept files of it that were newer than one of them and
    may have been built from it; None: no other file gets a new time."""
    recorded = dict(_recorded_times(store, source, written))
    known = [when for when in recorded.values() if when is not None]
    if known and is_built is not None:
        for path, entry, when in dated.walk_newer(store, source, min(known)):
            if path not in recorded and not has_own_time(entry) and is_built(path):
                recorded[path] = when
    order = sorted(recorded.items(), key=_recorded_order)
    moment = start
    for (path, _), step in zip(order, _steps([when or 0 for _, when in order]), strict=True):
        moment += step
        before = written.get(path)
        # Python's bytecode names the second and the size of its source.
        if before is not None and before // SECOND_NS == moment // SECOND_NS:
            moment = (moment // SECOND_NS + 1) * SECOND_NS
        yield path, moment


def _steps(recorded: Sequence[int]) -> Iterator[int]:
    """Yields how far the time of each file is from that of the one before, in ns."""
    gaps = [then - before for before, then in pairwise(recorded)]
    widest = heapq.nlargest(MAX_WIDE_STEPS, gaps)
    left = MAX_WIDE_STEPS  # many gaps can be equal
    yield from [0] * min(len(recorded), 1)
    for gap in gaps:
        is_wide = left > 0 and gap > 0 and gap >= widest[-1]
        left -= is_wide
        yield WIDE_STEP_NS if is_wide else STEP_NS


def recorded_times(store: Store, root: DatedTree, above: Path = b"") -> Iterator[tuple[Path, int]]:
    """Yields the recorded times of all of a tree in ns, a directory after what is in it."""
    directory = dated.load(store, root)
    for name, entry in directory.entries.items():
        if isinstance(entry, Subdirectory):
            yield from recorded_times(store, directory.subtree(entry), above + name + b"/")
        elif entry.properties is not None and entry.properties.mtime is not None:
            yield above + name, utime_ns(entry.properties.mtime)[1]
    if directory.own is not None and directory.own.mtime is not None:
        yield above + b".", utime_ns(directory.own.mtime)[1]


def set_time(fd: int, path: Path, when: int) -> None:
    """Sets the time of the file or link at `path` in the directory `fd`, in ns."""
    *above, name = path.split(b"/")
    inner = open_directory(fd, above)
    with closing_fd(inner):
        os.utime(name, ns=(when, when), dir_fd=inner, follow_symlinks=False)


def has_own_time(entry: Entry) -> bool:
    """Whether the tree itself has its time (`--preserve mtime`), which stands above the order."""
    properties = None if isinstance(entry, Subdirectory) else entry.properties
    return properties is not None and properties.mtime is not None


def _recorded_times(
    store: Store, source: DatedTree, paths: Iterable[Path]
) -> Iterator[tuple[Path, int | None]]:
    """Yields the recorded times of paths, but of those that have their own."""
    for above, inside in groupby(sorted(paths, key=_parent), key=_parent):
        try:
            directory = dated.subtree(store, source, above)
        except NotFound:
            yield from ((path, None) for path in inside)
            continue
        entries = tree.load(store, directory.tree)
        times = dated.load_times(store, directory)
        for path in inside:
            name = path[len(above) :].lstrip(b"/")
            if name not in entries or not has_own_time(entries[name]):
                yield path, times.entries.get(name)


def _parent(path: Path) -> Path:
    return path.rpartition(b"/")[0]


def _recorded_order(item: tuple[Path, int | None]) -> tuple[bool, int, Path]:
    """Sorts what was never recorded first."""
    path, when = item
    return when is not None, when or 0, path
