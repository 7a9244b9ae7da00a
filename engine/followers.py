"""One follower of file system events for each directory, shared by its users: a watch, worktrees of
it, sessions of agents.

What blocks, looks and reading events, runs in worker threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import trio

from casfs.checkpoints.followed_directory import FollowedDirectory
from casfs.store.store import Store
from casfs.system.log import Log
from engine.blocking import blocking

RETRY_S = 5.0


@dataclass(eq=False)
class Followed:
    """`bursts`: by user, for how many seconds events may wait to be read together; `read`: set when
    some were read, and then another one."""

    directory: FollowedDirectory
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    bursts: dict[str, Callable[[], float]] = field(default_factory=dict)
    read: trio.Event = field(default_factory=trio.Event)

    async def wait_read(self) -> None:
        """Waits until events of the directory were read."""
        await self.read.wait()

    def read_events(self) -> None:
        with self.directory.lock:
            self.directory.read_events()

    def mark_everything(self) -> None:
        with self.directory.lock:
            self.directory.mark_everything()

    def close(self) -> None:
        with self.directory.lock:  # it waits for a look that is being taken
            self.directory.close()


class Followers:
    """All methods are called in the thread of the event loop."""

    def __init__(self, store: Store, log: Log) -> None:
        self._store = store
        self._log = log
        self._followed: dict[Path, Followed] = {}

    def start(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery

    def hold(self, path: Path, user: str, burst_s: Callable[[], float]) -> Followed:
        """Returns what follows a directory from now on, until its last user releases it."""
        followed = self._followed.get(path)
        if followed is None:
            followed = self._followed[path] = Followed(FollowedDirectory(self._store, path))
            self._nursery.start_soon(self._follow, followed)
        followed.bursts[user] = burst_s
        return followed

    def release(self, path: Path, user: str, end_use: Callable[[], None] = lambda: None) -> None:
        """`end_use`: called in a worker thread."""
        followed = self._followed.get(path)
        if followed is None or user not in followed.bursts:
            return
        del followed.bursts[user]
        if not followed.bursts:
            del self._followed[path]
        self._nursery.start_soon(self._end_use, followed, end_use)

    async def _end_use(self, followed: Followed, end_use: Callable[[], None]) -> None:
        await blocking(end_use)
        if not followed.bursts:
            followed.scope.cancel()

    async def _follow(self, followed: Followed) -> None:
        """Reads events as they come: who has made a change can be seen only as long as it lives."""
        try:
            with followed.scope:
                while True:
                    await trio.lowlevel.wait_readable(followed.directory.fd)
                    bursts = [burst_s() for burst_s in followed.bursts.values()]
                    await trio.sleep(min(bursts, default=0.0))
                    await self._drain(followed)
                    followed.read.set()
                    followed.read = trio.Event()
        finally:
            with trio.CancelScope(shield=True):
                await blocking(followed.close)

    async def _drain(self, followed: Followed) -> None:
        try:
            await blocking(followed.read_events)
        except Exception as error:  # must not end what else the daemon does
            directory = str(followed.directory.path)
            self._log("directory not followed", directory=directory, error=str(error))
            await blocking(followed.mark_everything)
            await trio.sleep(RETRY_S)
