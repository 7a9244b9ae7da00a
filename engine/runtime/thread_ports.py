"""A block of ports for each running thread, as each worktree has one: several attempts at a task at
once (`casfs run --count`) start the same servers."""

from __future__ import annotations

from pathlib import Path
from threading import Lock

from casfs.errors import Failed
from casfs.threads.threads import ThreadId
from casfs.worktrees import environment


class ThreadPorts:
    """`take` blocks for a moment, and is called in worker threads; `give_back` does not block."""

    def __init__(self) -> None:
        self._taken: dict[ThreadId, int] = {}
        self._lock = Lock()

    def take(self, id: ThreadId) -> dict[str, str]:
        """Returns the variable that names the first port of a block that no other running thread
        has; nothing where none is free."""
        with self._lock:
            taken = {base for other, base in [*self._taken.items()] if other != id}
            try:
                base = environment.free_ports(taken, Path(id), of_threads=True)
            except Failed:
                return {}
            self._taken[id] = base
        return {environment.PORT_VARIABLE: str(base)}

    def give_back(self, id: ThreadId) -> None:
        self._taken.pop(id, None)
