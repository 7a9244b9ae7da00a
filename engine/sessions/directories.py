"""The directories of the sessions that a daemon records, each followed as long as it is in use."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import trio

from casfs import config
from casfs.errors import CasfsError, Refused
from casfs.store.store import Store
from casfs.system.log import Log
from casfs.system.sizes import readable
from casfs.trees.recorded_state import RecordedState
from engine.blocking import blocking
from engine.followers import Followers
from engine.sessions.boundary import Boundary
from engine.sessions.events import SessionEvent
from engine.sessions.session_directory import SessionDirectory

MAX_FOLLOWED = 8  # directories; of those at rest the one that was used first is let go
USER = "sessions"
BURST_S = 0.2  # events come in bursts: they are read together, but while a call is open
REFUSED_S = 600.0  # until a directory that was too large is looked at again


class Directories:
    def __init__(
        self, store: Store, env: Mapping[str, str], followers: Followers, log: Log
    ) -> None:
        self._store = store
        self._env = env
        self._followers = followers
        self._log = log
        self._followed: dict[Path, SessionDirectory] = {}
        self._faults: dict[Path, tuple[float, str]] = {}

    async def boundary(
        self, path: Path, event: SessionEvent, let_go: Callable[[], None]
    ) -> Boundary:
        """Returns a session's directory at an event; without a state where nothing can have changed
        since the last one, or where it cannot be recorded. `let_go`: called once its agent may go
        on, perhaps more than once."""
        if event.call is not None and not event.call.writes:
            return Boundary()
        refused_at, fault = self._faults.get(path, (0.0, ""))
        if fault and time.monotonic() - refused_at < REFUSED_S:
            return Boundary(fault=fault)
        try:
            directory = self._directory(path)
            soon = partial(trio.lowlevel.current_trio_token().run_sync_soon, let_go)
            return await blocking(partial(directory.boundary, event, soon))
        except (CasfsError, OSError) as error:
            fault = self._explained(path, error)
            self._log("session directory not recorded", directory=str(path), error=fault)
            self._faults[path] = (time.monotonic() if isinstance(error, Refused) else 0.0, fault)
            self._let_go(path)
            return Boundary(fault=fault)

    async def state(self, path: Path) -> RecordedState | None:
        """Returns a directory as it is now, None where it is not followed. Raises CasfsError,
        OSError."""
        directory = self._followed.get(path)
        return None if directory is None else await blocking(directory.state)

    def _directory(self, path: Path) -> SessionDirectory:
        directory = self._followed.pop(path, None)
        if directory is None:
            if path in (Path.home(), *Path.home().parents):
                raise Refused("it is the home directory, or above it; begin in a project")
            for other, idle in list(self._followed.items()):
                if len(self._followed) >= MAX_FOLLOWED and idle.is_idle():
                    self._let_go(other)
            max_bytes = self._max_bytes()  # before it is held: the setting may be none
            followed = self._followers.hold(path, USER, partial(self._burst_s, path))
            directory = SessionDirectory(self._store, followed.directory, max_bytes)
        self._followed[path] = directory  # the last: the first is let go
        return directory

    def _burst_s(self, path: Path) -> float:
        directory = self._followed.get(path)
        # Who has made a change can be seen only as long as it lives.
        return BURST_S if directory is None or directory.is_idle() else 0.0

    def _let_go(self, path: Path) -> None:
        if (directory := self._followed.pop(path, None)) is not None:
            self._followers.release(path, USER, directory.release)

    def _max_bytes(self) -> int | None:
        limit: int = config.values(self._store.root, self._env)["attach.max_size"]
        return limit or None

    def _explained(self, path: Path, error: CasfsError | OSError) -> str:
        limit = self._max_bytes()
        if isinstance(error, Refused) and limit is not None and "holds more than" in str(error):
            return (
                f"{path} holds more than {readable(limit)}; leave something out (.casfsignore),"
                " or raise attach.max_size"
            )
        return f"{path} is not recorded: {error}"
