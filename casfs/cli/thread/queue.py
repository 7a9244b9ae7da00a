"""What the daemon says of threads whose records say `running`: which run, and which are queued.

Without one on this machine none runs: a step that had begun is interrupted, and goes on with the
next daemon. In a store that machines share a lease says which of them runs a thread.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from casfs.backend.capabilities import SharedByMachines
from casfs.store.store import Store
from casfs.threads.state import QUEUED, state
from casfs.threads.threads import RUNNING, Thread

INTERRUPTED = "interrupted"
NO_DAEMON = "no daemon runs, so no thread goes on; `casfs daemon` starts one"


class Queue:
    """Asks the store's daemon once, when it is asked of a thread whose record says `running`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @cached_property
    def _answer(self) -> dict[str, Any]:
        from casfs.system import daemon_socket

        return daemon_socket.status(self._store.root) or {}

    @cached_property
    def _is_stopped(self) -> bool:
        """Whether no daemon, here or elsewhere, runs a thread of the store."""
        from casfs.system import daemon_socket

        is_shared = isinstance(self._store.backend, SharedByMachines)
        return not is_shared and not daemon_socket.runs(self._store.root)

    @cached_property
    def places(self) -> dict[str, int]:
        """Of the queued threads, by id, from 1."""
        return {
            id: queue_place
            for queue_place, id in enumerate(self._answer.get("queued", ()), start=1)
        }

    @cached_property
    def running(self) -> set[str]:
        """The ids of those that run."""
        return {*self._answer.get("running", ()), *self._answer.get("called", ())}

    def place(self, thread: Thread) -> int | None:
        return self.places.get(thread.id) if thread.status == RUNNING else None

    def state(self, thread: Thread) -> str:
        """Returns the thread's state: by its record alone where the daemon does not know it."""
        if thread.status != RUNNING:
            return state(thread)
        if thread.id in self.places:
            return QUEUED
        recorded = RUNNING if thread.id in self.running else state(thread)
        return INTERRUPTED if recorded == RUNNING and self._is_stopped else recorded

    def fields(self, thread: Thread) -> dict[str, Any]:
        return {"status": self.state(thread), "queuePlace": self.place(thread)}

    def place_text(self, thread: Thread) -> str | None:
        """Returns the place of a queued thread, such as `2 of 5`."""
        queue_place = self.place(thread)
        return None if queue_place is None else f"{queue_place} of {len(self.places)}"
