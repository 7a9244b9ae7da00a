"""The watched directories: a task for each, and the operations on them.

A task waits for events; what blocks, looks and checkpoints, runs in worker threads.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import trio

from casfs.agents.secrets import Secrets
from casfs.checkpoints import watch_list
from casfs.checkpoints.watch import Watch
from casfs.checkpoints.watch_list import WatchSpec
from casfs.errors import Failed, NotFound
from casfs.store.store import Store
from casfs.system.log import Log
from casfs.system.paths import printable
from engine.blocking import blocking
from engine.followers import Followed, Followers

Answer = dict[str, Any]
USER = "watch"
BURST_S = 0.5  # events come in bursts: they are read together


def _redacted(message: str) -> str:
    """Returns a message without what the scanner finds. The values of a step, which its caller
    alone knows, were replaced there (`casfs.cli.common.message_for_daemon`)."""
    return Secrets({}).redact(message) if message else message


class Watches:
    def __init__(self, store: Store, followers: Followers, log: Log) -> None:
        self._store = store
        self._followers = followers
        self._log = log
        self._specs = watch_list.load(store)
        self._running: dict[str, tuple[Watch, trio.CancelScope]] = {}
        self.operations: dict[str, Callable[..., Awaitable[Answer]]] = {
            "watch": self._watch,
            "unwatch": self._unwatch,
            "mark": self._mark,
            "record": self._record,
        }

    def start_all(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        for spec in self._specs.values():
            self._start(spec)

    def _start(self, spec: WatchSpec) -> None:
        burst_s = min(BURST_S, spec.settle / 2)
        followed = self._followers.hold(Path(spec.directory), USER, lambda: burst_s)
        watch = Watch(self._store, spec, followed.directory)
        scope = trio.CancelScope()
        self._running[spec.directory] = watch, scope
        self._nursery.start_soon(self._follow, watch, followed, scope)

    async def _follow(self, watch: Watch, followed: Followed, scope: trio.CancelScope) -> None:
        with scope:
            while True:
                if (due_in := watch.due_in()) > 0:
                    with trio.move_on_after(due_in):
                        await followed.wait_read()
                elif await blocking(watch.step):
                    self._log("watch", directory=watch.spec.directory, error=watch.spec.error)
                    with suppress(Failed):  # no space: the log has the error
                        await self._save()

    async def _save(self) -> None:
        await blocking(lambda: watch_list.save(self._store, self._specs))

    async def _watch(self, **fields: Any) -> Answer:
        spec = WatchSpec(**fields)
        if spec.directory in self._specs:
            await self._unwatch(spec.directory)
        self._specs[spec.directory] = spec
        await self._save()
        self._start(spec)
        return asdict(spec)

    async def _unwatch(self, directory: str) -> Answer:
        watch, scope = self._find(directory)
        scope.cancel()
        self._followers.release(Path(directory), USER)
        del self._running[directory], self._specs[directory]
        await self._save()
        return asdict(watch.spec)

    async def _mark(self, path: str, message: str) -> Answer:
        watch, _ = self._find(watch_list.holding(self._specs, Path(path)).directory)
        changed = await blocking(lambda: watch.mark(_redacted(message)))
        await self._save()
        return {**asdict(watch.spec), "changed": changed}

    async def _record(self, directory: str, name: str, message: str, skip: bool) -> Answer:
        watch, _ = self._find(directory)
        recording = await blocking(lambda: watch.record(name, _redacted(message), skip=skip))
        return {
            "checkpoint": recording.checkpoint._asdict(),
            "stats": dict(recording.stats),
            "skipped": recording.skipped,
            "read": recording.report.read,
            "readBytes": recording.report.read_bytes,
            "newBytes": recording.new_bytes,
            "excluded": [
                (printable(exclusion.path), exclusion.reason)
                for exclusion in recording.report.excluded
            ],
            "purged": [(printable(path), hash) for path, hash in recording.report.purged.items()],
            "unreadable": [
                (printable(path), why) for path, why in recording.report.unreadable.items()
            ],
            "private": [(printable(path), why) for path, why in recording.report.local.items()],
            "secrets": [
                (printable(path), *hits[0]) for path, hits in recording.report.exposed.items()
            ],
        }

    def _find(self, directory: str) -> tuple[Watch, trio.CancelScope]:
        if directory not in self._running:
            raise NotFound(f"{directory} is not watched; see `casfs watch --list`")
        return self._running[directory]
