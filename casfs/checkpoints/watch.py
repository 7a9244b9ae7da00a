"""Records a checkpoint of a directory whenever it has come to rest.

`Watch.step` reads the events of the kernel (`casfs.checkpoints.followed_directory`) and, when none
came for a while, looks at what changed. At everything it looks once an hour. A look during which
something changed is repeated: what is recorded was at rest, unless it never rests.
"""

from __future__ import annotations

import time
from pathlib import Path
from threading import Lock

from casfs.checkpoints import checkpoint, create, forget
from casfs.checkpoints.checkpoint import Checkpoint
from casfs.checkpoints.followed_directory import LOOK_AT_ALL_S, FollowedDirectory, Look
from casfs.checkpoints.watch_list import WatchSpec
from casfs.store.store import Store
from casfs.trees.restore import applied_steps
from casfs.trees.restore.target import record_state

MAX_SETTLE_S = 60.0  # then a directory that changes all the time is recorded as it is
RETRY_S = 5.0
MAX_RETRY_S = 600.0


class Watch:
    """There is something to `step` when `due_in` says so. Every other method may block."""

    def __init__(self, store: Store, spec: WatchSpec, directory: FollowedDirectory) -> None:
        self.spec = spec
        self._store = store
        self._path = Path(spec.directory)
        self._directory = directory
        directory.begin_watch()
        # The daemon runs steps and requests in different threads. Who else follows the directory
        # waits for its own lock, which is held only while it is looked at.
        self._lock = Lock()
        self._failures = 0
        self._failed_at = 0.0

    def due_in(self) -> float:
        """Returns the seconds until `step` has something to do even without an event."""
        due_at = self._directory.looked_at_all + LOOK_AT_ALL_S
        # No event hastens the next try: on a full disk each would read everything again.
        if self._failures:
            due_at = self._failed_at + min(RETRY_S * self._failures, MAX_RETRY_S)
        elif self._directory.pending:
            rests_from = min(
                self._directory.last_change, self._directory.first_change + MAX_SETTLE_S
            )
            due_at = rests_from + self.spec.settle
        return due_at - time.monotonic()

    def step(self) -> bool:
        """Reads events; looks and records when that is due. Returns whether `spec` has changed."""
        created = None
        error = self.spec.error
        with self._lock:
            try:
                look = self._look_when_due()
                self._failures = 0
                if look is None:
                    return False
                created = self._put(look, self.spec.name, self.spec.message, skip=True)
                if created:  # else the message waits for the next checkpoint
                    # First: whatever fails after it, the checkpoint has the message.
                    self.spec.message = ""
                    self._conclude(look, created)
                self.spec.error = None
            except Exception as failure:  # must not end what else the daemon does
                with self._directory.lock:
                    self._directory.mark_everything()
                self.spec.error = str(failure) or repr(failure)
                self._failures = self._failures + 1
                self._failed_at = time.monotonic()
        return created is not None or error != self.spec.error

    def _look_when_due(self) -> Look | None:
        """Returns None where it is not due, or the directory does not rest."""
        with self._directory.lock:
            self._directory.drain()
            if self.due_in() > 0:
                return None
            # Due without a change: the hour is over.
            if not self._directory.pending:
                self._directory.mark_everything()
            # A directory that never rests is recorded as it is, MAX_SETTLE_S after its first
            # change. Asked before the look, which may mark everything and so begin that time anew.
            latest_rest = self._directory.first_change + MAX_SETTLE_S + self.spec.settle
            is_late = time.monotonic() > latest_rest
            look = self._look()
            # A change during the look may be half in it: look again when that rests.
            self._directory.drain()
            if self._directory.has_changes and not is_late:
                return None
            self._directory.pending = self._directory.has_changes
            # So that it is late again only after another MAX_SETTLE_S.
            self._directory.first_change = time.monotonic()
            return look

    def record(self, name: str, message: str, *, skip: bool) -> create.Created:
        """Records the directory as it is now, as `create.create` does, and raises the same, or
        OSError."""
        with self._lock:
            with self._directory.lock:
                self._directory.drain()
                look = self._look()
            # `pending` stays: `name` may be another than that of the watch.
            created = self._put(look, name, message, skip=skip)
            if created:
                self._conclude(look, created)
        latest = created or checkpoint.find(self._store, name)
        stats = dict(self._store.node(latest.hash, "checkpoint").payload["stats"])
        if created is None:
            stats |= dict.fromkeys(create.COUNTERS.values(), 0)
        return create.Created(
            latest, look.report, stats=stats, new_bytes=look.new_bytes, skipped=created is None
        )

    def mark(self, message: str) -> bool:
        """Gives the next checkpoint a message, behind those that it has been given. Returns False
        where nothing has changed since the last one."""
        with self._lock, self._directory.lock:
            # The change that the message is about may still be an unread event of the kernel.
            self._directory.drain()
            if self._directory.pending:
                messages = self.spec.message, message
                self.spec.message = "; ".join(filter(None, messages))
            return self._directory.pending

    def _look(self) -> Look:
        """Stores the directory as it is now. Raises CasfsError, OSError."""
        previous = checkpoint.latest(self._store, self.spec.name)
        base = None if previous is None else checkpoint.recorded(self._store, previous)
        look = self._directory.look(base)
        self.spec.method = self._directory.method
        return look

    # -- recording ------------------------------------------------------------------------

    def _put(self, look: Look, name: str, message: str, *, skip: bool) -> Checkpoint | None:
        """Makes a checkpoint of what a look saw. Returns None where `skip` and the latest has the
        same."""
        previous = checkpoint.latest(self._store, name)
        if skip and previous is not None:
            recorded = checkpoint.recorded(self._store, previous)
            if look.state.is_equal(recorded):
                return None
        steps = applied_steps.carried(self._store, self._path, name=name, looked_at=look.began_ms)
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
        record_state(self._store, self._path, state=look.state, name=latest)
        # `keep` is a policy of the watch's name; `record` may have been given another one.
        if self.spec.keep and created.name == self.spec.name:
            decisions = forget.decide(self._store, created.name, self.spec.keep)
            unkept = [decision.checkpoint for decision in decisions if not decision.reasons]
            forget.remove(self._store, unkept)
