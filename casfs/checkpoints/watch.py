"""Follows a directory and records a checkpoint whenever it has come to rest.

`Watch.step` reads the events of the kernel and, when none came for a while, looks at the
directories that changed (`casfs.trees.snapshot.incremental`). Whatever is unclear (a lost event, a
mount, other rules, an error, a start) means one look at everything, which is also taken once an
hour. A look during which something changed is repeated: what is recorded was at rest, unless it
never rests. A file that is mapped for writing has no events until it is unmapped.

The way of a change: `_drain` reads events, `_note` adds what changed to `_changes`, `_look` takes
`_changes` and stores the directory as a state, `_put` makes a checkpoint of the state. What goes
wrong anywhere marks everything as changed, so the next look starts over.

A directory's path is b"" for the watched one, else begins with a slash, as in the stat cache;
paths in a report have none.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from casfs.checkpoints import checkpoint, create, forget
from casfs.checkpoints.checkpoint import Checkpoint
from casfs.checkpoints.watch_list import WatchSpec
from casfs.errors import CasfsError, Failed, NotFound
from casfs.store.store import Store
from casfs.system import directory_events, mounts
from casfs.system.clock import now_ms
from casfs.system.directory_events import Event, EventSource, Key
from casfs.system.files import closing_fd
from casfs.system.paths import open_directory, open_top, printable
from casfs.trees.recorded_state import RecordedState
from casfs.trees.restore import applied_steps
from casfs.trees.restore.target import Target, record_state
from casfs.trees.snapshot import derived, exclusions, policy, stat_cache, working_tree
from casfs.trees.snapshot.ignore import IgnoreRules
from casfs.trees.snapshot.incremental import Changes, IncrementalSnapshot
from casfs.trees.snapshot.report import Excluded, SnapshotOptions, SnapshotReport
from casfs.trees.snapshot.walker import StaleCache

MAX_SETTLE_S = 60.0  # then a directory that changes all the time is recorded as it is
LOOK_AT_ALL_S = 3600.0
RETRY_S = 5.0
MAX_RETRY_S = 600.0
EVIDENCE = frozenset((b"pyvenv.cfg", derived.CACHE_TAG, *derived.REPOSITORY))
RULES = b".gitignore", b".git"  # by which directories are derived
ABOVE = b".."  # the path of the directory that holds the watched one
# What a snapshot reports by path of the directories that it lists, and of no others.
CARRIED = ("private", "derived", "findings", "purged", "unreadable")


class Look(NamedTuple):
    """What a look saw. `new_bytes`: stored by it; `began_ms`: what changed later it may have
    missed."""

    state: RecordedState
    report: SnapshotReport
    new_bytes: int
    began_ms: int


class Watch:
    """`fd` is readable when there is something to `step`. Every method may block."""

    def __init__(self, store: Store, spec: WatchSpec, *, fanotify: bool = True) -> None:
        self.spec = spec
        self._store = store
        self._directory = Path(spec.directory)
        self._name = os.fsencode(self._directory.name)
        self._fanotify = fanotify
        # The daemon runs steps and requests in different threads.
        self._lock = Lock()
        # One descriptor for the daemon to wait for, while the source of events is replaced.
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.epoll()
        self._poll.register(self._wake, select.EPOLLIN)
        self.fd = self._poll.fileno()
        # When to look. `_pending`: something may have changed since the last checkpoint, even if it
        # was looked at by `record`; the times are of the first and the last change since then.
        self._pending = True
        self._first_change = self._last_change = 0.0
        self._looked_at_all = 0.0
        self._failures = 0
        self._failed_at = 0.0
        # What a look at everything sets up. Without a source there was none yet.
        self._source: EventSource | None = None
        self._identity: tuple[int, ...] = ()  # inode and device of the directory
        self._rules = IgnoreRules()
        self._options: SnapshotOptions
        self._cache: stat_cache.StatCache
        self._uses_cache = True
        self._excluded: list[Excluded] = []
        # What is compared at each look, since no event tells of it.
        self._mounts = list[Path]()
        self._purged = store.purged.replaced()
        # The last look. `_seen`: what it and those before reported of directories as they are.
        self._state: RecordedState
        self._seen = SnapshotReport()
        self._listed: set[bytes] = set()
        self._is_full = False
        self._forget_directories()
        self._mark_everything()

    def due_in(self) -> float:
        """Returns the seconds until `step` has something to do even without an event."""
        due_at = self._looked_at_all + LOOK_AT_ALL_S
        # No event hastens the next try: on a full disk each would read everything again.
        if self._failures:
            due_at = self._failed_at + min(RETRY_S * self._failures, MAX_RETRY_S)
        elif self._pending:
            rests_from = min(self._last_change, self._first_change + MAX_SETTLE_S)
            due_at = rests_from + self.spec.settle
        return due_at - time.monotonic()

    def step(self) -> bool:
        """Reads events; looks and records when that is due. Returns whether `spec` has changed."""
        created = None
        error = self.spec.error
        with self._lock:
            try:
                self._drain()
                if self.due_in() > 0:
                    return False
                # Due without a change: the hour is over.
                if not self._pending:
                    self._mark_everything()
                # A directory that never rests is recorded as it is, MAX_SETTLE_S after its first
                # change. Asked before the look, which may mark everything and so begin that time
                # anew.
                latest_rest = self._first_change + MAX_SETTLE_S + self.spec.settle
                is_late = time.monotonic() > latest_rest
                look = self._look()
                # A change during the look may be half in it: look again when that rests.
                self._drain()
                self._failures = 0
                if self._changes and not is_late:
                    return False
                created = self._put(look, self.spec.name, self.spec.message, skip=True)
                if created:  # else the message waits for the next checkpoint
                    # First: whatever fails after it, the checkpoint has the message.
                    self.spec.message = ""
                    self._conclude(look, created)
                self._pending = bool(self._changes)
                # So that it is late again only after another MAX_SETTLE_S.
                self._first_change = time.monotonic()
                self.spec.error = None
            except Exception as failure:  # must not end what else the daemon does
                self._mark_everything()
                self.spec.error = str(failure) or repr(failure)
                self._failures = self._failures + 1
                self._failed_at = time.monotonic()
        return created is not None or error != self.spec.error

    def record(self, name: str, message: str, *, skip: bool) -> create.Created:
        """Records the directory as it is now, as `create.create` does, and raises the same, or
        OSError; `stats` are in the node."""
        with self._lock:
            self._drain()
            look = self._look()
            # `_pending` stays: `name` may be another than that of the watch.
            created = self._put(look, name, message, skip=skip)
            if created:
                self._conclude(look, created)
            # The daemon waits for events that have just been read: it asks `due_in` again.
            os.eventfd_write(self._wake, 1)
            # The look reports only what it listed; a person is told of the whole directory. Under
            # the lock, since the next look replaces these, and a copy, since it reads the report.
            names = ("local", "exposed", "purged", "unreadable")
            whole = {name: getattr(self._seen, name) for name in names}
            report = replace(look.report, excluded=self._excluded, **whole)
        latest = created or checkpoint.find(self._store, name)
        skipped = created is None
        return create.Created(latest, report, {}, new_bytes=look.new_bytes, skipped=skipped)

    def mark(self, message: str) -> bool:
        """Gives the next checkpoint a message, behind those that it has been given. Returns False
        where nothing has changed since the last one."""
        with self._lock:
            # The change that the message is about may still be an unread event of the kernel.
            self._drain()
            if self._pending:
                messages = self.spec.message, message
                self.spec.message = "; ".join(filter(None, messages))
            os.eventfd_write(self._wake, 1)  # as in `record`
            return self._pending

    def close(self) -> None:
        with self._lock:
            self._close_source()
            self._poll.close()
            os.close(self._wake)

    # -- events ---------------------------------------------------------------------------

    def _drain(self) -> None:
        """Notes all that the kernel has reported. Raises NotFound after `close`."""
        # A request may have waited for the lock while the watch was ended.
        if self._poll.closed:
            raise NotFound(f"{self._directory} is not watched any more")
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        # A mount hides or shows a whole directory and has no event in it.
        if (below := mounts.mounted_below(self._directory)) != self._mounts:
            self._mounts = below
            self._mark_everything()
        for event in self._source.read() if self._source else ():
            self._note(event)

    def _note(self, event: Event) -> None:
        """Adds to `_changes` what an event is of, unless it is left out."""
        # Events were lost, or a file system was unmounted: anything may have changed.
        if event.key is None:
            self._mark_everything()
            return
        # fanotify reports a whole file system, most of which is not followed.
        directory = self._paths.get(event.key)
        if directory is None:
            return
        name = event.name
        # The watched directory was moved or replaced. Of the one above nothing else counts.
        if directory == ABOVE:
            if name == self._name:
                self._mark_everything()
            return
        # Rules count for all below them. Their own file is noted, too, so that it is read again
        # whatever its stat is.
        if name in RULES:
            self._mark_everything()
        if self._is_left_out(directory, event):
            return
        path = directory + b"/" + name
        self._changes.names[directory].add(name)
        # What came with it had no events here.
        if event.is_moved:
            self._changes.below.add(path)
        elif event.is_directory and name:  # its mode may have changed
            self._list_again(path)
        # The parent's listing says whether this directory is left out.
        if name in EVIDENCE and directory:
            parent = directory.rpartition(b"/")[0]
            self._list_again(parent)
        self._last_change = time.monotonic()
        if not self._pending:
            self._first_change = self._last_change
        self._pending = True

    def _is_left_out(self, directory: bytes, event: Event) -> bool:
        # A directory that is left out is followed for its evidence only, which may go.
        if directory in self._left_out and event.name not in EVIDENCE:
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

    def _mark_everything(self) -> None:
        self._changes = Changes(below={b""})
        self._first_change = self._last_change = time.monotonic()
        self._pending = True

    # -- looking --------------------------------------------------------------------------

    def _look(self) -> Look:
        """Stores the state as it is now. Raises CasfsError, OSError."""
        was_stale = False
        while True:
            began_ms = now_ms()
            # Read each time: settings, `.casfsignore`, stores and mounts below may be others.
            rules = exclusions.ignore_rules(self._store, self._directory, SnapshotReport())
            fd = open_top(self._directory)
            report = SnapshotReport()
            new_bytes = 0
            try:
                self._mark_what_has_no_event(fd, rules)
                if b"" in self._changes.below:
                    self._start_over(fd)
                if self._changes:
                    new_bytes = self._look_at_changes(fd, report)
            except (StaleCache, NotFound):  # gc deleted nodes of the cache: start without it
                self._mark_everything()
                if was_stale:
                    raise
                self._uses_cache = False
                was_stale = True
            except BaseException:
                # The changes that this look took are in no state yet, and must not be lost.
                self._mark_everything()
                raise
            finally:
                os.close(fd)
            # The look itself may have seen that the events do not suffice (`_note_link`).
            if b"" not in self._changes.below:
                return Look(self._state, report, new_bytes, began_ms)

    def _mark_what_has_no_event(self, fd: int, rules: IgnoreRules) -> None:
        self._mark_changed_links()
        # Where a directory further up is moved, the path leads to another one without an event.
        is_other = os.fstat(fd)[1:3] != self._identity
        are_other_rules = rules.fingerprint != self._rules.fingerprint
        if self._source is None or is_other or are_other_rules:
            self._mark_everything()
        purged = self._store.purged.replaced()
        if purged is not self._purged:  # what is purged is left out, also where nothing changed
            self._purged = purged
            self._mark_everything()

    def _mark_changed_links(self) -> None:
        """An event of a file with several names tells of one: the others are compared."""
        for path, before in list(self._links.items()):
            with suppress(OSError):
                status = os.lstat(os.fsencode(self._directory) + path)
                if stat_cache.pack_stat(status) == before:
                    continue
            # It may have one name now; the look notes it again where it has several.
            del self._links[path]
            directory, _, name = path.rpartition(b"/")
            self._changes.names[directory].add(name)

    def _start_over(self, fd: int) -> None:
        """Prepares a look at everything, which follows again each directory that it lists."""
        self._close_source()
        self._forget_directories()
        self._source = directory_events.open_source(fd if self._fanotify else None)
        self.spec.method = self._source.method
        self._poll.register(self._source.fd, select.EPOLLIN)
        self._follow(b"", fd)  # before the rules are read: a later change of them has an event
        rules = exclusions.ignore_rules(self._store, self._directory, SnapshotReport())
        self._rules = rules
        self._identity = os.fstat(fd)[1:3]
        # One unreadable file must not keep the rest from being recorded.
        scanner = policy.load(self._store).scanner()
        self._options = SnapshotOptions(scanner=scanner, leaves_out_unreadable=True)
        self._seen = SnapshotReport()
        # Loaded again: other rules have other rows, and a failed look leaves them half changed.
        variant = self._options.variant
        self._cache = stat_cache.load(self._store, self._directory, rules, variant)
        if not self._uses_cache:
            self._cache.rows = {}
        self._uses_cache = True
        self._looked_at_all = time.monotonic()
        # That this directory itself is renamed or replaced is an event of the one above. Where
        # that cannot be followed, the next look tells by the identity.
        unreadable = suppress(CasfsError, OSError)
        with unreadable, closing_fd(open_top(self._directory.parent)) as above:
            key = self._source.add(above)
            # "/" is above itself, and its own events count.
            self._paths.setdefault(key, ABOVE)

    def _look_at_changes(self, fd: int, report: SnapshotReport) -> int:
        """Stores what changed and sets `_state`; returns how many bytes were new."""
        # Taken before anything is read: a change that comes meanwhile is in the next ones.
        changes = self._changes
        self._changes = Changes()
        self._is_full = b"" in changes.below
        self._listed = set()
        previous = checkpoint.latest(self._store, self.spec.name)
        base = None if previous is None else checkpoint.recorded(self._store, previous)
        with self._store.batch() as batch:
            snapshot = IncrementalSnapshot(
                batch,
                self._directory,
                rules=self._rules,
                report=report,
                options=self._options,
                cache=self._cache,
                root_fd=fd,
            )
            full = snapshot.take_changes(changes, self._note_listed, self._note_link).dated
            # Before the division, which decides by the report what is private in all of the tree.
            self._carry(report, snapshot.gone)
            known = Target(self._store, self._directory).restored_state()
            earlier = working_tree.Earlier(base, known)
            state = working_tree.divide(
                self._store, batch, full, self._directory, report=report, earlier=earlier
            )
        if self._is_full:
            self._excluded = report.excluded
        # Only now: a row must not name a node that the batch has not committed.
        self._cache.save()
        self._cache.advance()  # the next look compares with these rows
        for path in snapshot.gone:
            self._unfollow(path)
        for path, reason in report.excluded:
            if reason in derived.EVIDENCE_INSIDE:
                self._follow_left_out(path, fd)
        self._state = state
        return batch.new_bytes

    def _note_listed(self, path: bytes, fd: int) -> None:
        self._listed.add(path)
        self._follow(path, fd)

    def _note_link(self, path: bytes, status: os.stat_result) -> None:
        if not self._is_full and status.st_ino not in self._inodes:
            self._mark_everything()  # its other names may be old ones
        self._links[path] = stat_cache.pack_stat(status)
        self._inodes.add(status.st_ino)

    def _carry(self, report: SnapshotReport, gone: Collection[bytes]) -> None:
        """Adds to the report what former looks reported of directories that this one did not list.
        `gone`: directories that are not there any more."""
        for kind in CARRIED:
            entries = getattr(report, kind)
            for path, value in getattr(self._seen, kind).items():
                directory = (b"/" + path).rpartition(b"/")[0]
                if directory not in self._listed and directory not in gone:
                    entries.setdefault(path, value)
        self._seen = report

    # -- directories that are followed ----------------------------------------------------

    def _forget_directories(self) -> None:
        self._paths: dict[Key, bytes] = {}
        self._keys: dict[bytes, Key] = {}
        self._left_out: set[bytes] = set()
        self._links: dict[bytes, bytes] = {}  # files with several names: an event names one
        self._inodes: set[int] = set()

    def _follow(self, path: bytes, fd: int) -> None:
        assert self._source is not None
        try:
            key = self._source.add(fd)
        except OSError as error:
            self._fanotify = False  # a file system below has none: the next look does without
            raise Failed(f"cannot watch {printable(path)}: {error.strerror}") from None
        if self._keys.get(path) != key:
            self._unfollow(path)
        self._paths[key] = path
        self._keys[path] = key
        self._left_out.discard(path)

    def _follow_left_out(self, path: bytes, top: int) -> None:
        """Follows a directory that is left out for what is inside: that may be deleted."""
        names = path.split(b"/")
        with suppress(OSError), closing_fd(open_directory(top, names)) as fd:
            self._follow(b"/" + path, fd)
            self._left_out.add(b"/" + path)

    def _unfollow(self, path: bytes) -> None:
        key = self._keys.pop(path, None)
        # A directory that was moved keeps its key, and is followed by its new path already.
        if key is not None and self._source is not None and self._paths.get(key) == path:
            del self._paths[key]
            self._source.remove(key)

    def _close_source(self) -> None:
        if self._source is not None:
            os.close(self._source.fd)  # which also ends its registration in `_poll`
            self._source = None

    # -- recording ------------------------------------------------------------------------

    def _put(self, look: Look, name: str, message: str, *, skip: bool) -> Checkpoint | None:
        """Makes a checkpoint of what a look saw. Returns None where `skip` and the latest has the
        same."""
        previous = checkpoint.latest(self._store, name)
        if skip and previous is not None:
            recorded = checkpoint.recorded(self._store, previous)
            if look.state.is_equal(recorded):
                return None
        steps = applied_steps.carried(
            self._store, self._directory, name=name, looked_at=look.began_ms
        )
        with steps as applied:
            if previous is None:
                created = create.create_of_state(
                    self._store, name, state=look.state, message=message, applied=applied
                )
            else:
                # Its statistics come from the difference, without a walk of the whole tree.
                with self._store.batch() as batch:
                    created = create.create_from_base(
                        self._store, batch, name=name, base=previous.hash, state=look.state,
                        message=message, applied=applied,
                    )  # fmt: skip
        return created

    def _conclude(self, look: Look, created: Checkpoint) -> None:
        """Notes what the directory holds, and removes old checkpoints."""
        latest = f"{created.name}@{created.id}"
        record_state(self._store, self._directory, state=look.state, name=latest)
        # `keep` is a policy of the watch's name; `record` may have been given another one.
        if self.spec.keep and created.name == self.spec.name:
            decisions = forget.decide(self._store, created.name, self.spec.keep)
            unkept = [decision.checkpoint for decision in decisions if not decision.reasons]
            forget.remove(self._store, unkept)
