"""Follows a directory by the events of the kernel, and stores it as it is whenever it is asked.

A look at a directory reads what has changed since the last one
(`casfs.trees.snapshot.incremental`). Whatever is unclear (a lost event, a mount, other rules, an
error, a start) means one look at everything. A file that is mapped for writing has no events until
it is unmapped.

The way of a change: `drain` reads events, `_note` adds what changed to `_changes`, `look` takes
`_changes` and stores the directory as a state. What goes wrong anywhere marks everything as
changed, so the next look starts over.

A directory's path is as in `casfs.checkpoints.followed_paths` and in the stat cache; paths in a
report have no slash before them.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from casfs.checkpoints import extents
from casfs.checkpoints.extents import CHECKPOINT, Extent, Extents
from casfs.checkpoints.followed_paths import ABOVE, FollowedPaths
from casfs.errors import CasfsError, Failed, NotFound, Refused
from casfs.store.store import Store
from casfs.store.write_batch import Batch
from casfs.system import mounts
from casfs.system.clock import now_ms
from casfs.system.directory_events import Event
from casfs.system.files import closing_fd
from casfs.system.paths import open_top
from casfs.trees.dated import DatedTree
from casfs.trees.git import repository_state
from casfs.trees.git.index import TrackedFiles
from casfs.trees.recorded_state import RecordedState
from casfs.trees.restore.target import Target
from casfs.trees.snapshot import derived, exclusions, policy, stat_cache, working_tree
from casfs.trees.snapshot.classes import is_below
from casfs.trees.snapshot.ignore import IgnoreRules
from casfs.trees.snapshot.incremental import Changes, IncrementalSnapshot
from casfs.trees.snapshot.report import Excluded, SnapshotOptions, SnapshotReport
from casfs.trees.snapshot.walker import StaleCache

EVIDENCE = frozenset((b"pyvenv.cfg", derived.CACHE_TAG))
RULES = b".gitignore", b".git"  # by which directories are derived
LOOK_AT_ALL_S = 3600.0
MAX_NOTED = 100_000  # changed names between two looks
MAX_TORN_LOOKS = 5  # at a repository in which git writes meanwhile
TORN_WAIT_S = 0.02  # before the second look; a multiple of it before each further one
WRITE_CACHE_S = 5.0  # between two times that the rows of looks are written
Observer = Callable[[bytes, Event], None]


class Look(NamedTuple):
    """What a look saw. `report`: counts what it read, and names what is left out, private or
    unreadable in all of the directory; `new_bytes`: stored by it; `began_ms`: what changed later it
    may have missed; `is_torn`: a git repository in it never stood still while it was read."""

    state: RecordedState
    report: SnapshotReport
    new_bytes: int
    began_ms: int
    is_torn: bool = False


class FollowedDirectory:
    """`fd` is readable when the kernel has reported something, or another than its waiter has read
    it. `pending`: what a checkpoint has may have changed since the watch last set it to False, even
    if it was looked at; the times are of the first and the last change since then. `observe`: if
    set, called with the path of each change and its event. `lock`: held by who calls a method; all
    may block. Several may record a directory, each with an extent of its own."""

    def __init__(self, store: Store, directory: Path, *, fanotify: bool = True) -> None:
        self.path = directory
        self.lock = Lock()
        self.observe: Observer | None = None
        self._store = store
        self._extents = Extents()
        self._name = os.fsencode(directory.name)
        # One descriptor to wait for, while the source of events is replaced.
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.epoll()
        self._poll.register(self._wake, select.EPOLLIN)
        self.fd = self._poll.fileno()
        self._has_watch = False
        self.pending = True
        self.first_change = self.last_change = 0.0
        self.looked_at_all = 0.0
        # What a look at everything sets up.
        self._paths = FollowedPaths(fanotify=fanotify)
        self._identity: tuple[int, ...] = ()  # inode and device of the directory
        self._rules = IgnoreRules()
        self._options: SnapshotOptions
        self._cache = stat_cache.StatCache()
        self._cache_written = 0.0
        self._uses_cache = True
        self._excluded: list[Excluded] = []
        # What is compared at each look, since no event tells of it.
        self._mounts = list[Path]()
        self._tracked = TrackedFiles(directory, above=True)
        self._purged = store.purged.replaced()
        # The last look. `_seen`: what it and those before reported of directories as they are.
        self._full: DatedTree
        self._seen = SnapshotReport()
        # What each extent has of it, with the report.
        self._states: dict[int, tuple[RecordedState, SnapshotReport]] = {}  # by width
        self._listed: set[bytes] = set()
        self._is_full = False
        self._was_torn = False
        self._is_last_try = False
        self._links: dict[bytes, bytes] = {}  # files with several names: an event names one
        self._inodes: set[int] = set()
        self.mark_everything()

    @property
    def method(self) -> str | None:
        """How the kernel reports changes; None before the first look."""
        return None if self._paths.source is None else self._paths.source.method

    @property
    def has_changes(self) -> bool:
        """Whether changes of what a checkpoint has are known that no look has seen."""
        paths = chain(self._changes.paths(), (below[1:] for below in self._changes.below))
        return any(map(self._is_of_checkpoint, paths)) or any(
            not names for names in self._changes.names.values()
        )

    def begin_watch(self) -> None:
        """Has all that is there count as changed just now, also where others have looked at it."""
        self.first_change = self.last_change = time.monotonic()
        self.pending = True
        self._has_watch = True
        self._states.pop(CHECKPOINT.width, None)

    def _is_of_checkpoint(self, path: bytes) -> bool:
        """Whether a checkpoint may have what is at a path; others may record more."""
        if self._extents.widest is CHECKPOINT or path.rpartition(b"/")[2] in EVIDENCE:
            return True
        return not is_below(path, self._seen.derived)

    def close(self) -> None:
        with suppress(CasfsError):  # the store may be gone
            self._write_cache()
        self._paths.close()
        self._poll.close()
        os.close(self._wake)

    def drain(self) -> None:
        """Notes all that the kernel has reported. Raises NotFound after `close`."""
        # Events that are read here do not make `fd` readable. The task that waits for it has to
        # wake the watch.
        if self.read_events() and self._has_watch:
            os.eventfd_write(self._wake, 1)

    def read_events(self) -> bool:
        """As `drain`, called by the task that waits for `fd`; returns whether there were events."""
        # A request may have waited for the lock while the watch was ended.
        if self._poll.closed:
            raise NotFound(f"{self.path} is not watched any more")
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        # A mount hides or shows a whole directory and has no event in it.
        has_read = False
        if (below := mounts.mounted_below(self.path)) != self._mounts:
            self._mounts = below
            self.mark_everything()
            has_read = True
        for directory, event in self._paths.read():
            self._note(directory, event)
            has_read = True
        return has_read

    def _note(self, directory: bytes | None, event: Event) -> None:
        """Adds to `_changes` what an event is of, unless it is left out."""
        # Events were lost, or a file system was unmounted: anything may have changed.
        if directory is None:
            self.mark_everything()
            return
        name = event.name
        # The followed directory was moved or replaced. Of the one above nothing else counts.
        if directory == ABOVE:
            if name == self._name:
                self.mark_everything()
            return
        # Rules count for all below them. Their own file is noted, too, so that it is read again
        # whatever its stat is.
        if name in RULES:
            self.mark_everything()
        if self._is_left_out(directory, event):
            return
        path = directory + b"/" + name
        if self.observe is not None:
            self.observe(path[1:], event)
        self._changes.names[directory].add(name)
        self._noted += 1
        if self._noted > MAX_NOTED:  # bounds the memory of a directory without looks
            self.mark_everything()
        # What came with it had no events here.
        if event.is_moved:
            self._changes.below.add(path)
        elif event.is_directory and name:  # its mode may have changed
            self._list_again(path)
        # The parent's listing says whether this directory is left out.
        if name in EVIDENCE and directory:
            parent = directory.rpartition(b"/")[0]
            self._list_again(parent)
        if not self._is_of_checkpoint(path[1:]):
            return
        self.last_change = time.monotonic()
        if not self.pending:
            self.first_change = self.last_change
        self.pending = True

    def _is_left_out(self, directory: bytes, event: Event) -> bool:
        # A directory that is left out is followed for its evidence only, which may go.
        if self._paths.is_left_out(directory) and event.name not in EVIDENCE:
            return True
        # Of a directory its listing decides, by what is in it.
        if event.is_directory:
            return False
        path = directory + b"/" + event.name
        verdict = self._rules.verdict(path[1:], event.name, directory=False)
        # A private file is recorded, too, in the local tree.
        return verdict is not None and not verdict.is_local

    def _list_again(self, path: bytes) -> None:
        """Has a directory listed again, and no file of it read."""
        self._changes.names.setdefault(path, set())

    def mark_everything(self) -> None:
        self._changes = Changes(below={b""})
        self._noted = 0
        self.first_change = self.last_change = time.monotonic()
        self.pending = True

    def mark_everything_if_old(self) -> None:
        """Has everything looked at now and then: a file that is mapped for writing has no events
        until it is unmapped."""
        if time.monotonic() - self.looked_at_all > LOOK_AT_ALL_S:
            self.mark_everything()

    # -- looking --------------------------------------------------------------------------

    def look(
        self,
        base: RecordedState | None,
        extent: Extent = CHECKPOINT,
        all_read: Callable[[], None] = lambda: None,
    ) -> Look:
        """Stores the state as it is now. `base`: the state recorded before; `extent`: what is
        recorded from now on, until `release`; `all_read`: called when the directory may change
        again, and again where it had to be read once more. Raises CasfsError, OSError."""
        self._extents.hold(extent)
        was_stale = False
        tries_left = MAX_TORN_LOOKS
        while True:
            self._is_last_try = tries_left == 0
            # Read each time: settings, `.casfsignore`, stores and mounts below may be others.
            rules = self._read_rules()
            fd = open_top(self.path)
            try:
                look = self._look_once(fd, rules, base, extent=extent, all_read=all_read)
            except Refused:
                self.mark_everything()
                # The limit may be that of a wider extent: look again without it.
                if not self._extents.drop_wider(extent):
                    raise
            except (StaleCache, NotFound):  # gc deleted nodes of the cache: start without it
                self.mark_everything()
                if was_stale:
                    raise Failed(f"gc deletes what was recorded of {self.path}") from None
                self._uses_cache = False
                was_stale = True
            except BaseException:
                # The changes that this look took are in no state yet, and must not be lost.
                self.mark_everything()
                raise
            finally:
                os.close(fd)
            # The look itself may have seen that the events do not suffice (`_note_link`).
            if b"" in self._changes.below:
                continue
            # A checkpoint has no repository.
            if not look.is_torn or tries_left == 0 or not extent.keeps_derived:
                return look
            # A commit takes a moment: half of it would be a repository that git calls damaged.
            tries_left -= 1
            time.sleep((MAX_TORN_LOOKS - tries_left) * TORN_WAIT_S)
            self.drain()

    def _look_once(
        self,
        fd: int,
        rules: IgnoreRules,
        base: RecordedState | None,
        extent: Extent,
        all_read: Callable[[], None],
    ) -> Look:
        began_ms = now_ms()
        report = SnapshotReport()
        self._mark_what_has_no_event(fd, rules)
        if not self._changes and not self._is_stored():
            self.mark_everything()
        if b"" in self._changes.below:
            self._start_over(fd)
        has_changes = bool(self._changes)
        with self._store.batch() as batch:
            gone = self._look_at_changes(fd, batch, report, all_read) if has_changes else ()
            state, seen = self._state_of(batch, extent, base)
        if has_changes:
            self._conclude(fd, report, gone)
        report = replace(seen, read=report.read, read_bytes=report.read_bytes)
        return Look(state, report, batch.new_bytes, began_ms, is_torn=self._was_torn)

    def release(self, extent: Extent) -> None:
        """Nothing needs what this extent alone has of the directory any more."""
        if self._extents.release(extent):
            self._states.pop(extent.width, None)

    def _is_stored(self) -> bool:
        """Returns whether the state of the last look is stored still: perhaps no head has kept it,
        and gc has deleted it since."""
        needed = {*filter(None, self._full)}
        for state, _ in self._states.values():
            needed |= {state.tree, *state.fields.values()}
        return len(self._store.blobs.info(needed)) == len(needed)

    def _read_rules(self) -> IgnoreRules:
        rules = exclusions.ignore_rules(
            self._store,
            self.path,
            SnapshotReport(),
            keeps_derived=self._extents.widest.keeps_derived,
        )
        rules.keeps_top_git = self._extents.widest.keeps_top_git
        return rules

    def _mark_what_has_no_event(self, fd: int, rules: IgnoreRules) -> None:
        self._mark_changed_links()
        # By git's index what is private becomes work, and it may be outside of the directory.
        if self._tracked.has_changed():
            self._tracked = TrackedFiles(self.path, above=True)
            self._list_again(b"")
        for path in self._seen.unreadable:
            directory, _, name = (b"/" + path).rpartition(b"/")
            self._changes.names[directory].add(name)
        # Where a directory further up is moved, the path leads to another one without an event.
        is_other = os.fstat(fd)[1:3] != self._identity
        are_other_rules = rules.fingerprint != self._rules.fingerprint
        if self._paths.source is None or is_other or are_other_rules:
            self.mark_everything()
        purged = self._store.purged.replaced()
        if purged is not self._purged:  # what is purged is left out, also where nothing changed
            self._purged = purged
            self.mark_everything()

    def _mark_changed_links(self) -> None:
        """An event of a file with several names tells of one: the others are compared."""
        for path, before in list(self._links.items()):
            with suppress(OSError):
                status = os.lstat(os.fsencode(self.path) + path)
                if stat_cache.pack_stat(status) == before:
                    continue
            # It may have one name now; the look notes it again where it has several.
            del self._links[path]
            directory, _, name = path.rpartition(b"/")
            self._changes.names[directory].add(name)

    def _start_over(self, fd: int) -> None:
        """Prepares a look at everything, which follows again each directory that it lists."""
        self._links.clear()
        self._inodes.clear()
        # Before the rules are read: a later change of them has an event.
        self._poll.register(self._paths.open(fd), select.EPOLLIN)
        rules = self._read_rules()
        self._rules = rules
        self._identity = os.fstat(fd)[1:3]
        self._tracked = TrackedFiles(self.path, above=True)  # it may be a repository by now
        # One unreadable file must not keep the rest from being recorded.
        scanner = policy.load(self._store).scanner()
        self._options = SnapshotOptions(scanner=scanner, limit=self._extents.widest.max_bytes)
        self._seen = SnapshotReport()
        # Loaded again: other rules have other rows, and a failed look leaves them half changed.
        variant = self._options.variant
        self._cache = stat_cache.load(self._store, self.path, rules, variant)
        if not self._uses_cache:
            self._cache.rows = {}
        self._uses_cache = True
        self.looked_at_all = time.monotonic()
        # That this directory itself is renamed or replaced is an event of the one above. Where
        # that cannot be followed, the next look tells by the identity.
        unreadable = suppress(CasfsError, OSError)
        with unreadable, closing_fd(open_top(self.path.parent)) as above:
            self._paths.add_above(above)

    def _look_at_changes(
        self, fd: int, batch: Batch, report: SnapshotReport, all_read: Callable[[], None]
    ) -> Collection[bytes]:
        """Stores what changed and sets `_full`; returns the directories that are gone."""
        # Taken before anything is read: a change that comes meanwhile is in the next ones.
        changes = self._changes
        self._changes = Changes()
        self._noted = 0

        self._was_torn = False

        def notify_read() -> None:
            self.drain()  # what has changed while it was read
            self._was_torn = any(map(repository_state.is_kept_by_git, self._changes.paths()))
            # Else all of it is read once more (`_note_link`), or what git has written meanwhile.
            if b"" not in self._changes.below and (not self._was_torn or self._is_last_try):
                # Git's index, too: an agent that goes on may have it track what is private.
                for candidates in (report, self._seen):
                    for path in (*candidates.private, *candidates.findings):
                        self._tracked.has(path)
                all_read()

        self._is_full = b"" in changes.below
        self._listed = set()
        snapshot = IncrementalSnapshot(
            batch,
            self.path,
            rules=self._rules,
            report=report,
            options=self._options,
            cache=self._cache,
            root_fd=fd,
        )
        self._full = snapshot.take_changes(
            changes,
            self._seen,
            listed=self._note_listed,
            linked=self._note_link,
            all_read=notify_read,
        ).dated
        self._states.clear()
        extents.carry_unlisted(report, self._seen, listed=self._listed, gone=snapshot.gone)
        self._seen = report
        if self._is_full:
            self._excluded = report.excluded
        return snapshot.gone

    def _state_of(
        self, batch: Batch, extent: Extent, base: RecordedState | None
    ) -> tuple[RecordedState, SnapshotReport]:
        """Returns the state that the extent has of the last look, and the report of it."""
        if extent.width in self._states:
            return self._states[extent.width]
        whole = replace(self._seen, excluded=self._excluded)
        full, seen = extents.narrowed(self._store, batch, self._full, seen=whole, extent=extent)
        known = Target(self._store, self.path).restored_state()
        earlier = working_tree.Earlier(base, known, tracked=self._tracked)
        state = working_tree.divide(
            self._store, batch, full, self.path, report=seen, earlier=earlier
        )
        self._states[extent.width] = state, seen
        return state, seen

    def _conclude(self, fd: int, report: SnapshotReport, gone: Collection[bytes]) -> None:
        """Takes what a look has found, once its batch is committed, as known."""
        # Only now: a row must not name a node that the batch has not committed.
        self._cache.advance()  # the next look compares with these rows
        # An agent waits for a look; what is not written is read again after a crash.
        if self._is_full or time.monotonic() - self._cache_written > WRITE_CACHE_S:
            self._write_cache()
        for path in gone:
            self._paths.remove(path)
        for path, reason in report.excluded:
            if reason in derived.EVIDENCE_INSIDE and self._paths.add_left_out(b"/" + path, fd):
                self._list_again((b"/" + path).rpartition(b"/")[0])

    def _write_cache(self) -> None:
        # A purge has deleted rows since; those in memory may name what it took.
        if self._store.purged.replaced() is self._purged:
            self._cache.write()
        self._cache_written = time.monotonic()

    def _note_listed(self, path: bytes, fd: int) -> None:
        self._listed.add(path)
        self._paths.add(path, fd)

    def _note_link(self, path: bytes, status: os.stat_result) -> None:
        if not self._is_full and status.st_ino not in self._inodes:
            self.mark_everything()  # its other names may be old ones
        self._links[path] = stat_cache.pack_stat(status)
        self._inodes.add(status.st_ino)
