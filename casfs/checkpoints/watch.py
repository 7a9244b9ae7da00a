"""Follows a directory and records a checkpoint whenever it has come to rest.

`Watch.step` reads the events of the kernel and, when none came for a while, looks at the
directories that changed (`casfs.trees.snapshot.incremental`). Whatever is unclear (a lost event, a
mount, other rules, an error, a start) means one look at everything, which is also taken once an
hour. A look during which something changed is repeated: what is recorded was at rest, unless it
never rests. A file that is mapped for writing has no events until it is unmapped.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

from casfs.checkpoints import checkpoint, create, forget
from casfs.checkpoints.checkpoint import Checkpoint
from casfs.checkpoints.watch_list import WatchSpec
from casfs.errors import CasfsError, Failed, NotFound
from casfs.store.store import Store
from casfs.system import directory_events, mounts
from casfs.system.clock import now_ms
from casfs.system.directory_events import Event, EventSource, Key
from casfs.system.paths import open_directory, open_top, printable
from casfs.trees.recorded_state import RecordedState
from casfs.trees.restore import applied_steps
from casfs.trees.restore.target import Target, record_state
from casfs.trees.snapshot import derived, exclusions, policy, stat_cache, working_tree
from casfs.trees.snapshot.ignore import IgnoreRules
from casfs.trees.snapshot.incremental import Changes, IncrementalSnapshot
from casfs.trees.snapshot.report import Excluded, SnapshotOptions, SnapshotReport
from casfs.trees.snapshot.walker import StaleCache

MAX_UNREST_S = 60.0  # then a directory that changes all the time is recorded as it is
LOOK_AT_ALL_S = 3600.0
RETRY_S = 5.0
MAX_RETRY_S = 600.0
EVIDENCE = frozenset((b"pyvenv.cfg", derived.CACHE_TAG, *derived.REPOSITORY))
RULES = b".gitignore", b".git"  # by which directories are derived
ABOVE = b".."  # the path of the directory that holds the watched one


class Watch:
    """`fd` is readable when there is something to `step`. Every method may block."""

    def __init__(self, store: Store, spec: WatchSpec, *, fanotify: bool = True) -> None:
        self.spec = spec
        self._store = store
        self._directory = Path(spec.directory)
        self._fanotify = fanotify
        self._name = os.fsencode(self._directory.name)
        self._lock = Lock()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.epoll()
        self._poll.register(self._wake, select.EPOLLIN)
        self.fd = self._poll.fileno()
        self._source: EventSource | None = None
        self._rules = IgnoreRules()
        self._mounts = list[Path]()
        self._failures = 0
        self._failed_at = self._looked_at_all = self._first = self._last = 0.0
        self._uses_cache = self._pending = True
        self._look_began_ms = 0
        self._excluded: list[Excluded] = []  # at the last look at everything
        # Candidates for the local tree, by path; those of directories that are not listed stay.
        self._seen = SnapshotReport()
        self._purged = store.purged.replaced()
        self._forget_directories()
        self._mark_everything()

    def due_in(self) -> float:
        """Returns the seconds until `step` has something to do even without an event."""
        due_at = self._looked_at_all + LOOK_AT_ALL_S
        if self._failures:
            due_at = self._failed_at + min(RETRY_S * self._failures, MAX_RETRY_S)
        elif self._pending:
            due_at = min(self._last, self._first + MAX_UNREST_S) + self.spec.settle
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
                if not self._pending:
                    self._mark_everything()
                is_late = time.monotonic() > self._first + MAX_UNREST_S + self.spec.settle
                state = self._look()
                self._drain()
                if self._changes and not is_late:
                    return False
                created = self._put(self.spec.name, state, self.spec.message, skip=True)
                self._pending = bool(self._changes)
                self._failures = 0
                self.spec.error = None
                self._first = time.monotonic()
                self.spec.message = "" if created else self.spec.message
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
            state = self._look()
            created = self._put(name, state, message, skip=skip)
            os.eventfd_write(self._wake, 1)
        latest = created or checkpoint.find(self._store, name)
        self._report.excluded = self._excluded
        self._report.local = self._seen.local
        self._report.exposed = self._seen.exposed
        self._report.purged = self._seen.purged
        self._report.unreadable = self._seen.unreadable
        return create.Created(
            latest, self._report, stats={}, new_bytes=self._new_bytes, skipped=created is None
        )

    def mark(self, message: str) -> bool:
        """Gives the next checkpoint a message, behind those that it has been given. Returns False
        where nothing has changed since the last one."""
        with self._lock:
            self._drain()
            if self._pending:
                self.spec.message = "; ".join(filter(None, (self.spec.message, message)))
            os.eventfd_write(self._wake, 1)
            return self._pending

    def close(self) -> None:
        with self._lock:
            self._close_source()
            self._poll.close()
            os.close(self._wake)

    # -- events ---------------------------------------------------------------------------

    def _forget_directories(self) -> None:
        self._paths: dict[Key, bytes] = {}
        self._keys: dict[bytes, Key] = {}
        self._left_out: set[bytes] = set()
        self._links: dict[bytes, bytes] = {}  # files with several names: an event names one
        self._inodes: set[int] = set()

    def _mark_everything(self) -> None:
        self._changes = Changes(below={b""})
        self._first = self._last = time.monotonic()
        self._pending = True

    def _drain(self) -> None:
        if self._poll.closed:
            raise NotFound(f"{self._directory} is not watched any more")
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        if (below := mounts.mounted_below(self._directory)) != self._mounts:
            self._mounts = below
            self._mark_everything()
        for event in self._source.read() if self._source else ():
            self._note(event)

    def _note(self, event: Event) -> None:
        if event.key is None:
            self._mark_everything()
            return
        path = self._paths.get(event.key)
        name = event.name
        if path is not None and name in ((self._name,) if path == ABOVE else RULES):
            self._mark_everything()
        if path is None or path == ABOVE or (path in self._left_out and name not in EVIDENCE):
            return
        inner = path + b"/" + name
        if not event.is_directory:
            verdict = self._rules.verdict(inner[1:], name, directory=False)
            if verdict is not None and not verdict.is_local:
                return
        self._changes.names[path].add(name)
        if event.is_moved:
            self._changes.below.add(inner)
        elif event.is_directory and name:  # its mode
            self._changes.names[inner] |= set()
        elif name in EVIDENCE and path:
            self._changes.names[path.rpartition(b"/")[0]] |= set()
        self._last = time.monotonic()
        self._first = self._first if self._pending else self._last
        self._pending = True

    # -- looking --------------------------------------------------------------------------

    def _look(self, *, is_again: bool = False) -> RecordedState:
        """Stores the state as it is now. Raises CasfsError, OSError."""
        self._report = SnapshotReport()
        self._new_bytes = 0
        self._look_began_ms = now_ms()
        rules = exclusions.ignore_rules(self._store, self._directory, SnapshotReport())
        fd = open_top(self._directory)
        try:
            self._check_links()
            current_identity = os.fstat(fd)[1:3], rules.fingerprint
            if self._source is None or current_identity != (
                self._identity,
                self._rules.fingerprint,
            ):
                self._mark_everything()
            purged = self._store.purged.replaced()
            if purged is not self._purged:  # what is purged is left out, also where nothing changed
                self._purged = purged
                self._mark_everything()
            if b"" in self._changes.below:
                self._start_over(fd)
            if self._changes:
                self._state = self._look_at_changes(fd)
        except (StaleCache, NotFound):  # gc deleted nodes of the cache: start without it
            self._mark_everything()
            if is_again:
                raise
            self._uses_cache = False
            is_again = True
        except BaseException:
            self._mark_everything()
            raise
        finally:
            os.close(fd)
        return self._look(is_again=is_again) if b"" in self._changes.below else self._state

    def _look_at_changes(self, fd: int) -> RecordedState:
        changes = self._changes
        self._changes = Changes()
        self._is_full = b"" in changes.below
        self._listed: set[bytes] = set()
        previous = checkpoint.latest(self._store, self.spec.name)
        base = None if previous is None else checkpoint.recorded(self._store, previous)
        with self._store.batch() as batch:
            look = IncrementalSnapshot(
                batch, self._directory, self._rules, self._report, self._options, self._cache, fd
            )
            full = look.take_changes(changes, self._note_listed, self._add_link).dated
            self._carry(look.gone)
            state = working_tree.divide(
                self._store,
                batch,
                full=full,
                directory=self._directory,
                report=self._report,
                base=base,
                known=Target(self._store, self._directory).restored_state(),
            )
        self._new_bytes = batch.new_bytes
        self._excluded = self._report.excluded if self._is_full else self._excluded
        self._cache.save()
        self._cache.advance()
        for path in look.gone:
            self._remove(path)
        for path, reason in self._report.excluded:
            if reason in derived.EVIDENCE_INSIDE:
                with suppress(OSError), _closing(open_directory(fd, path.split(b"/"))) as inner:
                    self._add(b"/" + path, inner)
                    self._left_out.add(b"/" + path)
        return state

    def _carry(self, gone: Collection[bytes]) -> None:
        """Adds to the report what former looks reported of directories that this one did not list.
        `gone`: directories that are not there any more."""
        for name in ("private", "derived", "findings", "purged", "unreadable"):
            known = getattr(self._seen, name)
            fresh = getattr(self._report, name)
            for path, value in known.items():
                above = b"/" + path.rpartition(b"/")[0] if b"/" in path else b""
                if above not in self._listed and above not in gone:
                    fresh.setdefault(path, value)
        self._seen = self._report

    def _note_listed(self, path: bytes, fd: int) -> None:
        self._listed.add(path)
        self._add(path, fd)

    def _start_over(self, fd: int) -> None:
        self._close_source()
        self._forget_directories()
        self._source = directory_events.open_source(fd if self._fanotify else None)
        self.spec.method = self._source.method
        self._poll.register(self._source.fd, select.EPOLLIN)
        self._add(b"", fd)  # before the rules are read: a later change of them has an event
        rules = exclusions.ignore_rules(self._store, self._directory, SnapshotReport())
        self._rules = rules
        self._identity = os.fstat(fd)[1:3]
        scanner = policy.load(self._store).scanner()
        self._options = SnapshotOptions(scanner=scanner, leaves_out_unreadable=True)
        self._seen = SnapshotReport()
        cache = stat_cache.load(
            self._store, self._directory, rules=rules, variant=self._options.variant
        )
        assert cache is not None  # a daemon's store is on disk
        self._cache = cache
        cache.rows = cache.rows if self._uses_cache else {}
        self._uses_cache = True
        self._looked_at_all = time.monotonic()
        unreadable = suppress(CasfsError, OSError)  # then the next look tells
        with unreadable, _closing(open_top(self._directory.parent)) as above:
            self._paths[self._source.add(above)] = ABOVE

    def _close_source(self) -> None:
        if self._source is not None:
            os.close(self._source.fd)
            self._source = None

    def _add(self, path: bytes, fd: int) -> None:
        assert self._source is not None
        try:
            key = self._source.add(fd)
        except OSError as error:
            self._fanotify = False  # a file system below has none: the next look does without
            raise Failed(f"cannot watch {printable(path)}: {error.strerror}") from None
        if self._keys.get(path) != key:
            self._remove(path)
        self._paths[key] = path
        self._keys[path] = key
        self._left_out.discard(path)

    def _remove(self, path: bytes) -> None:
        key = self._keys.pop(path, None)
        if key is not None and self._source is not None and self._paths.get(key) == path:
            del self._paths[key]
            self._source.remove(key)

    def _add_link(self, path: bytes, seen: os.stat_result) -> None:
        if not self._is_full and seen.st_ino not in self._inodes:
            self._mark_everything()  # its other names may be old ones
        self._links[path] = stat_cache.pack_stat(seen)
        self._inodes.add(seen.st_ino)

    def _check_links(self) -> None:
        for path, before in list(self._links.items()):
            with suppress(OSError):
                if stat_cache.pack_stat(os.lstat(os.fsencode(self._directory) + path)) == before:
                    continue
            del self._links[path]
            above, _, name = path.rpartition(b"/")
            self._changes.names[above].add(name)

    def _put(
        self, name: str, state: RecordedState, message: str, *, skip: bool
    ) -> Checkpoint | None:
        previous = checkpoint.latest(self._store, name)
        if (
            skip
            and previous is not None
            and state.is_equal(checkpoint.recorded(self._store, previous))
        ):
            return None
        began = self._look_began_ms
        with applied_steps.carried(
            self._store, self._directory, name=name, looked_at=began
        ) as applied:
            if previous is None:
                created = create.create_of_state(
                    self._store, name, state=state, message=message, applied=applied
                )
            else:
                with self._store.batch() as batch:
                    created = create.create_from_base(
                        self._store,
                        batch,
                        name=name,
                        base=previous.hash,
                        state=state,
                        message=message,
                        applied=applied,
                    )
        record_state(self._store, self._directory, state=state, name=f"{name}@{created.id}")
        if self.spec.keep and name == self.spec.name:
            decisions = forget.decide(self._store, name, self.spec.keep)
            forget.remove(
                self._store, [decision.checkpoint for decision in decisions if not decision.reasons]
            )
        return created


@contextmanager
def _closing(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)
