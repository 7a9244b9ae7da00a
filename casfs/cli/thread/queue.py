"""What the daemon says of threads whose records say `running`: which run, and which are queued."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from casfs.store import Store
from casfs.thread_state import QUEUED, state
from casfs.threads import RUNNING, Thread


@dataclass(frozen=True)
class Queue:
    """`places`: of the queued threads, by id, from 1; `running`: ids of those that run."""

    places: dict[str, int]
    running: set[str]

    @classmethod
    def of(cls, store: Store, found: Iterable[Thread]) -> Queue:
        """Asks the store's daemon, unless no thread found is running."""
        from casfs import daemon_socket

        assert store.root is not None
        asks = any(one.status == RUNNING for one in found)
        answer = (daemon_socket.status(store.root) if asks else None) or {}
        places = {id: place for place, id in enumerate(answer.get("queued", ()), start=1)}
        return cls(places, {*answer.get("running", ()), *answer.get("called", ())})

    def place(self, thread: Thread) -> int | None:
        return self.places.get(thread.id) if thread.status == RUNNING else None

    def state(self, thread: Thread) -> str:
        """Returns the thread's state: by its record alone where the daemon does not know it."""
        if thread.status != RUNNING:
            return state(thread)
        if thread.id in self.places:
            return QUEUED
        return RUNNING if thread.id in self.running else state(thread)

    def fields(self, thread: Thread) -> dict[str, Any]:
        return {"status": self.state(thread), "queuePlace": self.place(thread)}

    def place_text(self, thread: Thread) -> str | None:
        """Returns the place of a queued thread, such as `2 of 5`."""
        place = self.place(thread)
        return None if place is None else f"{place} of {len(self.places)}"
